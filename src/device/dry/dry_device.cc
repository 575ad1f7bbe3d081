#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "octet/base/error.h"
#include "octet/device/device.h"

namespace octet {

namespace {

class DryEvent final : public Event {};

class DryStream final : public Stream {
 public:
  DryStream(Device& device, std::string name) : device_(device), name_(std::move(name)) {}
  Device& device() const override { return device_; }
  const std::string& name() const override { return name_; }
  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override {}

 private:
  Device& device_;
  std::string name_;
};

class DryDevice final : public Device {
 public:
  explicit DryDevice(const DryOptions& options) : options_(options) {
    check(options.stands_for != DeviceKind::dry, "a dry device plans for a CPU or a GPU");
  }

  DeviceKind kind() const override { return DeviceKind::dry; }
  DeviceKind stands_for() const override { return options_.stands_for; }
  std::string description() const override {
    const std::string name = options_.name.empty() ? "memory" : "the memory of " + options_.name;
    return "dry device (plans " + name + ", computes nothing)";
  }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return std::make_unique<DryStream>(*this, options.name);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<DryEvent>(); }
  std::unique_ptr<Event> make_timed_event() override { return make_event(); }
  double seconds_between(const Event&, const Event&) override { return 0; }
  bool complete(const Event&) override { return true; }
  bool host_reaches_memory() const override { return true; }  // its addresses have no memory
  bool host_reaches(const void* address) const override {
    return options_.stands_for == DeviceKind::cpu || reinterpret_cast<std::uintptr_t>(address) >= kHost;
  }
  MemoryInfo memory() const override {
    const std::size_t all = options_.memory > 0 ? options_.memory : std::numeric_limits<std::size_t>::max();
    return {all, all - std::min<std::size_t>(all, reserved_)};
  }

  void* allocate(std::size_t bytes) override {
    if (bytes > memory().free) {
      throw out_of_memory(bytes, memory().free, description(), "");
    }
    reserved_ += bytes;
    return address_of(bytes, next_);
  }
  void release(void*, std::size_t bytes) noexcept override { reserved_ -= bytes; }
  void* allocate_host(std::size_t bytes) override { return address_of(bytes, next_host_); }
  void release_host(void*, std::size_t) noexcept override {}
  void copy_to_device(Stream&, void*, const void*, std::size_t) override {}
  void copy_to_host(Stream&, void*, const void*, std::size_t) override {}
  void copy(Stream&, void*, const void*, std::size_t) override {}
  void zero(Stream&, void*, std::size_t) override {}

 private:
  static constexpr std::uintptr_t kDevice = std::uintptr_t{1} << 56, kHost = std::uintptr_t{1} << 57;

  static void* address_of(std::size_t bytes, std::atomic<std::uintptr_t>& next) {
    const std::uintptr_t step = bytes / 256 * 256 + 256;
    return reinterpret_cast<void*>(next.fetch_add(step));
  }

  DryOptions options_;
  std::atomic<std::size_t> reserved_{0};
  /// Addresses in a range that processes never get, so that a read faults.
  std::atomic<std::uintptr_t> next_{kDevice}, next_host_{kHost};
};

}  // namespace

std::unique_ptr<Device> make_dry_device(const DryOptions& options) {
  return std::make_unique<DryDevice>(options);
}

}  // namespace octet
