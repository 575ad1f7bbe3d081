#pragma once

#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "segments.h"

namespace octet::store {

/// Elements [begin, begin + count) of a segment, as slices of its Hugging Face tensors; padding is left out.
/// `data` is where element `begin` lies.
struct SliceRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Array data;
};
void append_slices(const model::SegmentSpec& spec, const SliceRange& range, const std::string& prefix,
                   std::vector<TensorSlice>& slices);

/// Parameters that are trained, and with `moments` also exp_avg/… and exp_avg_sq/…, and residuals/… of this
/// rank: the own slices alone, or all that this rank holds. The scales of 8-bit moments are tensors by the
/// name of the stored tensor, because their blocks do not know where a Hugging Face tensor begins:
/// "exp_avg_scale/layers.0.qkv", one for each 128 elements.
struct SliceChoice {
  bool own_only = false;
  bool moments = false;
  bool whole = false;  ///< whole tensors instead, wherever their elements lie, and no data
};
std::vector<TensorSlice> state_slices(Segments& segments, const SliceChoice& choice);

/// The masters that this rank holds of one segment.
std::vector<TensorSlice> parameter_slices(const Segment& segment);

/// Own slices of the gradients' sums.
std::vector<TensorSlice> sum_slices(Segments& segments);

}  // namespace octet::store
