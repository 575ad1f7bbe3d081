// What makes a rank's calls of the transport: serves the streams of collectives and runs control-plane calls.
// One thread serves at a time. It is the communication thread, unless somebody waits: a thread that begins to
// wait for a stream or a control-plane call serves until it has what it waits for, since handing over to
// another thread and back costs more than a short collective. Where it would sleep between two looks, it
// leaves that to the communication thread, and sleeps until it is told.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "messages.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "roll_call.h"
#include "steps.h"
#include "trace.h"

namespace octet::comm {

/// One collective under way. `call` comes before `steps`, which refer to it.
struct Operation {
  std::string what;        ///< for messages: "reduce_scatter 'block 3'"
  std::int64_t bytes = 0;  ///< what it is about: of one slice, or of the whole where there are no slices
  std::uint64_t traced = 0;
  Call call;
  Steps steps;
  std::optional<std::chrono::steady_clock::time_point> moved;  ///< when it began, or last moved
  bool all_came = false;  ///< all ranks were found to take part, and nothing has moved since
};

/// What there is to do for a group's streams.
enum class Serves {
  messages,     ///< of ranks on CPUs: streams wait for it
  for_devices,  ///< messages that streams of devices wait for
  looks,        ///< devices carry the bytes, and it only looks how far they are: nobody waits for it
};

class MessageEngine {
 public:
  /// Starts the thread, which makes the transport. Rethrows what that throws.
  explicit MessageEngine(std::function<std::unique_ptr<Transport>()> make_transport);
  /// Stops, unless shutdown() or stop() came before.
  ~MessageEngine();

  const Place& place() const { return place_; }
  Transport& transport() { return *transport_; }
  /// Of all ranks, for what the main threads tell each other.
  const Lane& control() const { return control_; }
  bool is_process() const { return is_process_; }
  /// True once the transport has let go of ranks that ended.
  bool others_lost() const { return others_lost_; }

  /// Serves these streams from now on. The thread takes over the caller's affinity, and learns from the
  /// number of threads that its ops use whether compute leaves it a core. From the first ranks with devices
  /// on it makes all calls itself.
  void attach(Stream& gather, Stream& reduce, Serves serves = Serves::messages);
  /// Ends serving these. What is still queued stays where it is.
  void detach(Stream& gather, Stream& reduce);
  /// Counts collectives that are queued or under way, which makes the thread look more often.
  void begin_collective() { outstanding_.fetch_add(1, std::memory_order_acq_rel); }
  void end_collective() { outstanding_.fetch_sub(1, std::memory_order_release); }
  /// A collective in which nothing moves for so long ends the job with exit code 75.
  void watch(const WatchOptions& options);
  TraceRing& traces() { return traces_; }
  /// A collective was put on a stream. `awaited_soon`: it is short, so that whoever enqueued it mostly waits
  /// for it next.
  void announce(bool awaited_soon);
  int outstanding() const { return outstanding_.load(std::memory_order_acquire); }

  /// Advances an operation on behalf of a served stream: true when finished. An error ends the job.
  bool advance(Operation& operation);
  /// Runs a control-plane operation and waits for it. False when `deadline` passed first; the operation then
  /// lives on in the engine. Rethrows its errors. Operations of several threads run beside each other, so
  /// they are of different lanes.
  bool run(std::shared_ptr<Operation> operation,
           std::optional<std::chrono::steady_clock::time_point> deadline = {});

  /// Agrees with all ranks to end, and ends the transport. When they do not agree within `patience`, stops.
  void shutdown(std::optional<std::chrono::seconds> patience);
  /// Ends the thread without the other ranks. Nothing moves after it.
  void stop();
  bool stopped() const { return !thread_.joinable(); }
  /// Ends the job. Processes: does not return.
  void end_job(const std::string& message, int code);

 private:
  /// What a thread of the program asks for, and sleeps until it is done.
  struct Request {
    std::shared_ptr<Operation> operation;
    std::atomic<bool> done = false;
    std::exception_ptr error;  // written before `done`
  };

  using Clock = std::chrono::steady_clock;

  Lane open_lane(Queue queue);
  void serve_forever();
  bool begin_turn();
  void end_turn();
  bool look();
  void take_work();
  bool serve_requests();
  void leave_streams();
  void serve_until(const std::function<bool()>& done, int own);
  bool callers_serve() const;
  bool may_begin_here() const;
  void begin_here(std::unique_lock<std::mutex>& lock);
  void end_help(bool more);
  int waiting() const;
  bool awaited();
  bool only_looks() const;
  bool slow_link() const;
  Clock::duration eagerness(bool caller) const;
  std::optional<std::chrono::microseconds> rest();
  void nap(std::chrono::microseconds longest);
  void end_thread(bool finish);
  void look_for_the_missing(Operation& operation, double seconds);
  bool goes_on_without(const std::exception& error);

  std::unique_ptr<Transport> transport_;
  Lane control_, end_, roll_lane_;
  Place place_;
  bool is_process_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;  // of the thread
  std::condition_variable done_;  // of callers
  std::condition_variable free_;  // of a caller that is about to serve
  bool at_it_ = false;            // the thread serves
  bool helped_ = false;           // a caller serves, or is about to
  Clock::time_point nap_ends_;    // by itself; of the past: the thread is awake
  bool only_short_ = false;       // of the collectives that are outstanding
  bool signalled_ = false;
  std::atomic<bool> stopping_ = false;  // set with the lock
  bool finish_ = false;
  bool ready_ = false;
  bool job_ended_ = false;
  std::exception_ptr start_error_;
  std::vector<std::shared_ptr<Request>> arriving_;  // that the thread has not taken yet
  int requests_ = 0;                                // that are not done
  std::optional<std::pair<std::string, int>> end_request_;
  std::vector<Stream*> streams_;
  std::uint64_t round_ = 0;  // how often somebody has gone to them, or left them
  int leaving_ = 0;          // callers that take streams back

  std::atomic<int> outstanding_{0};
  std::atomic<bool> follows_devices_{false};
  std::atomic<bool> carries_{false};  // messages of some stream
  std::atomic<bool> crowded_{false};  // compute takes all cores of this node
  std::atomic<bool> others_lost_{false};
  std::atomic<double> timeout_seconds_{600};  // until watch() says otherwise; 0: not watched
  TraceRing traces_;

  // Of whoever serves.
  std::vector<std::shared_ptr<Request>> under_way_;
  std::vector<Stream*> served_;  // what it has found in streams_
  std::optional<RollCall> roll_;
  std::int64_t progress_ = 0;
  bool in_flight_ = false;
  Clock::time_point last_progress_;
  Clock::duration pace_{};  ///< of messages lately: from one that is through to the next

  std::thread thread_;
};

}  // namespace octet::comm
