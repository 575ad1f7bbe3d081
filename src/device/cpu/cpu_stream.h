// Streams of the CPU device. A record is one Completion, which the recording stream completes when it reaches
// the record. An Event holds its latest Completion. Waiters sleep in the kernel (futex): on machines with
// more ranks than cores, a spinning waiter would take the core of the thread that it waits for.
//
// A stream stores the exception of failed work and skips later work. Its later records complete with the
// exception. Streams that wait for them inherit the exception, and synchronize() rethrows it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>

#include "octet/device/cpu.h"
#include "octet/device/device.h"

namespace octet::cpu {

/// The threads that sleep until a served stream reaches a record, for the thread that serves the stream.
class Waiters {
 public:
  /// Sets `call`, which runs on every thread that later begins to wait; empty: none.
  void on_wait(OnWait call);
  int count() const { return count_.load(std::memory_order_acquire); }
  void enter(const std::function<bool()>& done);
  void leave() { count_.fetch_sub(1, std::memory_order_release); }

 private:
  std::atomic<int> count_{0};
  std::shared_mutex mutex_;  // locked shared by the threads inside the call
  OnWait call_;
};

/// One record of an event.
class Completion {
 public:
  /// `waiters` is notified of waiting threads; null: no notification.
  explicit Completion(std::shared_ptr<Waiters> waiters = nullptr) : waiters_(std::move(waiters)) {}
  /// Called once.
  void complete(std::exception_ptr error) noexcept;
  bool done() const { return done_.load(std::memory_order_acquire) != 0; }
  /// Sleeps until complete() was called.
  void wait() const;
  /// Exception of the recording stream, or null. Only when done.
  const std::exception_ptr& error() const { return error_; }
  /// Time of complete(). Only when done.
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::shared_ptr<Waiters> waiters_;
  std::atomic<int> done_{0};
  std::chrono::steady_clock::time_point time_;
  std::exception_ptr error_;
};

class CpuEvent final : public Event {
 public:
  /// Starts a record.
  std::shared_ptr<Completion> renew(std::shared_ptr<Waiters> waiters);
  /// Returns the latest record, or null if there is none.
  std::shared_ptr<Completion> latest() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> latest_;
};

/// Common part of the three modes: stores the exception and runs entries.
class CpuStream : public Stream {
 public:
  CpuStream(Device& device, std::string name) : device_(device), name_(std::move(name)) {}
  Device& device() const override { return device_; }
  const std::string& name() const override { return name_; }
  void record(Event& event) override;
  void wait(Event& event) override;
  void enqueue(std::function<void()> work);
  void enqueue_resumable(std::function<bool()> poll);
  virtual bool serve();
  /// Returns null unless the stream is served.
  virtual std::shared_ptr<Waiters> waiters() const { return nullptr; }
  double seconds_waited() override { return 1e-9 * static_cast<double>(waited_.load()); }

 protected:
  /// One entry of the queue. `poll` runs without blocking and returns true when its work is finished. It is
  /// skipped if the stream has an exception. An entry with `mark` completes a record; an entry with `until`
  /// waits for one.
  struct Entry {
    std::function<bool()> poll;
    std::shared_ptr<Completion> mark;
    std::shared_ptr<Completion> until;
    int threads = 0;
  };
  virtual void push(Entry entry) = 0;
  /// Runs an entry until it ends. Returns false if it would block and `may_block` is false.
  bool advance(Entry& entry, bool may_block);
  void poison(std::exception_ptr error);
  std::exception_ptr error() const;
  void rethrow() const;

 private:
  Device& device_;
  std::string name_;
  mutable std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<std::int64_t> waited_{0};  ///< nanoseconds
};

double seconds_between(const Event& from, const Event& to);

std::unique_ptr<Stream> make_in_line_stream(Device& device, const std::string& name);
/// Ops on the worker use `threads` threads, unless the enqueuing thread has set another number.
std::unique_ptr<Stream> make_worker_stream(Device& device, const std::string& name, int threads);
std::unique_ptr<Stream> make_served_stream(Device& device, const std::string& name);

}  // namespace octet::cpu
