#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "octet/device/device.h"
#include "segments.h"

namespace octet::store {

/// Maximum number of elements that are loaded at once.
inline constexpr std::int64_t kLoadedPiece = std::int64_t{1} << 22;

/// Writes elements [begin, begin + count) of a segment as f32 to `out` in device memory. Gaps between tensors
/// become zeros. Earlier work on `stream` may still read `out`. Later work on `stream` sees the values.
using FixedValues = std::function<void(Stream& stream, const Segment& segment, std::int64_t begin,
                                       std::int64_t count, float* out)>;

/// Sends values that the host makes to device memory. If the host cannot address that memory, they are sent
/// from pinned memory, and the next piece is made while a piece is copied.
class Departures {
 public:
  explicit Departures(Device& device) : device_(device) {}
  ~Departures();
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;

  /// `make` writes `count` values to its argument, which has undefined contents; it is not kept. All copies
  /// on `stream` must be complete before this object is destroyed.
  void send(Stream& stream, float* out, std::int64_t count, const std::function<void(float*)>& make);

 private:
  struct Piece {
    float* data = nullptr;
    std::size_t bytes = 0;
  };
  Device& device_;
  std::array<Piece, 2> pieces_;
  std::size_t turn_ = 0;
};

}  // namespace octet::store
