// A piece of a named tensor in host memory: the currency between parameter stores, checkpoints and exports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/dtype.h"

namespace octet {

/// Elements [begin, begin + count) (row-major order) of the tensor `name`, at `data` (host memory, dense).
struct TensorSlice {
  std::string name;  ///< "model.layers.0.mlp.down_proj.weight", "exp_avg/…"
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t begin = 0;
  std::int64_t count = 0;
  void* data = nullptr;
};

/// Product of the extents; throws Error when one is negative or the product overflows.
std::int64_t element_count(const std::vector<std::int64_t>& shape, const std::string& name);

}  // namespace octet
