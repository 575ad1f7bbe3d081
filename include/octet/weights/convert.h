// Conversion of runs of elements between dtypes. Pointers may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "octet/base/dtype.h"

namespace octet::weights {

constexpr bool is_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::f64 || is_fp8(t);
}

/// Converts `count` elements of a float dtype to float. f64 rounds to nearest even; the others are exact.
void to_float(DType dtype, const std::byte* from, std::int64_t count, float* out);
/// Like to_float(), but converts to bf16 (round to nearest even). bf16 is copied bit by bit.
void to_bf16(DType dtype, const std::byte* from, std::int64_t count, Bf16* out);
/// Converts `count` elements of an integer dtype or boolean to int64, exactly.
void to_int64(DType dtype, const std::byte* from, std::int64_t count, std::int64_t* out);
/// Converts `count` floats to a float dtype: round to nearest even, FP8 saturating.
void from_float(DType dtype, const float* from, std::int64_t count, std::byte* out);

// Values that are not finite, or that a narrower format cannot hold.

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
