#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cpu/machine.h"
#include "cpu/stream.h"
#include "octet/base/error.h"
#include "octet/base/memory_room.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "octet/device/out_of_memory.h"
#include "octet/device/profile.h"
#include "octet/device/threads.h"

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
constexpr std::size_t huge_page = std::size_t{2} << 20;
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
    const std::size_t boundary = bytes >= 2 * huge_page ? huge_page : alignment;
    const std::size_t rounded = (bytes + boundary - 1) / boundary * boundary;
    void* address = rounded >= bytes ? std::aligned_alloc(boundary, rounded) : nullptr;
    if (address == nullptr && !memory_limit().empty())
      throw out_of_memory(bytes, "a limit of " + memory_limit(), description(),
                          "raise the limit, or use a smaller model or batch", code_without_memory());
    if (address == nullptr) refuse(memory().free);
#ifdef MADV_HUGEPAGE
    // Advice only: failure on a kernel without huge pages is harmless.
    if (boundary == huge_page) madvise(address, rounded, MADV_HUGEPAGE);
#endif
    std::memset(address, 0, rounded);
    return address;
  }

  void release(void* address, std::size_t) noexcept override {
    std::free(address);
  }

  void* allocate_host(std::size_t bytes) override {
    return allocate(bytes);
  }
  void release_host(void* address, std::size_t bytes) noexcept override {
    release(address, bytes);
  }

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
