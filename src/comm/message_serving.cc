// Who serves, the communication thread or a thread that waits, and how long one that has nothing to do
// sleeps.
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "message_engine.h"
#include "octet/device/cpu.h"

namespace octet::comm {
namespace {

using std::chrono::microseconds;

// How long the thread asks again and again, giving its core away in between, before it sleeps between two
// looks. Messages on their way need it within microseconds; a peer that is still computing does not.
constexpr auto eager_in_flight = microseconds(1000);
constexpr auto eager_idle = microseconds(100);
// A caller has nothing else to do, and a long message moves for as long before it is through.
constexpr auto eager_caller = microseconds(20000);
// Looks between which it does not give its core away, which costs as much as a few of them.
constexpr int looks_before_yielding = 4;
constexpr auto shortest_nap_in_flight = microseconds(50);
constexpr auto longest_nap_in_flight = microseconds(400);
constexpr auto slowest_pace = microseconds(20000);  // a peer that computes for long says nothing of the link
constexpr auto shortest_idle_nap = microseconds(100);
constexpr auto longest_waiting_nap = microseconds(200);  // a collective waits for its data to be computed
constexpr auto longest_idle_nap = microseconds(10000);
// Where those who wait serve themselves, the thread is there for what nobody waits for.
constexpr auto shortest_nap_beside_callers = microseconds(1000);
// Each look takes locks and cache lines from the thread that enqueues collectives, to which a microsecond
// counts.
constexpr auto between_looks_at_devices = microseconds(100);
// How soon the communication thread finds what nobody told it of.
constexpr auto soon = microseconds(1000);
// Looks of a caller at another's round before it sleeps until that is over.
constexpr int looks_at_a_round = 50;
// Where compute takes all cores and waits for nothing, a look at messages takes a core from it, and much of
// that core's cache, for 50 us and more. The kernel moves what it was given meanwhile.
constexpr auto shortest_nap_beside_compute = microseconds(500);
constexpr auto longest_nap_beside_compute = microseconds(5000);

}  // namespace

void MessageEngine::announce(bool awaited_soon) {
  std::unique_lock lock(mutex_);
  if (helped_) return;  // whoever serves looks at what is outstanding before it leaves
  const bool first = outstanding() == 1;
  only_short_ = awaited_soon && (first || only_short_);
  if (only_short_ && may_begin_here()) return begin_here(lock);
  // What is under way already has the thread look; one more look would take the core from compute.
  if (!first && place_.nodes > 1 && crowded_.load(std::memory_order_relaxed)) return;
  signalled_ = true;
  lock.unlock();
  wake_.notify_one();
}

// Nobody serves, and the communication thread will look soon in any case.
bool MessageEngine::may_begin_here() const {
  return callers_serve() && !at_it_ && !stopping_ && nap_ends_ <= Clock::now() + soon;
}

// What is begun here goes on when the caller waits for it, as it mostly does next: to wake the communication
// thread as well would take longer than the collective.
void MessageEngine::begin_here(std::unique_lock<std::mutex>& lock) {
  helped_ = true;
  lock.unlock();
  look();
  lock.lock();
  if (nap_ends_ == Clock::time_point()) signalled_ = true;  // it is about to nap, and did not see this one
  end_help(waiting() > 0);
}

// With the lock: a caller's turn ends. `more`: the communication thread is to go on at once.
void MessageEngine::end_help(bool more) {
  helped_ = false;
  leave_streams();
  if (!more && !stopping_ && !end_request_ && requests_ == 0) return;
  signalled_ = true;
  wake_.notify_one();
}

// None waits for another: a thread that waits for its peers on one channel holds up nobody on others.
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
    request = nullptr;  // the caller is the last to hold it, exception and all
  }
  std::erase(under_way_, nullptr);
  if (under_way_.size() == before) return false;
  done_.notify_all();
  return true;
}

// The communication thread's turn: false when it is to end, and nobody else serves any more.
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

// What there is to serve, as of now. Ends the job where somebody asked for that.
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

// One look at everything that is to be served: true when something moved.
bool MessageEngine::look() {
  const std::int64_t before = progress_;
  in_flight_ = false;
  if (TraceRing::take_request()) traces_.write();
  take_work();
  roll_->serve();
  bool worked = serve_requests();
  for (Stream* stream : served_) worked = cpu::serve(*stream) || worked;
  if (!worked && progress_ == before) return false;
  const auto now = Clock::now();
  if (in_flight_) pace_ += (std::min<Clock::duration>(now - last_progress_, slowest_pace) - pace_) / 4;
  last_progress_ = now;
  return true;
}

// With the lock, by a thread that ends its turn.
void MessageEngine::leave_streams() {
  ++round_;
  served_.clear();
  if (leaving_ > 0) done_.notify_all();
}

void MessageEngine::serve_forever() {
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // naps as long as asked for, not 50 us longer
  last_progress_ = Clock::now();
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

// A caller's turn, as long as messages move. Where it would have to sleep between two looks, and when it has
// what it waits for while others wait, or collectives are under way that nobody waits for, the communication
// thread goes on. `own`: 1 when the caller counts among those who wait for streams.
void MessageEngine::serve_until(const std::function<bool()>& done, int own) {
  std::unique_lock lock(mutex_);
  if (helped_) return;  // whoever serves looks at who waits before it leaves
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
    if (Clock::now() - std::max(begun, last_progress_) >= eagerness(true)) break;
    sched_yield();
    idle = 0;
  }
  lock.lock();
  end_help(outstanding() > 0 || waiting() > (done() ? own : 0));
}

bool MessageEngine::callers_serve() const {
  return transport_->any_thread() && !follows_devices_.load(std::memory_order_relaxed);
}

// Threads that wait for streams. Called with the lock.
int MessageEngine::waiting() const {
  int count = 0;
  for (Stream* stream : streams_) count += cpu::waiting_for(*stream);
  return count;
}

// Somebody waits until something of ours is done.
bool MessageEngine::awaited() {
  const std::scoped_lock lock(mutex_);
  return requests_ > 0 || waiting() > 0;
}

// Where messages to other nodes take longer than that, asking for the next at once only takes the core from
// compute. Inside a node it is a peer that still computes, and then its messages come at once.
bool MessageEngine::slow_link() const {
  return place_.nodes > 1 && pace_ > eager_in_flight;
}

// How long to ask again and again while nothing moves.
MessageEngine::Clock::duration MessageEngine::eagerness(bool caller) const {
  if (!in_flight_ || slow_link()) return eager_idle;
  return caller ? eager_caller : eager_in_flight;
}

// Nobody waits for what it serves now.
bool MessageEngine::only_looks() const {
  return outstanding() > 0 && follows_devices_.load(std::memory_order_relaxed) &&
         !carries_.load(std::memory_order_relaxed) && under_way_.empty();
}

// How long the communication thread is to sleep now; none: it asks again.
std::optional<microseconds> MessageEngine::rest() {
  if (only_looks()) return between_looks_at_devices;
  const auto quiet = std::chrono::duration_cast<microseconds>(Clock::now() - last_progress_);
  const bool idle = !in_flight_ && outstanding() == 0;
  if ((in_flight_ ? slow_link() : idle) && crowded_.load(std::memory_order_relaxed) && !awaited()) {
    if (!in_flight_) transport_->progress();
    const auto pace = std::chrono::duration_cast<microseconds>(pace_);
    return std::clamp(std::max(quiet, pace) / 4, shortest_nap_beside_compute, longest_nap_beside_compute);
  }
  // Whoever waits serves itself, so that there is nothing to look for.
  const bool beside_callers = idle && callers_serve();
  if (quiet < eagerness(false) && !beside_callers) return std::nullopt;
  // The longer nothing happens, the longer the naps; whoever enqueues a collective ends them. What else
  // becomes possible (an event recorded elsewhere, a record after the last collective) is not announced, so
  // naps stay short.
  if (in_flight_) return std::clamp(quiet / 16, shortest_nap_in_flight, longest_nap_in_flight);
  transport_->progress();
  return std::clamp(quiet / 16, beside_callers ? shortest_nap_beside_callers : shortest_idle_nap,
                    idle ? longest_idle_nap : longest_waiting_nap);
}

void MessageEngine::nap(microseconds longest) {
  std::unique_lock lock(mutex_);
  nap_ends_ = Clock::now() + longest;
  wake_.wait_until(lock, nap_ends_, [this] { return signalled_ || stopping_; });
  nap_ends_ = {};
  signalled_ = false;
}

}  // namespace octet::comm
