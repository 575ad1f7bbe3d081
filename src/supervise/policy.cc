#include "octet/supervise/policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "octet/base/error.h"

namespace octet::supervise {
namespace {

// The same signal after the same step this many times in a row is no accident.
constexpr int kSameEnds = 3;
constexpr int kUnknownFailures = 3;  // in a row without progress; failures with code 1 mostly recur

// Exit codes of a shell for a program that cannot be started.
constexpr int kNotExecutable = 126, kNotFound = 127;

bool is_final(int code) {
  return code == static_cast<int>(ExitCode::usage) ||
         code == static_cast<int>(ExitCode::no_valid_checkpoint) || code == kNotExecutable ||
         code == kNotFound;
}

// Whether an exit code has a known cause that may be temporary.
bool may_pass(int code) {
  if (code > 128) return true;
  return code >= static_cast<int>(ExitCode::busy) && code <= static_cast<int>(ExitCode::unsaved);
}

}  // namespace

std::string meaning_of(int code) {
  switch (code) {
    case static_cast<int>(ExitCode::ok):
      return "the run is complete";
    case static_cast<int>(ExitCode::usage):
      return "configuration, command line, model or data cannot be used";
    case static_cast<int>(ExitCode::busy):
      return "another run uses the output folder";
    case static_cast<int>(ExitCode::storage):
      return "a disk is full or fails";
    case static_cast<int>(ExitCode::hang):
      return "something did not answer, or a host was lost";
    case static_cast<int>(ExitCode::preempted):
      return "stopped as asked";
    case static_cast<int>(ExitCode::no_valid_checkpoint):
      return "there is no valid checkpoint";
    case static_cast<int>(ExitCode::unsaved):
      return "what was trained could not be saved";
    case kNotExecutable:
    case kNotFound:
      return "the program cannot be started";
    default:
      break;
  }
  if (code > 128) return "signal " + std::to_string(code - 128) + " ended a process of the job";
  return "the run failed";
}

Decision Policy::decide(const Ended& ended) {
  if (ended.finished) return {.next = Next::end, .code = 0};
  // The record of the run counts more than exit code 0 of the launcher.
  const int code = ended.code == 0 && ended.unfinished ? static_cast<int>(ExitCode::failure) : ended.code;
  if (code == 0 || ended.asked) return {.next = Next::end, .code = code};
  if (is_final(code))
    return {.next = Next::end,
            .code = code,
            .why = "another start would fail in the same way: " + meaning_of(code)};
  const bool same = same_end_ > 0 && code == last_.code && ended.step == last_.step && !ended.progressed;
  same_end_ = code <= 128 ? 0 : same ? same_end_ + 1 : 1;
  last_ = ended;
  last_.code = code;
  if (same_end_ >= kSameEnds) {
    return {.next = Next::end,
            .code = code,
            .why = meaning_of(code) + " " + std::to_string(same_end_) +
                   " times in a row after the same step (" +
                   std::to_string(std::max<std::int64_t>(0, ended.step)) +
                   "): look for its cause in the messages above and in the limits (ulimit -a)"};
  }
  without_progress_ = ended.progressed ? 0 : without_progress_ + 1;
  const int most = may_pass(code) ? options_.most_starts : std::min(options_.most_starts, kUnknownFailures);
  if (without_progress_ >= most) {
    return {.next = Next::end,
            .code = code,
            .why = std::to_string(without_progress_) + " starts in a row ended without a newer checkpoint"};
  }
  if (without_progress_ == 0) return {.next = Next::start};
  const double wait = options_.first_wait * std::exp2(without_progress_ - 1);
  return {.next = Next::start, .wait = std::min(wait, options_.longest_wait)};
}

void Goodput::begin(std::int64_t step) {
  while (!parts_.empty() && parts_.back().first >= step) parts_.pop_back();
  if (!parts_.empty() && parts_.back().last > step) {
    Part& cut = parts_.back();
    cut.seconds *= static_cast<double>(step - cut.first) / static_cast<double>(cut.last - cut.first);
    cut.last = step;
  }
  parts_.push_back({.first = step, .last = step});
}

void Goodput::reach(std::int64_t step, double seconds) {
  if (parts_.empty()) begin(0);
  parts_.back().last = std::max(step, parts_.back().first);
  parts_.back().seconds = std::max(0.0, seconds);
}

double Goodput::seconds() const {
  return std::accumulate(parts_.begin(), parts_.end(), 0.0,
                         [](double sum, const Part& part) { return sum + part.seconds; });
}

}  // namespace octet::supervise
