#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/peer_access.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::comm {
namespace {

// A waiting rank first yields its core to other ranks. In a long wait it sleeps between the checks.
constexpr int yields_before_sleep = 200;

class MemoryPeerAccess final : public PeerAccess {
 public:
  explicit MemoryPeerAccess(std::function<void()> alive) : alive_(std::move(alive)) {}

  void write(Stream& stream, std::uint32_t* counter, std::uint32_t value) override {
    cpu::enqueue(stream, [counter, value, this] {
      alive_();  // throws if the job has failed: the counter's owner may be gone
      std::atomic_ref<std::uint32_t>(*counter).store(value, std::memory_order_release);
    });
  }

  void wait(Stream& stream, const std::uint32_t* counter, std::uint32_t value) override {
    auto* at = const_cast<std::uint32_t*>(counter);  // atomic_ref of C++20 does not support const
    cpu::enqueue(stream, [at, value, this] {
      alive_();  // throws if the job has failed: later work may write to memory of an ended peer
      const std::atomic_ref<std::uint32_t> reached(*at);
      for (int looks = 0; static_cast<std::int32_t>(reached.load(std::memory_order_acquire) - value) < 0;
           ++looks) {
        if (looks < yields_before_sleep) {
          sched_yield();
          continue;
        }
        alive_();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }

  void steps(Stream& stream, std::span<const CounterStep> steps) override {
    for (const CounterStep& step : steps) {
      step.waits ? wait(stream, step.counter, step.value) : write(stream, step.counter, step.value);
    }
  }

  void move(Stream& stream, const std::optional<CounterStep>& first, std::span<const Piece> pieces,
            std::span<const CounterStep> then, std::uint32_t*) override {
    check(pieces.size() <= most_moved && then.size() <= most_moved,
          "the number of pieces is below its limit");
    if (first) write(stream, first->counter, first->value);
    cpu::enqueue(stream, [all = std::vector<Piece>(pieces.begin(), pieces.end()), this] {
      alive_();  // throws if the job has failed: the memory's owner may be gone
      for (const Piece& piece : all) {
        if (piece.bytes > 0) std::memcpy(piece.to, piece.from, piece.bytes);
      }
    });
    steps(stream, then);
  }

  void fault(Stream& stream) override {
    cpu::enqueue(stream, [] { throw Error(Problem{.what = "OCTETRUN_BREAK_STEP: work of a stream fails"}); });
  }
  void delay(Stream& stream, std::chrono::microseconds time) override {
    cpu::enqueue(stream, [time] { std::this_thread::sleep_for(time); });
  }

  std::string handle(void* address) override {
    return {reinterpret_cast<const char*>(&address), sizeof address};
  }

  void* open(const std::string& handle) override {
    void* address = nullptr;
    check(handle.size() == sizeof address, "a handle of this process is an address");
    std::memcpy(&address, handle.data(), sizeof address);
    return address;
  }

  void close(void*) override {}

 private:
  std::function<void()> alive_;
};

}  // namespace

std::unique_ptr<PeerAccess> make_memory_peer_access(std::function<void()> alive) {
  return std::make_unique<MemoryPeerAccess>(std::move(alive));
}

}  // namespace octet::comm
