// Arrays of tests that are copied to any device and back: the same test runs an op on the CPU and on the GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"

namespace octet::ops {

/// Elements of one dtype in host memory.
struct HostArray {
  HostArray(std::int64_t n, DType t) : dtype(t), bytes(static_cast<std::size_t>(n) * size_of(t), 0xFF) {}
  std::int64_t count() const { return static_cast<std::int64_t>(bytes.size() / size_of(dtype)); }
  double operator[](std::int64_t at) const {
    const std::uint8_t* p = &bytes[static_cast<std::size_t>(at) * size_of(dtype)];
    if (is_fp8(dtype)) return static_cast<double>(from_fp8(*p, dtype));
    if (dtype == DType::bf16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, p, 2);
      return static_cast<double>(from_bf16(bits));
    }
    float x = 0;
    std::memcpy(&x, p, 4);
    return static_cast<double>(x);
  }
  void set(std::int64_t at, float x) {
    std::uint8_t* p = &bytes[static_cast<std::size_t>(at) * size_of(dtype)];
    const std::uint16_t bits = to_bf16(x);
    if (is_fp8(dtype)) {
      *p = to_fp8(x, dtype);
    } else if (dtype == DType::bf16) {
      std::memcpy(p, &bits, 2);
    } else {
      std::memcpy(p, &x, 4);
    }
  }
  void fill(std::mt19937& random, float scale) {
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count(); ++i) set(i, scale * normal(random));
  }
  DType dtype;
  std::vector<std::uint8_t> bytes;
};

/// A device with a stream, and memory with the lifetime of this object.
class Bench {
 public:
  explicit Bench(std::unique_ptr<Device> device)
      : device_(std::move(device)), stream_(device_->make_stream({.name = "test"})), arena_(*device_) {}
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  /// Returns `count` bytes on the device, all 0xFF (NaN in every format), so that ops cannot rely on zeros.
  void* room(std::size_t count) { return put(std::vector<std::uint8_t>(count, 0xFF).data(), count); }
  void* put(const void* from, std::size_t count) {
    void* to = arena_.reserve("test", count);
    if (count > 0) device_->copy_to_device(*stream_, to, from, count);
    stream_->synchronize();
    return to;
  }
  void* put(const HostArray& x) { return put(x.bytes.data(), x.bytes.size()); }
  template <typename T>
  T* put(const std::vector<T>& x) {
    return static_cast<T*>(put(x.data(), x.size() * sizeof(T)));
  }
  void get(void* to, const void* from, std::size_t count) {
    if (count > 0) device_->copy_to_host(*stream_, to, from, count);
    stream_->synchronize();
  }
  void get(HostArray& to, const void* from) { get(to.bytes.data(), from, to.bytes.size()); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
};

/// ‖got - want‖ / ‖want‖ over all elements; infinite if any element is not finite.
template <typename Got, typename Want>
double relative_distance(const Got& got, const Want& want, std::int64_t count) {
  double difference = 0, size = 1e-30;
  for (std::int64_t i = 0; i < count; ++i) {
    const double g = got(i), w = want(i);
    if (!std::isfinite(g)) return INFINITY;
    difference += (g - w) * (g - w);
    size += w * w;
  }
  return std::sqrt(difference / size);
}

}  // namespace octet::ops
