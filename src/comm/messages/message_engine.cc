#include "messages/message_engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "job/control.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::comm {
namespace {

// If the thread is stuck and cannot abort the job, another thread aborts it.
constexpr auto abort_patience = std::chrono::seconds(2);
// How long ranks may take to answer a roll call (a quarter of the timeout between these limits), and how long
// a rank waits for a lower rank to end the job.
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
      pace_ = ServingPace(place_.nodes > 1);
      pace_.begin(Clock::now());  // callers read it as soon as ready_ is set
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
  const std::int64_t before = operation.call.completed;
  pace_.found_in_flight();
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
      const double waited = seconds_since(*operation.moved);
      if (waited > limit) look_for_the_missing(operation, waited);
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

void MessageEngine::watch(const WatchOptions& options) {
  traces_.open(options.trace_folder, place_.rank);
  timeout_seconds_ = options.timeout_seconds;
}

// Handles a collective without progress. Before this rank ends the job, it queries the other ranks, so that
// the message names the missing ranks and not the waiting ranks. If a lower rank also waits, that rank prints
// first, so one message is printed.
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
      // All ranks arrived during the query. If devices carry the bytes, nothing else shows progress. The
      // collective gets the whole timeout once more, and then counts as stuck.
      missing.ranks = roll_->still_in();
      roll_->forget();
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

}  // namespace octet::comm
