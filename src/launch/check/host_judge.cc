#include "check/host_judge.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace octet::launch {
namespace {

using std::to_string;

constexpr double kLargestClockError = 2;                  // seconds
constexpr std::int64_t kShmOfRank = 32 << 10;             // KiB
constexpr std::int64_t kTmp = 256 << 10;                  // KiB
constexpr std::int64_t kStack = 8192;                     // KiB
constexpr std::int64_t kMemlock = std::int64_t{8} << 20;  // KiB
constexpr std::int64_t kFiles = 1024;

bool says_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

// Unknown and unlimited values are not below a limit.
bool is_below(const HostAnswer& host, const char* word, std::int64_t limit) {
  const auto value = host.number(word);
  return value && *value < limit;
}

std::string mebibytes_free(const HostAnswer& host, const char* word) {
  return to_string(host.number(word).value_or(0) / 1024) + " MiB free";
}

// The seconds with one digit after the point.
std::string rounded(double seconds) {
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), "%.1f", seconds);
  return text.data();
}

}  // namespace

Finding judge_clock(const HostReply& reply) {
  const double clock = std::strtod(reply.answer.value("clock").c_str(), nullptr);
  const std::string error = rounded(std::max({reply.began - clock, clock - reply.ended, 0.0}));
  if (std::strtod(error.c_str(), nullptr) > kLargestClockError)
    return fault("clock", error + " s off this host's clock",
                 "set it by chrony or ntpd: otherwise times of logs and files contradict each other");
  return ok("clock", "within 2 s of this host's clock");
}

HostJudge::HostJudge(Question question, HostAnswer here, std::string agent)
    : question_(std::move(question)), here_(std::move(here)), agent_(std::move(agent)) {}

std::vector<Finding> HostJudge::judge(const HostSlots& host, const HostReply& reply) {
  if (reply.code != 0 || reply.is_late) return {judge_silence(host, reply)};
  const std::string& name = reply.answer.value("name");
  std::vector<Finding> findings{ok("ssh", "answers as " + name)};
  if (const auto other = hosts_by_name_.find(name); other != hosts_by_name_.end())
    findings.push_back(fault("name",
                             "the same as " + other->second + "'s: ranks of both would count as one node",
                             "give every host a different name"));
  hosts_by_name_[name] = host.name;
  findings.push_back(judge_clock(reply));
  judge_sameness(reply.answer, findings);
  judge_paths(reply.answer, findings);
  const std::vector<Finding> limits = judge_limits(reply.answer, host.slots);
  findings.insert(findings.end(), limits.begin(), limits.end());
  return findings;
}

Finding HostJudge::judge_silence(const HostSlots& host, const HostReply& reply) const {
  std::string found = reply.errors;
  std::ranges::replace(found, '\n', ' ');
  if (reply.is_late) found = "no answer within 30 s";
  if (says_any(found, {"Could not resolve", "Name or service not known"}))
    return fault(
        "ssh", found,
        "correct the name in the hostfile, or add it to DNS or /etc/hosts (getent hosts " + host.name + ")");
  if (says_any(found, {"timed out", "No route to host", "Network is unreachable", "no answer within",
                       "Connection refused"}))
    return fault(
        "ssh", found,
        "check that " + host.name + " runs, that the network reaches it (ping), and that sshd listens there");
  return fault("ssh", found.empty() ? "ended with code " + to_string(reply.code) : found,
               "make `" + agent_ + " " + host.name +
                   " true` work without a question (a key in authorized_keys, the host in known_hosts)");
}

void HostJudge::judge_sameness(const HostAnswer& host, std::vector<Finding>& findings) const {
  const std::string& program = host.value("program");
  if (program == "missing") {
    findings.push_back(fault("program", question_.program + " is not there",
                             "install it there, or put it into a folder that all hosts share"));
  } else if (program == here_.value("program")) {
    findings.push_back(ok("program", "the same as here"));
  } else {
    findings.push_back(
        fault("program", question_.program + " is another build",
              "copy this host's program there: ranks of different builds do not train together"));
  }
  if (const std::string& libraries = host.value("libraries"); !libraries.empty())
    findings.push_back(fault("libraries", "not found: " + libraries,
                             "install them there, or set LD_LIBRARY_PATH in the shell's start file"));
  const std::string &mpi = host.value("mpi"), &mpi_here = here_.value("mpi");
  if (mpi == mpi_here) {
    findings.push_back(ok("mpi", mpi));
  } else {
    findings.push_back(
        fault("mpi", mpi + ", here " + (mpi_here.empty() ? "none" : mpi_here),
              "install the same version, and have mpirun on PATH of shells without a terminal"));
  }
  if (host.value("sees") == "yes") {
    findings.push_back(ok("folder", question_.folder + " is the same folder"));
  } else {
    findings.push_back(fault("folder", question_.folder + " is another folder than on this host",
                             "train in a folder of a file system that all hosts mount at the same place"));
  }
}

void HostJudge::judge_paths(const HostAnswer& host, std::vector<Finding>& findings) const {
  bool all_exist = true;
  for (std::size_t i = 0; i < question_.paths.size(); ++i) {
    const std::string word = "path" + to_string(i);
    const std::string &found = host.value(word), &here = here_.value(word);
    if (found == here) continue;
    all_exist = false;
    findings.push_back(
        fault("path", question_.paths[i] + " is " + (found.empty() ? "unknown" : found) + ", here " + here,
              "put model and data on a file system that all hosts mount at the same place, or "
              "copy them there"));
  }
  if (all_exist && !question_.paths.empty())
    findings.push_back(
        ok("paths", to_string(question_.paths.size()) + " files and folders of the configuration exist"));
}

std::vector<Finding> judge_limits(const HostAnswer& host, int ranks) {
  std::vector<Finding> findings;
  if (is_below(host, "shm", ranks * kShmOfRank)) {
    findings.push_back(fault("/dev/shm", mebibytes_free(host, "shm"),
                             "make it larger (mount -o remount,size=…; docker run --shm-size=…): ranks of a "
                             "host exchange messages through it"));
  } else {
    findings.push_back(ok("/dev/shm", mebibytes_free(host, "shm")));
  }
  if (is_below(host, "tmp", kTmp)) {
    findings.push_back(
        fault("TMPDIR", mebibytes_free(host, "tmp"), "make room there, or point TMPDIR elsewhere"));
  } else {
    findings.push_back(ok("TMPDIR", mebibytes_free(host, "tmp")));
  }
  if (is_below(host, "stack", kStack))
    findings.push_back(fault("stack", "limited to " + host.value("stack") + " KiB",
                             "raise it to 8192 (ulimit -s, /etc/security/limits.conf)"));
  if (is_below(host, "files", kFiles))
    findings.push_back(fault("files", host.value("files") + " may be open",
                             "raise it to 1024 (ulimit -n, /etc/security/limits.conf)"));
  const std::int64_t gpus = host.number("gpus").value_or(0), amd = host.number("amd").value_or(0);
  if (gpus > 0 && is_below(host, "memlock", kMemlock))
    findings.push_back(doubt("memlock", "limited to " + host.value("memlock") + " KiB",
                             "set it to unlimited if InfiniBand connects the hosts"));
  const std::string& cores = host.value("cores");
  if (gpus > 0 && ranks > gpus) {
    findings.push_back(fault("GPUs", to_string(gpus) + " for " + to_string(ranks) + " ranks",
                             "set slots=" + to_string(gpus) + " for this host"));
  } else if (gpus > 0) {
    findings.push_back(ok("GPUs", to_string(gpus)));
  } else if (is_below(host, "cores", ranks)) {
    findings.push_back(doubt("cores", cores + " for " + to_string(ranks) + " ranks, and no GPU",
                             "set slots=" + cores + " or fewer"));
  } else {
    findings.push_back(ok("cores", cores + ", no GPU"));
  }
  if (amd > 0 && gpus == 0)
    findings.push_back(doubt(
        "GPUs", to_string(amd) + " of AMD, which the program does not use: ranks there compute on the CPU",
        "name hosts with NVIDIA's GPUs, or train on the cores"));
  return findings;
}

}  // namespace octet::launch
