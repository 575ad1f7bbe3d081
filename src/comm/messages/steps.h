// A collective as a resumable state machine. The coroutine pauses instead of waiting for a message, so one
// thread can serve several collectives and none blocks another.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace octet::comm {

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

}  // namespace octet::comm
