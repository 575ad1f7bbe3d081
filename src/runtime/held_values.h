// A weight's values as the model computes with them, when it keeps them in fewer bits than its file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "octet/device/device.h"
#include "octet/runtime/initial_weights.h"

namespace octet::runtime {

/// The end of the name of a DoRA magnitude.
inline constexpr const char* kMagnitude = ".lora_magnitude_vector";

class HeldValues {
 public:
  /// Gives elements [begin, begin + count) of the tensor as its file has them.
  using Read = std::function<void(std::int64_t begin, std::int64_t count, float* out)>;

  /// Holds a tensor of `count` elements. NF4: reads and quantises all elements here, like the store. The host
  /// then holds their codes and scales, and a piece of values.
  HeldValues(const HeldAs& how, Read read, std::int64_t count);

  /// Elements [begin, begin + count).
  void get(std::int64_t begin, std::int64_t count, float* out);

 private:
  void quantise(std::int64_t count);
  void round_to_compute(float* values, std::int64_t count);

  HeldAs how_;
  Read read_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::uint8_t> codes_, scale_codes_;
  std::vector<float> scales_, nested_, decoded_;
  float mean_ = 0;
};

}  // namespace octet::runtime
