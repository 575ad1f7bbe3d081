#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "octet/device/device.h"
#include "segments.h"

namespace octet::store {

/// Elements that are loaded at a time, at most.
inline constexpr std::int64_t kLoadedPiece = std::int64_t{1} << 22;

/// Writes elements [begin, begin + count) of a segment, f32, at `out` in memory of the device, zeros where no
/// tensor lies. What is enqueued on `stream` before it may read `out`; what is enqueued there behind it finds
/// the values.
using FixedValues = std::function<void(Stream& stream, const Segment& segment, std::int64_t begin,
                                       std::int64_t count, float* out)>;

/// Values that the host makes, on their way to memory of a device. Where the host does not reach that, they
/// leave from pinned memory, and while a piece travels the next one is made.
class Departures {
 public:
  explicit Departures(Device& device) : device_(device) {}
  ~Departures();
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;

  /// `make` writes at the place that it gets, which holds anything before; not kept. `stream` has passed all
  /// copies before this object goes.
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
