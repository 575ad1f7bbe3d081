// Chooses the serving thread: the communication thread or a waiting thread.
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "messages/message_engine.h"
#include "octet/device/cpu.h"

namespace octet::comm {
namespace {

using std::chrono::microseconds;

// Polls between two yields. A yield costs as much as a few polls.
constexpr int looks_before_yielding = 4;
// Each poll takes locks and cache lines from the thread that enqueues collectives, for which a microsecond
// matters.
constexpr auto between_looks_at_devices = microseconds(100);
// Delay until the communication thread finds work without a notification.
constexpr auto soon = microseconds(1000);
// Polls by a caller for the end of another thread's round, before the caller sleeps until that end.
constexpr int looks_at_a_round = 50;

}  // namespace

void MessageEngine::announce(bool awaited_soon) {
  std::unique_lock lock(mutex_);
  if (helped_) return;  // the serving thread checks outstanding collectives before it leaves
  const bool first = outstanding() == 1;
  only_short_ = awaited_soon && (first || only_short_);
  if (only_short_ && may_begin_here()) return begin_here(lock);
  // Earlier collectives already make the thread poll. Another poll would take the core from compute.
  if (!first && place_.nodes > 1 && crowded_.load(std::memory_order_relaxed)) return;
  signalled_ = true;
  lock.unlock();
  wake_.notify_one();
}

// No thread serves, and the communication thread will poll soon in any case.
bool MessageEngine::may_begin_here() const {
  return callers_serve() && !at_it_ && !stopping_ && nap_ends_ <= Clock::now() + soon;
}

// The caller usually waits next and then continues this collective. Waking the communication thread as well
// would take longer than the collective.
void MessageEngine::begin_here(std::unique_lock<std::mutex>& lock) {
  helped_ = true;
  lock.unlock();
  look();
  lock.lock();
  if (nap_ends_ == Clock::time_point()) signalled_ = true;  // it is about to nap and missed this one
  end_help(waiting() > 0);
}

// Called with the lock. Ends a caller's turn. `more`: the communication thread must continue at once.
void MessageEngine::end_help(bool more) {
  helped_ = false;
  leave_streams();
  if (!more && !stopping_ && !end_request_ && requests_ == 0) return;
  signalled_ = true;
  wake_.notify_one();
}

// Requests do not wait for each other: a wait for peers on one channel does not delay other channels.
bool MessageEngine::serve_requests() {
  const auto before = under_way_.size();
  for (auto& request : under_way_) {
    std::exception_ptr error;
    try {
      if (!advance(*request->operation)) continue;
    } catch (...) {
      error = std::current_exception();
    }
    request->operation.reset();
    const std::scoped_lock lock(mutex_);
    --requests_;
    request->error = std::move(error);
    request->done.store(true, std::memory_order_release);
    request = nullptr;  // the caller releases it last, including the exception
  }
  std::erase(under_way_, nullptr);
  if (under_way_.size() == before) return false;
  done_.notify_all();
  return true;
}

// Begins a turn of the communication thread. Returns false if the thread must end and no other thread serves.
bool MessageEngine::begin_turn() {
  std::unique_lock lock(mutex_);
  while (helped_) {
    nap_ends_ = Clock::now() + soon;
    wake_.wait_until(lock, nap_ends_, [this] { return !helped_ && (signalled_ || stopping_); });
    nap_ends_ = {};
  }
  at_it_ = !stopping_;
  return at_it_;
}

void MessageEngine::end_turn() {
  const std::scoped_lock lock(mutex_);
  at_it_ = false;
  leave_streams();
  if (helped_) free_.notify_one();
}

// Takes over the current work. Ends the job if a thread requested that.
void MessageEngine::take_work() {
  std::unique_lock lock(mutex_);
  ++round_;
  served_ = streams_;
  if (leaving_ > 0) done_.notify_all();
  std::ranges::move(arriving_, std::back_inserter(under_way_));
  arriving_.clear();
  if (!end_request_) return;
  const auto request = *std::exchange(end_request_, std::nullopt);
  lock.unlock();
  transport_->end_job(request.first, request.second);
  lock.lock();
  job_ended_ = true;
  done_.notify_all();
}

// Polls all work once. Returns true if something moved.
bool MessageEngine::look() {
  const std::int64_t before = progress_;
  pace_.begin_poll();
  if (TraceRing::take_request()) traces_.write();
  take_work();
  roll_->serve();
  bool worked = serve_requests();
  for (Stream* stream : served_) worked = cpu::serve(*stream) || worked;
  if (!worked && progress_ == before) return false;
  pace_.moved(Clock::now());
  return true;
}

// Called with the lock by a thread that ends its turn.
void MessageEngine::leave_streams() {
  ++round_;
  served_.clear();
  if (leaving_ > 0) done_.notify_all();
}

void MessageEngine::serve_forever() {
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // naps as long as asked for, not 50 us longer
  pace_.begin(Clock::now());
  while (begin_turn()) {
    const bool moved = look();
    const auto nap_for = moved && !only_looks() ? std::nullopt : rest();
    end_turn();
    if (nap_for)
      nap(*nap_for);
    else if (!moved)
      sched_yield();
  }
  if (finish_) transport_->finish();
}

// Runs a caller's turn as long as messages move. The communication thread continues if the caller would have
// to sleep between two polls. It also continues if the caller is done while other threads wait or collectives
// are under way that no thread waits for. `own`: 1 if the caller counts among the threads that wait for
// streams.
void MessageEngine::serve_until(const std::function<bool()>& done, int own) {
  std::unique_lock lock(mutex_);
  if (helped_) return;  // the serving thread checks for waiting threads before it leaves
  if (!callers_serve() || stopping_) {
    signalled_ = true;
    wake_.notify_one();
    return;
  }
  helped_ = true;
  for (int looks = 0; at_it_ && looks < looks_at_a_round; ++looks) {
    lock.unlock();
    sched_yield();
    lock.lock();
  }
  free_.wait(lock, [this] { return !at_it_; });
  lock.unlock();
  const auto begun = Clock::now();
  for (int idle = 0; !stopping_ && !done();) {
    idle = look() ? 0 : idle + 1;
    if (idle < looks_before_yielding) continue;
    if (Clock::now() - std::max(begun, pace_.last_progress()) >= pace_.eagerness(true)) break;
    sched_yield();
    idle = 0;
  }
  lock.lock();
  end_help(outstanding() > 0 || waiting() > (done() ? own : 0));
}

bool MessageEngine::callers_serve() const {
  return transport_->any_thread() && !follows_devices_.load(std::memory_order_relaxed);
}

// Returns the number of threads that wait for streams. Called with the lock.
int MessageEngine::waiting() const {
  int count = 0;
  for (Stream* stream : streams_) count += cpu::waiting_for(*stream);
  return count;
}

// Returns true if a thread waits for a request or a stream.
bool MessageEngine::awaited() {
  const std::scoped_lock lock(mutex_);
  return requests_ > 0 || waiting() > 0;
}

// True if no thread waits for the work that is served.
bool MessageEngine::only_looks() const {
  return outstanding() > 0 && follows_devices_.load(std::memory_order_relaxed) &&
         !carries_.load(std::memory_order_relaxed) && under_way_.empty();
}

// Returns how long the communication thread must sleep; nullopt: it polls again at once.
std::optional<microseconds> MessageEngine::rest() {
  if (only_looks()) return between_looks_at_devices;
  const auto quiet = pace_.quiet(Clock::now());
  const bool in_flight = pace_.in_flight(), idle = !in_flight && outstanding() == 0;
  if ((in_flight ? pace_.is_slow_link() : idle) && crowded_.load(std::memory_order_relaxed) && !awaited()) {
    if (!in_flight) transport_->progress();
    return pace_.nap_beside_compute(quiet);
  }
  // Waiting threads serve themselves, so this thread has nothing to poll for.
  const bool beside_callers = idle && callers_serve();
  if (quiet < pace_.eagerness(false) && !beside_callers) return std::nullopt;
  if (!in_flight) transport_->progress();
  return pace_.nap(quiet, idle, beside_callers);
}

void MessageEngine::nap(microseconds longest) {
  std::unique_lock lock(mutex_);
  nap_ends_ = Clock::now() + longest;
  wake_.wait_until(lock, nap_ends_, [this] { return signalled_ || stopping_; });
  nap_ends_ = {};
  signalled_ = false;
}

}  // namespace octet::comm
