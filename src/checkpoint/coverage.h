// What the ranks together give to a checkpoint: each element of each tensor exactly once.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/tensor_header.h"

namespace octet::checkpoint {

struct Coverage {
  std::vector<TensorHeader> tensors;  ///< by name, so that the order does not depend on who holds what
  /// (tensor, chunk) of the chunks that no single run of a slice holds whole.
  std::vector<std::pair<std::size_t, std::int64_t>> cut_chunks;
};

/// Describes a rank's slices for the others. Throws std::logic_error for a slice outside its tensor.
std::string describe(const std::vector<TensorSlice>& slices);

/// Puts the descriptions of all ranks together. Throws Error naming the tensor and the ranks when shapes or
/// dtypes disagree, elements are given twice or not at all.
Coverage cover(const std::vector<std::string>& descriptions);

}  // namespace octet::checkpoint
