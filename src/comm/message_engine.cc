#include "message_engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "control.h"
#include "octet/base/error.h"
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
// How soon the communication thread finds what nobody told it of.
constexpr auto soon = microseconds(1000);
// Looks of a caller at another's round before it sleeps until that is over.
constexpr int looks_at_a_round = 50;
// Where compute takes all cores and waits for nothing, a look at messages takes a core from it, and much of
// that core's cache, for 50 us and more. The kernel moves what it was given meanwhile.
constexpr auto shortest_nap_beside_compute = microseconds(500);
constexpr auto longest_nap_beside_compute = microseconds(5000);
// An abort that the thread cannot carry out, because it is stuck, is carried out without it.
constexpr auto abort_patience = std::chrono::seconds(2);
// How long ranks may take to say that they are there (a quarter of the time-out between these), and how long
// a rank waits for a lower one to end the job.
constexpr std::chrono::duration<double> shortest_roll_call(2);
constexpr std::chrono::duration<double> longest_roll_call(10);
constexpr std::chrono::duration<double> courtesy(3);

// Signals belong to the program's own threads; the transport's helper threads inherit the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

MessageEngine::MessageEngine(std::function<std::unique_ptr<Transport>()> make_transport) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this, make = std::move(make_transport)] {
    try {
      transport_ = make();
      place_ = transport_->place();
      is_process_ = transport_->is_process();
      control_ = open_lane(Queue::control);
      end_ = open_lane(Queue::end);
      roll_lane_ = open_lane(Queue::roll);
      roll_.emplace(*transport_, roll_lane_);
    } catch (...) {
      start_error_ = std::current_exception();
    }
    {
      const std::scoped_lock lock(mutex_);
      ready_ = true;
    }
    done_.notify_all();
    if (!start_error_) serve_forever();
    transport_.reset();
  });
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return ready_; });
  if (start_error_) {
    lock.unlock();
    thread_.join();
    std::rethrow_exception(start_error_);
  }
}

Lane MessageEngine::open_lane(Queue queue) {
  const std::vector<int> all = all_ranks(place_.size);
  return {.id = transport_->open_lane(queue, all),
          .queue = queue,
          .name = name_of(queue),
          .place = place_,
          .ranks = all};
}

MessageEngine::~MessageEngine() {
  stop();
}

void MessageEngine::attach(Stream& gather, Stream& reduce, bool follows_devices) {
  if (follows_devices) follows_devices_ = true;
  cpu_set_t cores;
  const bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
  if (known) pthread_setaffinity_np(thread_.native_handle(), sizeof cores, &cores);
  for (Stream* stream : {&gather, &reduce}) {
    cpu::on_wait(*stream, [this](const std::function<bool()>& done) { serve_until(done, 1); });
  }
  const std::scoped_lock lock(mutex_);
  crowded_ = place_.local_size * cpu::op_threads() >= cpu::allowed_cores();
  streams_.insert(streams_.end(), {&gather, &reduce});
}

void MessageEngine::detach(Stream& gather, Stream& reduce) {
  std::unique_lock lock(mutex_);
  std::erase(streams_, &gather);
  std::erase(streams_, &reduce);
  ++leaving_;
  done_.wait(lock, [this, round = round_] { return (!at_it_ && !helped_) || round_ != round; });
  --leaving_;
  lock.unlock();  // those who begin to wait take it
  for (Stream* stream : {&gather, &reduce}) cpu::on_wait(*stream, {});
}

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

bool MessageEngine::advance(Operation& operation) {
  const std::int64_t before = operation.call.completed;
  in_flight_ = true;
  if (!operation.moved) {
    operation.moved = Clock::now();
    traces_.begun(operation.traced);
    roll_->began(operation.call, operation.what);
  }
  try {
    const bool finished = operation.steps.resume();
    if (finished || operation.call.completed != before) {
      ++progress_;
      operation.moved = Clock::now();
      operation.all_came = false;
      if (roll_->asks_for(operation.call)) roll_->forget();
      if (finished) {
        traces_.done(operation.traced);
        roll_->ended(operation.call);
      }
    } else if (const double limit = timeout_seconds_.load(std::memory_order_relaxed); limit > 0) {
      const double waited = std::chrono::duration<double>(Clock::now() - *operation.moved).count();
      if (waited > limit) look_for_the_missing(operation, waited);
    }
    return finished;
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const Error*>(&error);
    transport_->end_job(operation.what + " on rank " + std::to_string(place_.rank) + " (" + place_.host +
                            ") failed: " + error.what(),
                        static_cast<int>(ours ? ours->code() : ExitCode::failure));
    throw;
  }
}

void MessageEngine::watch(const WatchOptions& options) {
  traces_.open(options.trace_folder, place_.rank);
  timeout_seconds_ = options.timeout_seconds;
}

// Nothing has moved for too long. Before this rank ends the job it asks who is there, so that it names those
// who are missing and not those who wait for them like itself; and where a lower rank waits too, it lets that
// one speak first, so that one message is printed.
void MessageEngine::look_for_the_missing(Operation& operation, double seconds) {
  if (!roll_->asks_for(operation.call)) {
    if (roll_->asking()) return;
    traces_.write();
    roll_->ask(operation.call);
    return;
  }
  const std::chrono::duration<double> patience(
      std::clamp(timeout_seconds_ / 4, shortest_roll_call.count(), longest_roll_call.count()));
  if (!roll_->heard(patience)) return;
  RollCall::Missing missing = roll_->missing();
  if (missing.lower_waits && roll_->since_asked() < patience + courtesy) return;
  std::string found;
  if (missing.ranks.empty()) {
    missing.ranks = operation.call.missing_ranks();
    found = "all ranks take part, but messages are missing from ";
    if (missing.ranks.empty()) {
      // All came while we asked. Where devices carry the bytes nothing else shows that it moves: it has the
      // whole time once more, and then it is stuck.
      missing.ranks = roll_->still_in();
      roll_->forget();
      operation.moved = Clock::now();
      if (!std::exchange(operation.all_came, true)) return;
      found = "all ranks take part, but it does not come to its end on ";
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
              .fix = "look at what those ranks do or printed; raise ddp_timeout if they are only slow",
              .code = ExitCode::hang});
}

bool MessageEngine::run(std::shared_ptr<Operation> operation, std::optional<Clock::time_point> deadline) {
  auto request = std::make_shared<Request>();
  request->operation = std::move(operation);
  const auto done = [&request] { return request->done.load(std::memory_order_acquire); };
  {
    const std::scoped_lock lock(mutex_);
    arriving_.push_back(request);
    ++requests_;
  }
  serve_until([&] { return done() || (deadline && Clock::now() >= *deadline); }, 0);
  std::unique_lock lock(mutex_);
  if (!deadline) {
    done_.wait(lock, done);
  } else if (!done_.wait_until(lock, *deadline, done)) {
    return false;
  }
  if (request->error) std::rethrow_exception(request->error);
  return true;
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
    const auto nap_for = moved ? std::nullopt : rest();
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

// How long the communication thread is to sleep now; none: it asks again.
std::optional<microseconds> MessageEngine::rest() {
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

void MessageEngine::shutdown(std::optional<std::chrono::seconds> patience) {
  if (stopped()) return;
  // The operation keeps alive what its coroutine writes to.
  struct Agreement : Operation {
    std::vector<std::string> all;
  };
  auto agreement = std::make_shared<Agreement>();
  agreement->what = "the agreement to end";
  agreement->call.transport = transport_.get();
  agreement->call.lane = &end_;
  agreement->call.tag = tag_of(Kind::control, 0);
  agreement->steps = all_gather_bytes_steps(agreement->call, "", &agreement->all);
  std::optional<Clock::time_point> deadline;
  if (patience) deadline = Clock::now() + *patience;
  end_thread(run(agreement, deadline));
}

void MessageEngine::stop() {
  if (!stopped()) end_thread(false);
}

void MessageEngine::end_job(const std::string& message, int code) {
  if (is_process_ && stopped()) _exit(code);
  std::unique_lock lock(mutex_);
  end_request_ = {message, code};
  signalled_ = true;
  wake_.notify_one();
  const bool ended = done_.wait_for(lock, abort_patience, [this] { return job_ended_; });
  if (is_process_ && !ended) _exit(code);
}

void MessageEngine::end_thread(bool finish) {
  {
    const std::scoped_lock lock(mutex_);
    finish_ = finish;
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace octet::comm
