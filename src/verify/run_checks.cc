#include "octet/verify/run_checks.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/config/derive.h"
#include "verify_checks.h"

namespace octet::verify {
namespace {

namespace fs = std::filesystem;

// The thread checks for the end of its work at this interval.
constexpr timespec kTurn{.tv_sec = 0, .tv_nsec = 50'000'000};

// Ignored signals stay ignored: nohup and shells with background jobs set them so.
bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

Leftovers::Leftovers() {
  ::sigemptyset(&stops_);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) {
    if (!is_ignored(signal)) ::sigaddset(&stops_, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &stops_, &before_);
  thread_ = std::thread([this] { wait_for_signals(); });
}

Leftovers::~Leftovers() {
  over_ = true;
  thread_.join();
  remove_all();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Leftovers::add(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  paths_.push_back(path);
}

void Leftovers::add_missing_folders(const std::string& folder) {
  std::error_code none;
  const std::scoped_lock lock(mutex_);
  for (auto path = fs::absolute(folder).lexically_normal();
       !fs::exists(path, none) && path.has_relative_path(); path = path.parent_path()) {
    folders_.push_back(path);
  }
}

void Leftovers::remove(const std::string& path) {
  std::error_code gone;
  const std::scoped_lock lock(mutex_);
  fs::remove_all(path, gone);
  std::erase(paths_, path);
}

// The paths stay listed: another rank may create a path again after this rank has removed it.
void Leftovers::remove_all() {
  std::error_code gone;
  const std::scoped_lock lock(mutex_);
  for (const std::string& path : paths_) fs::remove_all(path, gone);
  for (const std::string& folder : folders_) fs::remove(folder, gone);
}

void Leftovers::wait_for_signals() {
  while (!over_) {
    const int signal = ::sigtimedwait(&stops_, nullptr, &kTurn);
    if (signal < 0) continue;
    remove_all();
    // Other threads and ranks may have been creating files meanwhile.
    ::nanosleep(&kTurn, nullptr);
    remove_all();
    log::warn("stopped by signal " + std::to_string(signal) + ": what the checks had made is removed");
    ::_exit(128 + signal);
  }
}

namespace {

/// A named check.
struct Check {
  std::string name;
  std::function<std::string()> run;
};

// Copies the text of an agreed Error, which one rank has, to all ranks.
Problem shared(comm::Job& job, const Problem& problem) {
  const std::string mine = problem.what.empty() ? ""
                                                : Json{{"what", problem.what},
                                                       {"expected", problem.expected},
                                                       {"found", problem.found},
                                                       {"where", problem.where},
                                                       {"fix", problem.fix}}
                                                      .dump();
  for (const std::string& text : job.all_gather_bytes(mine)) {
    if (text.empty()) continue;
    const Json json = parse_json(text, "a problem");
    return {.what = json["what"],
            .expected = json["expected"],
            .found = json["found"],
            .where = json["where"],
            .fix = json["fix"],
            .code = problem.code};
  }
  return problem;
}

Result result_of(comm::Job& job, const Check& check) {
  Result result{.name = check.name, .found = "", .problem = std::nullopt};
  try {
    result.found = check.run();
  } catch (const Error& e) {
    // An error of this rank alone ends the job, because the others would wait.
    if (!e.problem().agreed) throw;
    result.problem = shared(job, e.problem());
  }
  return result;
}

std::vector<Check> checks_of(runtime::Session& session, const Wish& wish, Leftovers& leftovers) {
  std::vector<Check> checks{
      {"ranks", [&] { return check_ranks(session); }},
      {"sameness", [&] { return check_sameness(session, wish.resolved.config); }},
      {"device", [&] { return check_device(session, wish.unopened); }},
      {"cores", [&] { return check_cores(session); }},
      {"memory", [&] { return check_memory(session); }},
      {"limits", [&] { return check_limits(session); }},
      {"environment",
       [&] {
         const comm::Place& place = session.place();
         return check_environment(session, config::notes_of(wish.resolved, place.size, place.nodes));
       }},
      {"messages", [&] { return check_messages(session); }},
  };
  if (session.device().traits().has_transports)
    checks.push_back({"NCCL", [&] { return check_nccl(session); }});
  if (session.place().size > 1) {
    checks.push_back({"carrier", [&] { return check_carrier(session); }});
    checks.push_back({"links", [&] { return check_links(session); }});
  }
  checks.push_back({"disk", [&] { return check_disk(session, wish.folder, leftovers); }});
  checks.push_back({"checkpoint", [&] { return check_checkpoint(session, wish.folder, leftovers); }});
  checks.push_back({"FP8 step", [&] { return check_step(session); }});
  return checks;
}

}  // namespace

Summary run_checks(runtime::Session& session, const Wish& wish, Leftovers& leftovers,
                   const std::function<void(const Result&)>& tell) {
  const std::vector<Check> checks = checks_of(session, wish, leftovers);
  leftovers.add_missing_folders(wish.folder);
  Summary summary{.checks = static_cast<int>(checks.size())};
  for (const Check& check : checks) {
    const Result result = result_of(session.job(), check);
    session.job().barrier();  // no rank measures while another still runs the check before
    if (result.problem && summary.wrong++ == 0) summary.code = result.problem->code;
    if (session.prints()) tell(result);
  }
  return summary;
}

}  // namespace octet::verify
