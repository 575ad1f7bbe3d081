#include "job/trace.h"

#include <atomic>
#include <csignal>

#include "octet/base/clock.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"

namespace octet::comm {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

double TraceRing::now() const {
  return seconds_since(start_);
}

void TraceRing::open(const std::string& folder, int rank) {
  {
    const std::scoped_lock lock(mutex_);
    folder_ = folder;
    rank_ = rank;
  }
  if (folder.empty()) return;
  struct sigaction action {};
  action.sa_handler = [](int) { requested.store(true); };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGQUIT, &action, nullptr);
}

bool TraceRing::take_request() {
  return requested.load(std::memory_order_relaxed) && requested.exchange(false);
}

std::uint64_t TraceRing::posted(Trace trace) {
  trace.posted = now();
  const std::scoped_lock lock(mutex_);
  if (ring_.size() < length) {
    ring_.push_back(std::move(trace));
  } else {
    ring_[count_ % length] = std::move(trace);
  }
  return count_++;
}

void TraceRing::begun(std::uint64_t which) {
  const double time = now();
  const std::scoped_lock lock(mutex_);
  if (which + length >= count_ && which < count_) ring_[which % length].begun = time;
}

void TraceRing::done(std::uint64_t which) {
  const double time = now();
  const std::scoped_lock lock(mutex_);
  if (which + length >= count_ && which < count_) ring_[which % length].done = time;
}

std::string TraceRing::to_json() const {
  const std::scoped_lock lock(mutex_);
  Json all = Json::array();
  for (std::uint64_t i = count_ > length ? count_ - length : 0; i < count_; ++i) {
    const Trace& t = ring_[i % length];
    Json row{{"kind", name_of(t.kind)}, {"name", t.name}, {"queue", t.queue},  {"sequence", t.sequence},
             {"bytes", t.bytes},        {"rank", rank_},  {"posted", t.posted}};
    row["begun"] = t.begun < 0 ? Json() : Json(t.begun);
    row["done"] = t.done < 0 ? Json() : Json(t.done);
    all.push_back(std::move(row));
  }
  return all.dump(1);
}

void TraceRing::write() const {
  if (folder_.empty()) return;
  const std::string path = folder_ + "/collectives-rank" + std::to_string(rank_) + ".json";
  try {
    write_file_atomically(path, to_json() + "\n");
  } catch (const std::exception& error) {
    log::warn("the trace of collectives was not written: " + std::string(error.what()));
  }
}

}  // namespace octet::comm
