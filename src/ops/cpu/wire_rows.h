// Loops over elements for encoding and decoding transferred values, with the widest vectors of the processor.
// Encoding runs concurrently with the computation and must not delay it.
#pragma once

#include <cstdint>

namespace octet::ops::cpu::rows {

/// Computes the E4M3 codes of x / scale. scale must be finite and above 0.
void encode_e4m3(const float* x, float scale, std::int64_t n, std::uint8_t* codes);
/// Rounds x / scale to the nearest integers, ties to even, at most 127 in magnitude.
void encode_int8(const float* x, float scale, std::int64_t n, std::uint8_t* codes);
void decode_e4m3(const std::uint8_t* codes, float scale, std::int64_t n, float* to);
void decode_int8(const std::uint8_t* codes, float scale, std::int64_t n, float* to);
/// Rounds to bf16. All NaNs become the same NaN.
void to_bf16(const float* x, std::int64_t n, std::uint16_t* to);
void from_bf16(const std::uint16_t* x, std::int64_t n, float* to);
/// Copies x and makes all NaNs the same NaN; `to` may be x.
void settle(const float* x, std::int64_t n, float* to);
/// Returns the largest magnitude. Infinity and NaN are larger than all finite values.
float largest(const float* x, std::int64_t n);
/// to[i] = a[i] + b[i]; `to` may be a or b.
void add(const float* a, const float* b, std::int64_t n, float* to);
/// lost[i] = x[i] - y[i], or 0 if that is not finite; lost may be y.
void lost(const float* x, const float* y, std::int64_t n, float* lost);

}  // namespace octet::ops::cpu::rows
