#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "octet/device/device.h"

namespace octet {

/// A CPU device with separate memory, like a GPU.
class FarDevice final : public Device {
 public:
  explicit FarDevice(const CpuOptions& options = {.threads = 1}) : cpu_(make_cpu_device(options)) {}
  DeviceKind kind() const override { return cpu_->kind(); }
  DeviceKind stands_for() const override { return cpu_->stands_for(); }
  std::string description() const override { return cpu_->description(); }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return cpu_->make_stream(options);
  }
  std::unique_ptr<Event> make_event() override { return cpu_->make_event(); }
  std::unique_ptr<Event> make_timed_event() override { return cpu_->make_timed_event(); }
  double seconds_between(const Event& from, const Event& to) override {
    return cpu_->seconds_between(from, to);
  }
  bool complete(const Event& event) override { return cpu_->complete(event); }
  MemoryInfo memory() const override { return cpu_->memory(); }
  bool host_reaches_memory() const override { return false; }
  bool host_reaches(const void* address) const override {
    const auto after = host_.upper_bound(static_cast<const std::byte*>(address));
    if (after == host_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return static_cast<const std::byte*>(address) < begin + bytes;
  }
  void* allocate(std::size_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* address, std::size_t bytes) noexcept override { cpu_->release(address, bytes); }
  void* allocate_host(std::size_t bytes) override {
    void* address = cpu_->allocate_host(bytes);
    host_[static_cast<const std::byte*>(address)] = bytes;
    return address;
  }
  void release_host(void* address, std::size_t bytes) noexcept override {
    host_.erase(static_cast<const std::byte*>(address));
    cpu_->release_host(address, bytes);
  }
  void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    cpu_->copy_to_device(stream, to, from, bytes);
  }
  void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    cpu_->copy_to_host(stream, to, from, bytes);
  }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    cpu_->copy(stream, to, from, bytes);
  }
  void zero(Stream& stream, void* address, std::size_t bytes) override { cpu_->zero(stream, address, bytes); }

 private:
  std::unique_ptr<Device> cpu_;
  std::map<const std::byte*, std::size_t> host_;  ///< host allocations, by address
};

}  // namespace octet
