// Check that all ranks together contribute each element of each tensor to a checkpoint exactly once.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/weights/tensor_header.h"

namespace octet::checkpoint {

struct Coverage {
  std::vector<weights::TensorHeader>
      tensors;  ///< sorted by name, so that the order does not depend on the distribution over ranks
  /// (tensor, chunk) of the chunks that no single run of a slice contains completely.
  std::vector<std::pair<std::size_t, std::int64_t>> cut_chunks;
};

/// Returns a description of this rank's slices for the other ranks. Throws std::logic_error for a slice
/// outside its tensor.
std::string describe(const std::vector<TensorSlice>& slices);

/// Combines the descriptions of all ranks. Throws Error naming the tensor and the ranks if shapes or dtypes
/// disagree, or if elements are contributed twice or not at all.
Coverage cover(const std::vector<std::string>& descriptions);

}  // namespace octet::checkpoint
