// Makes all transport calls of a rank: it advances the collectives of streams and runs control-plane calls.
// One thread serves at a time. By default that is the communication thread. A thread that starts to wait for
// a stream or a control-plane call serves until its work is done, because two thread switches cost more than
// a short collective. If it would sleep between two polls, it hands over to the communication thread and
// sleeps until it is notified.
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

#include "messages/hang_watch.h"
#include "messages/serving_pace.h"
#include "octet/base/timing.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"

namespace octet::comm {

/// How the engine serves the streams of a group.
enum class Serves {
  messages,     ///< messages of CPU ranks: streams wait for them
  for_devices,  ///< messages that device streams wait for
  looks,        ///< devices carry the bytes; the engine only polls their progress, and no thread waits for it
};

class MessageEngine {
 public:
  /// Starts the thread, which creates the transport. Rethrows exceptions of `make_transport`.
  explicit MessageEngine(std::function<std::unique_ptr<Transport>()> make_transport);
  /// Calls stop(), unless shutdown() or stop() was called before.
  ~MessageEngine();

  const Place& place() const { return place_; }
  Transport& transport() { return *transport_; }
  /// Lane of all ranks for the channel of the main threads.
  const Lane& control() const { return control_; }
  bool is_process() const { return is_process_; }
  /// True after the transport has released ranks that ended.
  bool others_lost() const { return others_lost_; }

  /// Starts serving these streams. The thread adopts the caller's affinity. It compares the number of op
  /// threads with the cores to find whether compute leaves it a core. After streams of devices are attached,
  /// the communication thread makes all calls itself.
  void attach(Stream& gather, Stream& reduce, Serves serves = Serves::messages);
  /// Stops serving these streams. Queued work stays queued.
  void detach(Stream& gather, Stream& reduce);
  /// Counts collectives that are queued or under way. If there are any, the thread polls more often.
  void begin_collective() { outstanding_.fetch_add(1, std::memory_order_acq_rel); }
  void end_collective() { outstanding_.fetch_sub(1, std::memory_order_release); }
  /// Sets the timeout of collectives. If a collective hangs, the job ends with exit code 75.
  void watch(const WatchOptions& options) { watch_->set(options); }
  /// The latest collectives.
  TraceRing& traces() { return watch_->traces(); }
  /// Reports that a collective was put on a stream. `awaited_soon`: the collective is short, so the enqueuing
  /// thread usually waits for it next.
  void announce(bool awaited_soon);
  int outstanding() const { return outstanding_.load(std::memory_order_acquire); }

  /// Advances an operation of a served stream. Returns true when it is finished. An error ends the job.
  bool advance(Operation& operation);
  /// Runs a control-plane operation and waits for it. Returns false if `deadline` passes first; the engine
  /// then keeps the operation alive. Rethrows errors of the operation. Operations of several threads run
  /// concurrently, so they must use different lanes.
  bool run(std::shared_ptr<Operation> operation,
           std::optional<std::chrono::steady_clock::time_point> deadline = {});

  /// Agrees with all ranks to end, then ends the transport. Calls stop() if they do not agree within
  /// `patience`.
  void shutdown(std::optional<std::chrono::seconds> patience);
  /// Ends the thread without agreement of the other ranks. Nothing moves afterwards.
  void stop();
  bool stopped() const { return !thread_.joinable(); }
  /// Ends the job. If ranks are processes, does not return.
  void end_job(const std::string& message, int code);

 private:
  /// Request of a program thread, which sleeps until the request is done.
  struct Request {
    std::shared_ptr<Operation> operation;
    std::atomic<bool> done = false;
    std::exception_ptr error;  // written before `done`
  };

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
  std::optional<std::chrono::microseconds> rest();
  void nap(std::chrono::microseconds longest);
  void end_thread(bool finish);
  bool goes_on_without(const std::exception& error);

  std::unique_ptr<Transport> transport_;
  Lane control_, end_, roll_lane_;
  Place place_;
  std::optional<HangWatch> watch_;  // made with the transport
  bool is_process_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;  // for the communication thread
  std::condition_variable done_;  // for callers
  std::condition_variable free_;  // for a caller that is about to serve
  bool at_it_ = false;            // the communication thread serves
  bool helped_ = false;           // a caller serves, or is about to
  Clock::time_point
      nap_ends_;             // when the thread's sleep ends without a notification; in the past: it is awake
  bool only_short_ = false;  // all outstanding collectives are short
  bool signalled_ = false;
  std::atomic<bool> stopping_ = false;  // set with the lock
  bool finish_ = false;
  bool ready_ = false;
  bool job_ended_ = false;
  std::exception_ptr start_error_;
  std::vector<std::shared_ptr<Request>> arriving_;  // not yet taken by the thread
  int requests_ = 0;                                // number of requests that are not done
  std::optional<std::pair<std::string, int>> end_request_;
  std::vector<Stream*> streams_;
  std::uint64_t round_ = 0;  // incremented when a thread starts or stops serving the streams
  int leaving_ = 0;          // callers that detach streams

  std::atomic<int> outstanding_{0};
  std::atomic<bool> follows_devices_{false};
  std::atomic<bool> carries_{false};  // some attached stream needs messages
  std::atomic<bool> crowded_{false};  // compute takes all cores of this node
  std::atomic<bool> others_lost_{false};

  // State of the serving thread.
  std::vector<std::shared_ptr<Request>> under_way_;
  std::vector<Stream*> served_;  // copy of streams_ at the last poll
  std::int64_t progress_ = 0;
  ServingPace pace_;

  std::thread thread_;
};

}  // namespace octet::comm
