#include "octet/device/cpu.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/cpu_stream.h"
#include "cpu/machine.h"
#include "host_pages.h"
#include "octet/base/error.h"
#include "octet/device/device.h"
#include "octet/device/op_threads.h"
#include "octet/device/profile.h"

namespace octet {

namespace cpu {

namespace {
thread_local int threads_of_ops = 0;
}

void set_op_threads(int threads) {
#if defined(__SANITIZE_THREAD__)
  threads = 1;  // the thread sanitizer cannot see the synchronisation inside libgomp
#endif
  threads_of_ops = std::max(1, std::min(threads, omp_get_thread_limit()));
  omp_set_num_threads(threads_of_ops);
}

int op_threads() {
  if (threads_of_ops == 0) set_op_threads(told_threads().value_or(allowed_cores()));
  return threads_of_ops;
}

}  // namespace cpu

namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t mapped_from = 2 * kHugePage;
constexpr std::size_t present_from = std::size_t{64} << 20;
/// Most bytes of live arrays from mapped_from to present_from without pages. Bounds what the process may lack
/// later although allocate() found it free.
constexpr std::size_t most_on_demand = std::size_t{256} << 20;
std::atomic<std::size_t> medium_bytes{0};
/// Smaller reservations are not checked against the machine's free memory.
constexpr std::size_t checked_from = std::size_t{1} << 20;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options)
      : threads_(options.threads > 0 ? options.threads : cpu::op_threads()),
        compute_worker_(options.compute_worker),
        stands_for_(options.stands_for) {
    // A rank's share of the cores must outlive temporary devices for work on the host. A rank with threads on
    // other ranks' cores makes a step on CPUs many times slower.
    if (options.threads > 0) cpu::set_op_threads(options.threads);
  }

  DeviceKind kind() const override { return DeviceKind::cpu; }
  DeviceKind stands_for() const override { return stands_for_; }

  std::string description() const override {
    return "CPU (" + cpu::processor_name() + ", " + std::to_string(threads_) +
           (threads_ == 1 ? " thread)" : " threads)");
  }

  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    switch (options.mode) {
      case StreamOptions::Mode::served:
        return cpu::make_served_stream(*this, options.name);
      case StreamOptions::Mode::worker:
        return cpu::make_worker_stream(*this, options.name, threads_);
      case StreamOptions::Mode::in_line:
        break;
    }
    if (compute_worker_) return cpu::make_worker_stream(*this, options.name, threads_);
    return cpu::make_in_line_stream(*this, options.name);
  }

  std::unique_ptr<Event> make_event() override { return std::make_unique<cpu::CpuEvent>(); }
  std::unique_ptr<Event> make_timed_event() override { return make_event(); }
  double seconds_between(const Event& from, const Event& to) override {
    return cpu::seconds_between(from, to);
  }

  bool complete(const Event& event) override {
    const auto latest = static_cast<const cpu::CpuEvent&>(event).latest();
    return latest == nullptr || latest->done();
  }

  bool host_reaches_memory() const override { return true; }
  MemoryInfo memory() const override { return cpu::machine_memory(); }

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const auto refuse = [&](std::size_t free) {
      throw out_of_memory(bytes, free, description(),
                          "lower per_device_train_batch_size or cutoff_len, raise zero_stage, or use fewer "
                          "ranks on this node");
    };
    if (bytes >= checked_from) {
      // The kernel overcommits memory and kills processes later, so the size is checked first.
      if (const auto free = memory().free; bytes > free) refuse(free);
    }
    const bool mapped = bytes >= mapped_from, medium = mapped && bytes < present_from;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* address = nullptr;
    if (mapped) {
      address = map_zeros_on_demand(bytes);
    } else if (rounded >= bytes) {
      address = std::aligned_alloc(alignment, rounded);
    }
    if (address == nullptr && !memory_limit().empty())
      throw out_of_memory(bytes, "a limit of " + memory_limit(), description(),
                          "raise the limit, or use a smaller model or batch", code_without_memory());
    if (address == nullptr) refuse(memory().free);
    // Pages are made now: if the machine runs out of memory, then at the start of a run and not in a later
    // step. The first medium arrays are mostly staging, of which short runs use a part.
    const bool on_demand = medium && medium_bytes.fetch_add(bytes) + bytes <= most_on_demand;
    if (!on_demand) std::memset(address, 0, mapped ? bytes : rounded);
    return address;
  }

  void release(void* address, std::size_t bytes) noexcept override {
    if (bytes >= mapped_from) {
      unmap_zeros(address, bytes);
      if (bytes < present_from) medium_bytes.fetch_sub(bytes);
    } else {
      std::free(address);
    }
  }

  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* address, std::size_t bytes) noexcept override { release(address, bytes); }

  void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    copy(stream, to, from, bytes);
  }
  void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    copy(stream, to, from, bytes);
  }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    const ProfileSection section(stream, "copy");
    cpu::enqueue(stream, [to, from, bytes] { std::memmove(to, from, bytes); });
  }
  void zero(Stream& stream, void* address, std::size_t bytes) override {
    if (bytes == 0) return;
    const ProfileSection section(stream, "clear");
    cpu::enqueue(stream, [address, bytes] { std::memset(address, 0, bytes); });
  }

 private:
  int threads_;
  bool compute_worker_;
  DeviceKind stands_for_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace octet

namespace octet::cpu {

// Threads that claim pieces of an op. The caller waits only for helpers that have claimed a piece. If another
// process takes a helper's core, the op loses this helper's share but does not wait for it.

namespace {

thread_local bool by_claims = false;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Spins until `done`, at most for the usual time between two ops.
template <typename Done>
bool spin_until(const Done& done) {
  constexpr auto most = std::chrono::microseconds(100);
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() - begin < most);
  return done();
}

/// The helpers of one thread. One word holds the number of unclaimed pieces and the round, so that a late
/// helper cannot claim pieces of a round that has ended. A helper reads `pieces_` only after a claim, and a
/// round ends only when all claimed pieces are done.
class Helpers {
 public:
  /// Starts `count` threads, or fewer if the system refuses.
  explicit Helpers(int count) : wanted_(count) {
    try {
      for (int who = 1; who <= count; ++who) threads_.emplace_back([this, who] { serve(who); });
    } catch (const std::system_error&) {
      // The caller of run() and the threads that started take all pieces.
    }
  }
  ~Helpers() {
    closing_.store(true);
    ring();
    for (std::thread& thread : threads_) thread.join();
  }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  int wanted() const { return wanted_; }

  void run(const Pieces& pieces) {
    pieces_ = &pieces;
    undone_.store(pieces.count, std::memory_order_relaxed);
    round_ += std::uint64_t{1} << 32;
    unclaimed_.store(round_ + static_cast<std::uint32_t>(pieces.count), std::memory_order_release);
    ring();
    while (claim_one(0)) {
    }
    const auto done = [this] { return undone_.load(std::memory_order_acquire) == 0; };
    if (spin_until(done)) return;
    for (int left = undone_.load(std::memory_order_acquire); left != 0;
         left = undone_.load(std::memory_order_acquire)) {
      undone_.wait(left, std::memory_order_acquire);
    }
  }

 private:
  static bool any(std::uint64_t unclaimed) { return static_cast<std::uint32_t>(unclaimed) != 0; }

  bool claim_one(int who) {
    std::uint64_t seen = unclaimed_.load(std::memory_order_acquire);
    while (any(seen)) {
      if (!unclaimed_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel)) continue;
      const Pieces& pieces = *pieces_;
      pieces.call(pieces.body, pieces.count - static_cast<int>(static_cast<std::uint32_t>(seen)), who);
      if (undone_.fetch_sub(1, std::memory_order_acq_rel) == 1 && who != 0) undone_.notify_one();
      return true;
    }
    return false;
  }

  void ring() {
    rings_.fetch_add(1);
    rings_.notify_all();
  }

  void serve(int who) {
    set_op_threads(1);  // for ops inside a piece
    while (!closing_.load()) {
      if (claim_one(who)) continue;
      const int heard = rings_.load();
      const auto more = [this, heard] { return rings_.load(std::memory_order_relaxed) != heard; };
      if (any(unclaimed_.load()) || closing_.load() || spin_until(more)) continue;
      rings_.wait(heard);
    }
  }

  const int wanted_;
  const Pieces* pieces_ = nullptr;
  std::uint64_t round_ = 0;                   ///< in the upper half
  std::atomic<std::uint64_t> unclaimed_ = 0;  ///< number of pieces in the lower half, round in the upper half
  alignas(64) std::atomic<int> undone_ = 0;
  alignas(64) std::atomic<int> rings_ = 0;
  std::atomic<bool> closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void set_claims(bool on) {
  by_claims = on;
}

bool claims() {
  return by_claims;
}

void share(const Pieces& pieces) {
  thread_local bool sharing = false;
  const int helpers = op_threads() - 1;
  if (helpers < 1 || pieces.count < 2 || sharing) {
    for (int piece = 0; piece < pieces.count; ++piece) pieces.call(pieces.body, piece, 0);
    return;
  }
  thread_local std::unique_ptr<Helpers> mine;
  if (mine == nullptr || mine->wanted() != helpers) {
    mine.reset();
    mine = std::make_unique<Helpers>(helpers);
  }
  sharing = true;
  mine->run(pieces);
  sharing = false;
}

}  // namespace octet::cpu
