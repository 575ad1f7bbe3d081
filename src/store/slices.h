#pragma once

#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "segments.h"

namespace octet::store {

/// Appends elements [begin, begin + count) of a segment as slices of its Hugging Face tensors, without
/// padding. `data` points to element `begin`.
struct SliceRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Array data;
};
void append_slices(const model::SegmentSpec& spec, const SliceRange& range, const std::string& prefix,
                   std::vector<TensorSlice>& slices);

/// Selects state slices of trained segments: parameters, and with `moments` also exp_avg/…, exp_avg_sq/… and
/// this rank's residuals/…. `own_only` selects this rank's slices instead of all that it holds. Scales of
/// 8-bit moments have the name of the stored tensor, because their blocks do not follow Hugging Face tensors:
/// "exp_avg_scale/layers.0.qkv", one per 128 elements.
struct SliceChoice {
  bool own_only = false;
  bool moments = false;
  bool whole = false;  ///< whole tensors of all ranks instead, without data
};
std::vector<TensorSlice> state_slices(Segments& segments, const SliceChoice& choice);

/// Returns the masters of one segment that this rank holds.
std::vector<TensorSlice> parameter_slices(const Segment& segment);

/// Returns this rank's slices of the gradient sums.
std::vector<TensorSlice> sum_slices(Segments& segments);

}  // namespace octet::store
