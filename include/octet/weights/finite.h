// Values that are not finite, or that a narrower format cannot hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "octet/base/dtype.h"

namespace octet::weights {

struct StoredTensor;
class WeightFolder;

/// Returns the index of the first value that is not finite after it is rounded to `dtype` (f32, bf16 or f16).
std::optional<std::int64_t> first_not_finite(const float* values, std::int64_t count,
                                             DType dtype = DType::f32);

/// Returns whether all values of a tensor of the folder are finite. Tensors of other formats than f32, bf16
/// and f16 count as finite.
bool is_finite(const WeightFolder& weights, const StoredTensor& tensor);

/// Returns "tensor 'NAME' of FILE".
std::string name_in_file(const StoredTensor& tensor);

/// Returns the name_in_file() of the first tensor of a folder of weights that is not finite, or "".
std::string first_not_finite_tensor(const std::string& folder, const std::string& stem = "model");

/// Throws Error (usage) if first_not_finite() finds a value. `where` names the checkpoint or file of the
/// values. `fix` is the advice for a value that is itself not finite.
void require_finite(const std::string& tensor, const float* values, std::int64_t count, DType dtype,
                    const std::string& where,
                    const std::string& fix = "take an earlier checkpoint, and lower learning_rate");

}  // namespace octet::weights
