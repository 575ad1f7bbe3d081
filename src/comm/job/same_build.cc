#include "job/same_build.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::comm {
namespace {

constexpr const char* kMark = "octet";

struct Introduction {
  std::string version, build, host;
  bool is_same_program(const Introduction& other) const {
    return version == other.version && build == other.build;
  }
};

Introduction read(const std::string& bytes) {
  const std::vector<std::string> lines = split(bytes.substr(0, bytes.find('\0')), '\n');
  if (lines.size() < 4 || lines[0] != kMark)
    return {.version = "unknown", .build = "unknown", .host = "unknown"};
  return {.version = lines[1], .build = lines[2], .host = lines[3]};
}

std::string words_of(const Introduction& one, std::size_t rank) {
  return "the program's version: " + one.version +
         (one.build.empty() ? "" : ", the program's build: " + one.build) + " (rank " + std::to_string(rank) +
         " on " + one.host + ")";
}

}  // namespace

std::string introduction(const std::string& version, const std::string& build, const std::string& host) {
  // A long host name is cut. The version and build, which decide, come before it.
  std::string bytes = std::string(kMark) + "\n" + version + "\n" + build + "\n" + host;
  bytes.resize(kIntroductionBytes - 1, '\0');
  bytes.push_back('\0');
  return bytes;
}

void require_same_build(const std::vector<std::string>& told, int rank) {
  std::vector<Introduction> all;
  for (const std::string& bytes : told) all.push_back(read(bytes));
  const auto other =
      std::ranges::find_if(all, [&](const Introduction& one) { return !one.is_same_program(all.front()); });
  if (other == all.end()) return;
  if (rank != 0) throw Error(Problem{.what = "", .code = ExitCode::usage, .agreed = true});
  throw Error(
      Problem{.what = "the ranks have different programs or settings",
              .expected = words_of(all.front(), 0),
              .found = words_of(*other, static_cast<std::size_t>(other - all.begin())),
              .fix = "start the same program on all hosts: copy this one there, or name the right path",
              .code = ExitCode::usage,
              .agreed = true});
}

}  // namespace octet::comm
