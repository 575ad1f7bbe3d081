#pragma once

namespace octet::runtime {

/// What to do if the shapes of a model keep GEMMs from FP8.
inline constexpr const char* kFp8Shapes =
    "make hidden_size, intermediate_size and the widths of heads multiples of 16, or take another fp8_recipe";

}  // namespace octet::runtime
