#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/device.h"
#include "octet/precision/scaling.h"
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

/// Converts tensors to NF4, one after the other, on the device that stores them. The ranks that share a
/// segment (Axes) share the work: each quantises a run of whole blocks of every tensor, and sends it to the
/// others.
class Nf4Loader {
 public:
  /// Fills slices of codes and scales as ParameterStore::initialise describes. Empty: there are none, and
  /// values are quantised whatever the options are.
  using Stored = std::function<void(const std::vector<TensorSlice>&)>;

  /// Device memory.
  struct Memory {
    float* values;  ///< kLoadedPiece elements
    float* most;    ///< raised to the largest magnitude of the quantised values
  };

  /// Reserves memory in `arena`: a piece in bf16, the scales of a tensor with double quantisation, and the
  /// bytes of a sharded tensor.
  Nf4Loader(const Segments& segments, const Axes& axes, Stream& stream, Arena& arena, const Memory& memory);

  /// Fills the quantised tensors of the segment. All ranks must call it. `amaxes` (device), indexed by scale,
  /// are raised by the values that this rank decodes. Null: no scales are needed.
  void load(const Segment& segment, const FixedValues& values, const Stored& stored, float* amaxes);
  /// Raises the amaxes by the part of the unquantised tensors that this rank keeps.
  void measure_whole(const Segment& segment, const FixedValues& values, float* amaxes);
  /// Fills the unquantised tensors, in FP8 with `scales` if GEMMs read FP8. All ranks must call it equally
  /// often.
  void write_whole(const Segment& segment, const FixedValues& values, const precision::ScaleSet* scales);

 private:
  /// `bytes`: device memory for the tensor, beginning with its codes.
  void quantise(const Segment& segment, const Nf4Part& part, const FixedValues& values, std::uint8_t* bytes);
  /// Sends this rank's run of elements to the ranks that share the segment, and receives theirs.
  void exchange(comm::Collectives& sharers, const Nf4Part& part, std::int64_t piece, std::uint8_t* bytes,
                float* scales);
  void read_stored(const Nf4Part& part, const Stored& stored, std::uint8_t* bytes);
  void raise(const Segment& segment, const Nf4Part& part, const std::uint8_t* bytes, float* amaxes);
  /// Calls `act` for pieces of the unquantised tensors that this rank keeps.
  template <typename Do>
  void each_whole(const Segment& segment, const FixedValues& values, Do&& act);
  /// Stores bytes [begin, begin + count) of the segment, as far as this rank keeps them.
  void keep(const Segment& segment, std::int64_t begin, const std::uint8_t* bytes, std::int64_t count);
  /// A run of elements of an unquantised tensor that this rank keeps.
  struct Run {
    std::int64_t begin = 0, end = 0;
  };
  Run kept_of(const Segment& segment, const Nf4Part& part) const;

  const Segments& segments_;
  const Axes axes_;
  Device& device_;
  Stream& stream_;
  // Memory of the device.
  float* values_;                    ///< [kLoadedPiece]
  float* most_;                      ///< see Memory::most
  std::uint16_t* narrow_ = nullptr;  ///< [kLoadedPiece] values as bf16; null: compute is fp32
  float* scales_ = nullptr;          ///< scales of the current tensor
  std::uint8_t* bytes_ = nullptr;    ///< of the current tensor if it is sharded, or of a piece
};

}  // namespace octet::store
