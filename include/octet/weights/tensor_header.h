// Name, dtype and shape of a tensor, without its values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/dtype.h"

namespace octet::weights {

struct TensorHeader {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar
};

/// Returns the shape as text, for example "[4096, 128]", or "[]" for a scalar.
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Returns the bytes of the values. Throws Error naming the tensor if an extent is negative or the product
/// overflows.
std::int64_t byte_count(const TensorHeader& tensor);

}  // namespace octet::weights
