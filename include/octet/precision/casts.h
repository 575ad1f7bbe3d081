#pragma once

#include <span>
#include <string>
#include <vector>

#include "octet/ops/types.h"

namespace octet::precision {

/// Statistics of the casts of one tensor to FP8, under its name: "layers.0.qkv/input", "layers.0.qkv/weight",
/// "layers.0.qkv/output_gradient". Parts with separate scales have separate rows with the same name.
struct CastRow {
  std::string name;
  ops::Fp8Seen seen{};
};

/// What casts meet while they are watched, counted where values are cast (ops::Fp8Seen). Watching changes no
/// value that is cast.
class CastStatistics {
 public:
  /// Reserves memory for so many tensors under `name`, on the device and pinned. The arena outlives this.
  CastStatistics(Arena& arena, const std::string& name, std::int64_t count);
  CastStatistics(const CastStatistics&) = delete;
  CastStatistics& operator=(const CastStatistics&) = delete;

  std::int64_t count() const { return count_; }
  /// Starts to collect statistics of casts, on `stream`. Earlier statistics are reset.
  void watch(Stream& stream);
  void stop() { watching_ = false; }
  /// The statistics to which a cast of tensor `i` adds; null if none are collected.
  ops::Fp8Seen* of(std::int64_t i) const { return watching_ ? seen_ + i : nullptr; }

  /// Enqueues the copy of all to the host.
  void collect(Stream& stream);
  /// As collected last, once that stream was waited for; zero before, and on a dry device.
  std::span<const ops::Fp8Seen> collected() const { return {host_, static_cast<std::size_t>(count_)}; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(ops::Fp8Seen); }

  Device& device_;
  std::int64_t count_ = 0;
  bool watching_ = false;
  ops::Fp8Seen* seen_ = nullptr;  ///< [count], device
  ops::Fp8Seen* host_ = nullptr;  ///< [count], pinned
};

}  // namespace octet::precision
