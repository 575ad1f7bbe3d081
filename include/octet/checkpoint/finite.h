// Values that are not finite, or that a narrower format cannot hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "octet/base/dtype.h"

namespace octet::checkpoint {

/// Returns the index of the first value that is not finite after it is rounded to `dtype` (f32, bf16 or f16).
std::optional<std::int64_t> first_not_finite(const float* values, std::int64_t count,
                                             DType dtype = DType::f32);

/// Throws Error (usage) for such a value. `where` names the checkpoint or file that the values come from, and
/// `fix` what to do if the value itself is not finite.
void require_finite(const std::string& tensor, const float* values, std::int64_t count, DType dtype,
                    const std::string& where,
                    const std::string& fix = "take an earlier checkpoint, and lower learning_rate");

}  // namespace octet::checkpoint
