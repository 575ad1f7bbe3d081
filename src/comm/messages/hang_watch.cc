#include "messages/hang_watch.h"

#include <algorithm>
#include <utility>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

// How long ranks may take to answer a roll call (a quarter of the timeout between these limits), and how long
// a rank waits for a lower rank to end the job.
constexpr std::chrono::duration<double> shortest_roll_call(2);
constexpr std::chrono::duration<double> longest_roll_call(10);
constexpr std::chrono::duration<double> courtesy(3);

}  // namespace

HangWatch::HangWatch(Transport& transport, const Lane& lane)
    : roll_(transport, lane), rank_(transport.place().rank) {}

void HangWatch::set(const WatchOptions& options) {
  traces_.open(options.trace_folder, rank_);
  timeout_seconds_ = options.timeout_seconds;
}

void HangWatch::began(Operation& operation) {
  operation.moved = Clock::now();
  traces_.begun(operation.traced);
  roll_.began(operation.call, operation.what);
}

void HangWatch::moved(Operation& operation, bool finished) {
  operation.moved = Clock::now();
  operation.all_came = false;
  if (roll_.asks_for(operation.call)) roll_.forget();
  if (!finished) return;
  traces_.done(operation.traced);
  roll_.ended(operation.call);
}

void HangWatch::waits(Operation& operation) {
  const double limit = timeout_seconds_.load(std::memory_order_relaxed);
  if (limit <= 0) return;
  const double waited = seconds_since(*operation.moved);
  if (waited > limit) look_for_the_missing(operation, waited);
}

void HangWatch::serve() {
  if (TraceRing::take_request()) traces_.write();
  roll_.serve();
}

// Handles a collective without progress. Before this rank ends the job, it queries the other ranks, so that
// the message names the missing ranks and not the waiting ranks. If a lower rank also waits, that rank prints
// first, so one message is printed.
void HangWatch::look_for_the_missing(Operation& operation, double seconds) {
  if (!roll_.asks_for(operation.call)) {
    if (roll_.asking()) return;
    traces_.write();
    roll_.ask(operation.call);
    return;
  }
  const std::chrono::duration<double> patience(
      std::clamp(timeout_seconds_ / 4, shortest_roll_call.count(), longest_roll_call.count()));
  if (!roll_.heard(patience)) return;
  RollCall::Missing missing = roll_.missing();
  if (missing.lower_waits && roll_.since_asked() < patience + courtesy) return;
  std::string found;
  if (missing.ranks.empty()) {
    missing.ranks = operation.call.missing_ranks();
    found = "all ranks take part, but messages are missing from ";
    if (missing.ranks.empty()) {
      // All ranks arrived during the query. If devices carry the bytes, nothing else shows progress. The
      // collective gets the whole timeout once more, and then counts as stuck.
      missing.ranks = roll_.still_in();
      roll_.forget();
      operation.moved = Clock::now();
      if (!std::exchange(operation.all_came, true)) return;
      found = "all ranks take part, but it does not finish on ";
    }
  } else {
    found = "nothing from ";
  }
  found += missing.ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < missing.ranks.size(); ++i) {
    found += (i == 0 ? "" : ", ") + std::to_string(missing.ranks[i]);
  }
  if (!missing.words.empty()) found += " (" + missing.words + ")";
  throw Error(
      Problem{.what = operation.what + ": no message came or left for " +
                      std::to_string(static_cast<int>(seconds)) + " s",
              .expected = "every rank to take part within ddp_timeout",
              .found = found,
              .where = std::to_string(operation.bytes) + " bytes, queue " + operation.call.lane->name +
                       (operation.call.paired ? "" : ", number " + std::to_string(operation.call.sequence)),
              .fix = "look at these ranks and at their output; raise ddp_timeout if they are only slow",
              .code = ExitCode::hang});
}

}  // namespace octet::comm
