// Loops over elements that wires are made of, for as wide vectors as the processor has: encoding runs beside
// the computation that it must not hold up.
#pragma once

#include <cstdint>

namespace octet::ops::cpu::rows {

/// Values to E4M3 codes of x / scale; scale is finite and above 0.
void encode_e4m3(const float* x, float scale, std::int64_t n, std::uint8_t* codes);
/// Values to the nearest whole numbers of x / scale, ties to even, at most 127 in magnitude.
void encode_int8(const float* x, float scale, std::int64_t n, std::uint8_t* codes);
void decode_e4m3(const std::uint8_t* codes, float scale, std::int64_t n, float* to);
void decode_int8(const std::uint8_t* codes, float scale, std::int64_t n, float* to);
/// Rounded; all NaNs are the same.
void to_bf16(const float* x, std::int64_t n, std::uint16_t* to);
void from_bf16(const std::uint16_t* x, std::int64_t n, float* to);
/// A copy in which all NaNs are the same; `to` may be x.
void settle(const float* x, std::int64_t n, float* to);
/// The largest magnitude; what is not finite is above all others: infinity or NaN comes back then.
float largest(const float* x, std::int64_t n);
/// to[i] = a[i] + b[i]; `to` may be one of them.
void add(const float* a, const float* b, std::int64_t n, float* to);
/// lost[i] = x[i] - y[i], or 0 where that is not finite; lost may be y.
void lost(const float* x, const float* y, std::int64_t n, float* lost);

}  // namespace octet::ops::cpu::rows
