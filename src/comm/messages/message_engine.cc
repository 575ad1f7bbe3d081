#include "messages/message_engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::comm {
namespace {

using std::chrono::microseconds;

// Polls between two yields. A yield costs as much as a few polls.
constexpr int looks_before_yielding = 4;
// Sleep between polls that only follow the progress of devices. A poll takes locks and cache lines from the
// thread that enqueues collectives and delays it.
constexpr auto between_looks_at_devices = microseconds(100);
// Within this time, the communication thread polls without a notification.
constexpr auto soon = microseconds(1000);
// A caller that waits for the end of another thread's round polls this often. Then it sleeps.
constexpr int looks_at_a_round = 50;

// If the thread is stuck and cannot abort the job, another thread aborts it.
constexpr auto abort_patience = std::chrono::seconds(2);

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
      pace_ = ServingPace(place_.nodes > 1);
      pace_.begin(Clock::now());  // callers read it as soon as ready_ is set
      is_process_ = transport_->is_process();
      control_ = open_lane(Queue::control);
      end_ = open_lane(Queue::end);
      roll_lane_ = open_lane(Queue::roll);
      watch_.emplace(*transport_, roll_lane_);
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

void MessageEngine::attach(Stream& gather, Stream& reduce, Serves serves) {
  if (serves != Serves::messages) follows_devices_ = true;
  if (serves != Serves::looks) carries_ = true;
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
  lock.unlock();  // threads that start to wait take it
  for (Stream* stream : {&gather, &reduce}) cpu::on_wait(*stream, {});
}

bool MessageEngine::advance(Operation& operation) {
  pace_.found_in_flight();
  if (!operation.moved) watch_->began(operation);
  try {
    const bool finished = operation.steps.resume();
    const std::int64_t completed = operation.call.completed;
    if (finished || std::exchange(operation.seen, completed) != completed) {
      ++progress_;
      watch_->moved(operation, finished);
    } else {
      watch_->waits(operation);
    }
    return finished;
  } catch (const std::exception& error) {
    if (goes_on_without(error)) throw;
    const auto* ours = dynamic_cast<const Error*>(&error);
    // Failed allocations of threads and memory have messages of Octet.
    const std::optional<Problem> problem = problem_of(error);
    transport_->end_job(operation.what + " on rank " + std::to_string(place_.rank) + " (" + place_.host +
                            ") failed: " + (problem ? Error(*problem).what() : error.what()),
                        static_cast<int>(ours ? ours->code() : ExitCode::failure));
    throw;
  }
}

// Kernels that wait for another GPU do not end by themselves, so ranks with GPUs end with their job.
bool MessageEngine::goes_on_without(const std::exception& error) {
  if (dynamic_cast<const RanksLost*>(&error) == nullptr || follows_devices_) return false;
  if (!others_lost_ && !transport_->let_go()) return false;
  others_lost_ = true;
  return true;
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

// Decides which thread serves the messages, the communication thread or a waiting thread, and how long the
// communication thread sleeps between polls.

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

// Returns true if no thread serves and the communication thread will poll soon without a notification.
bool MessageEngine::may_begin_here() const {
  return callers_serve() && !at_it_ && !stopping_ && nap_ends_ <= Clock::now() + soon;
}

// Starts a collective on the calling thread. The caller usually waits for the collective next, and then
// serves it. To wake the communication thread would take longer than the collective.
void MessageEngine::begin_here(std::unique_lock<std::mutex>& lock) {
  helped_ = true;
  lock.unlock();
  look();
  lock.lock();
  if (nap_ends_ == Clock::time_point()) signalled_ = true;  // it is about to sleep and has not seen this one
  end_help(waiting() > 0);
}

// Ends the turn of a caller that serves. Wakes the communication thread if `more` is true or if other work is
// left. Call it with the lock.
void MessageEngine::end_help(bool more) {
  helped_ = false;
  leave_streams();
  if (!more && !stopping_ && !end_request_ && requests_ == 0) return;
  signalled_ = true;
  wake_.notify_one();
}

// Advances all control-plane requests. Returns true if one of them is done. Requests are independent: a
// request that waits for peers does not delay requests on other channels.
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

// Takes the streams and requests that the next polls serve. Ends the job if a thread requested that.
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

// Polls all work once. Returns true if any of it progressed.
bool MessageEngine::look() {
  const std::int64_t before = progress_;
  pace_.begin_poll();
  take_work();
  watch_->serve();
  bool worked = serve_requests();
  for (Stream* stream : served_) worked = cpu::serve(*stream) || worked;
  if (!worked && progress_ == before) return false;
  pace_.moved(Clock::now());
  return true;
}

// Releases the streams that the calling thread served. Call it with the lock at the end of a turn.
void MessageEngine::leave_streams() {
  ++round_;
  served_.clear();
  if (leaving_ > 0) done_.notify_all();
}

void MessageEngine::serve_forever() {
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // sleeps end on time, not 50 us later
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

// Serves on the calling thread until done() is true, or until nothing moved for eagerness(true). Then wakes
// the communication thread if other threads wait or collectives are outstanding. `own`: 1 if waiting() counts
// the caller, otherwise 0.
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

// Returns true if devices carry all bytes and no thread waits: a poll then only follows their progress.
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
