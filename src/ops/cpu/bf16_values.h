// A dense bf16 matrix that owns its memory, for ops that are composed of other ops.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/ops/types.h"

namespace octet::ops::cpu {

struct Bf16Values {
  Bf16Values(std::int64_t rows, std::int64_t cols)
      : data(static_cast<std::size_t>(rows * cols)), matrix{data.data(), DType::bf16, rows, cols, cols} {}
  Bf16Values(const Bf16Values&) = delete;
  Bf16Values& operator=(const Bf16Values&) = delete;
  std::vector<std::uint16_t> data;
  Matrix matrix;
};

}  // namespace octet::ops::cpu
