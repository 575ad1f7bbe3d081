#pragma once

#include <functional>
#include <vector>

#include "loaded_values.h"
#include "octet/base/tensor_slice.h"
#include "octet/comm/collectives.h"
#include "octet/precision/scaling.h"
#include "segments.h"

namespace octet::store {

/// Brings tensors into NF4, one after the other, by the device on which they lie. The ranks share the work:
/// each quantises a run of whole blocks of every tensor, and tells the others.
class Nf4Loader {
 public:
  /// Fills slices of codes and scales as they are stored: see ParameterStore::initialise. Empty: there are
  /// none, and values are quantised whatever the options say.
  using Stored = std::function<void(const std::vector<TensorSlice>&)>;

  /// Memory of the device.
  struct Memory {
    float* values;  ///< kLoadedPiece elements
    float* most;    ///< raised by the magnitudes of values that are quantised
  };

  /// Takes memory of `arena`: for a piece in bf16, the scales of a tensor where these are quantised as well,
  /// and the bytes of a tensor where it is cut among the ranks.
  Nf4Loader(const Segments& segments, comm::Collectives& collectives, Stream& stream, Arena& arena,
            const Memory& memory);

  /// Fills the segment's quantised tensors. All ranks call it. `amaxes` (device), by number of the scale, are
  /// raised by what this rank decoded; null where no scales are wanted.
  void load(const Segment& segment, const FixedValues& values, const Stored& stored, float* amaxes);
  /// Raises the amaxes by what this rank keeps of the tensors that are not quantised.
  void measure_whole(const Segment& segment, const FixedValues& values, float* amaxes);
  /// Fills those, in FP8 by these scales. All ranks call it, as often as the others.
  void write_whole(const Segment& segment, const FixedValues& values, const precision::ScaleSet* scales);

 private:
  /// `bytes`: of the tensor, from its codes on, in memory of the device.
  void quantise(const Segment& segment, const Nf4Part& part, const FixedValues& values, std::uint8_t* bytes);
  /// The own run of elements to all ranks, and theirs.
  void exchange(const Nf4Part& part, std::int64_t piece, std::uint8_t* bytes, float* scales);
  void read_stored(const Nf4Part& part, const Stored& stored, std::uint8_t* bytes);
  void raise(const Nf4Part& part, const std::uint8_t* bytes, float* amaxes);
  /// Acts on pieces of what this rank keeps of the tensors that are not quantised.
  template <typename Do>
  void each_whole(const Segment& segment, const FixedValues& values, Do&& act);
  /// Puts bytes [begin, begin + count) of the segment where this rank keeps them, those that it does.
  void keep(const Segment& segment, std::int64_t begin, const std::uint8_t* bytes, std::int64_t count);
  /// The own elements of a tensor that is not quantised: those that are kept here.
  struct Run {
    std::int64_t begin = 0, end = 0;
  };
  Run kept_of(const Segment& segment, const Nf4Part& part) const;

  const Segments& segments_;
  comm::Collectives& collectives_;
  Device& device_;
  Stream& stream_;
  // Memory of the device.
  float* values_;                    ///< [kLoadedPiece]
  float* most_;                      ///< as Memory::most
  std::uint16_t* narrow_ = nullptr;  ///< [kLoadedPiece] values as bf16; null: in fp32
  float* scales_ = nullptr;          ///< of the tensor at hand
  std::uint8_t* bytes_ = nullptr;    ///< of the tensor at hand, where it is cut, or of a piece
};

}  // namespace octet::store
