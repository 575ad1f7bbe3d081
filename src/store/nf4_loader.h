#pragma once

#include <functional>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/comm/collectives.h"
#include "segments.h"

namespace octet::store {

/// Brings tensors into NF4, one after the other. The ranks share the work: each quantises a run of whole
/// blocks of every tensor, and tells the others. The host holds one tensor's codes and scales, and a piece of
/// kPiece values.
class Nf4Loader {
 public:
  /// As Fixed::Values.
  using Values =
      std::function<void(const Segment& segment, std::int64_t begin, std::int64_t count, float* out)>;
  /// Fills slices of codes and scales as they are stored: see ParameterStore::initialise. Empty: there are
  /// none, and values are quantised whatever the options say.
  using Stored = std::function<void(const std::vector<TensorSlice>&)>;

  /// `kernels`: of a CPU. `copies`: of the device where weights lie.
  Nf4Loader(const Segments& segments, comm::Collectives& collectives, Device& device, Stream& kernels,
            Stream& copies)
      : segments_(segments), collectives_(collectives), device_(device), kernels_(kernels), copies_(copies) {}

  /// Fills the segment's quantised tensors. All ranks call it. `amaxes`, by number of the scale, are raised
  /// by what this rank decoded; null where no scales are wanted.
  void load(const Segment& segment, const Values& values, const Stored& stored, float* amaxes);
  /// Raises the amaxes by what this rank keeps of the tensors that are not quantised.
  void measure_whole(const Segment& segment, const Values& values, float* amaxes);
  /// Fills those, in FP8 by these scales. All ranks call it, as often as the others.
  void write_whole(const Segment& segment, const Values& values, const float* scales);

  static constexpr std::int64_t kPiece = std::int64_t{1} << 22;

 private:
  void quantise(const Segment& segment, const Nf4Part& part, const Values& values);
  /// The own run of elements to all ranks, and theirs.
  void exchange(const Nf4Part& part, std::int64_t piece);
  void read_stored(const Nf4Part& part, const Stored& stored);
  void raise(const Nf4Part& part, float* amaxes);
  /// Puts bytes [begin, begin + count) of the segment where this rank keeps them, those that it does.
  void keep(const Segment& segment, std::int64_t begin, const void* bytes, std::int64_t count);
  /// The own elements of a tensor that is not quantised: those that are kept here.
  struct Run {
    std::int64_t begin = 0, end = 0;
  };
  Run kept_of(const Segment& segment, const Nf4Part& part) const;

  const Segments& segments_;
  comm::Collectives& collectives_;
  Device& device_;
  Stream& kernels_;
  Stream& copies_;
  std::vector<float> values_;
  std::vector<std::uint16_t> narrow_;  ///< values as bf16
  std::vector<float> scales_;          ///< of the tensor at hand
  std::vector<std::uint8_t> bytes_;    ///< of the tensor at hand, from its codes on
};

}  // namespace octet::store
