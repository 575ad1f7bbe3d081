// A call of a collective as a resumable state machine, its messages in flight, and their seals.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "messages/transport.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

// A collective as a resumable state machine. The coroutine pauses instead of waiting for a message, so one
// thread can serve several collectives and none blocks another.

/// A coroutine. It starts paused, and resume() runs it to its next pause. Reference parameters must outlive
/// it.
class Steps {
 public:
  struct promise_type {
    std::exception_ptr error;
    Steps get_return_object() { return Steps(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  Steps() = default;
  explicit Steps(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Steps& operator=(Steps&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Steps() {
    if (handle_) handle_.destroy();
  }

  /// Runs to the next pause. Returns true when the coroutine is finished. Rethrows its exception.
  bool resume() {
    if (!handle_.done()) handle_.resume();
    if (handle_.promise().error) std::rethrow_exception(std::exchange(handle_.promise().error, nullptr));
    return handle_.done();
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

/// `co_await pause;` returns to the caller of resume().
inline constexpr std::suspend_always pause{};

// Hashes that follow messages.

/// State that the collectives of a rank share about their seals. The serving thread records; other threads
/// read.
class SealNotes {
 public:
  void note(BrokenMessage&& broken) {
    const std::lock_guard lock(mutex_);
    broken_.push_back(std::move(broken));
  }
  std::vector<BrokenMessage> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(broken_, {});
  }

  void spoil(std::uint64_t draw) {
    draw_ = draw;
    left_ = static_cast<int>(draw % 8) + 1;
  }
  /// Inverts a bit of a received message when its turn comes.
  void arrived(void* data, std::size_t bytes) {
    if (left_.load(std::memory_order_relaxed) == 0 || --left_ != 0) return;
    const std::uint64_t bit = (draw_ >> 8) % (bytes * 8);
    auto* at = static_cast<std::uint8_t*>(data) + bit / 8;
    *at = static_cast<std::uint8_t>(*at ^ (1u << (bit % 8)));
  }

 private:
  std::mutex mutex_;
  std::vector<BrokenMessage> broken_;
  std::atomic<int> left_ = 0;
  std::uint64_t draw_ = 0;
};

// A set of messages in flight that is awaited as a whole.

/// One call of a collective on one rank.
struct Call {
  Transport* transport = nullptr;
  const Lane* lane = nullptr;
  int tag = 0;                     ///< kind and sequence number
  unsigned sequence = 0;           ///< earlier collectives of its lane
  bool paired = false;             ///< only between some ranks of the lane; not in their sequence
  std::vector<int> partners = {};  ///< these ranks, numbered in the job
  std::int64_t bytes_sent = 0;     ///< so far
  std::int64_t bytes_between_nodes = 0;
  std::int64_t completed = 0;  ///< completed messages, a sign of progress
  bool ends = false;           ///< this rank has done its work
  const char* name = "";       ///< of the collective
  bool sealed = false;         ///< a hash follows each message, and `notes` records broken ones
  class SealNotes* notes = nullptr;

  std::vector<class Messages*> open = {};  ///< sets of messages of this call

  /// Returns the place among the ranks of the lane.
  const Place& place() const { return lane->place; }
  /// Returns the ranks of the job that block this call, in order: ranks that have not sent, or, if all have
  /// sent, ranks that have not received. Queries the transport, so only the serving thread calls it.
  std::vector<int> missing_ranks();
};

class Messages {
 public:
  explicit Messages(Call& call) : call_(call) { call_.open.push_back(this); }
  ~Messages() { std::erase(call_.open, this); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Messages of zero bytes are skipped. A sealed message is hashed when it is sent.
  void send(int peer, const void* data, std::size_t bytes);
  void receive(int peer, void* data, std::size_t bytes);
  /// Returns true when all messages are complete and all sealed messages are verified.
  bool complete();

 private:
  friend struct Call;
  struct Message {
    int ticket = 0;
    int peer = 0;
    bool incoming = false;
    bool through = false;
  };
  /// The hash that follows a message.
  struct Seal {
    std::uint64_t hash = 0;
    int peer = 0;
    void* data = nullptr;  ///< received message; null: the message is sent
    std::size_t bytes = 0;
  };
  bool test(Message& message);
  void post(int peer, const void* out, void* in, std::size_t bytes);
  void compare();

  Call& call_;
  std::list<Seal> seals_;  ///< addresses are stable; usually empty, which allocates nothing
  std::vector<Message> messages_;
  std::size_t done_ = 0;
};

}  // namespace octet::comm
