// Shared code of the ops' CPU sides: an attribute that compiles a row function for several x86-64 levels,
// branch-free fp32 functions that the compiler vectorises, and loops over rows on threads.
//
// Pattern: a row function (without OpenMP) is marked OCTET_SIMD and written as plain loops over elements.
// parallel_rows calls it. The helpers here are inlined into it and use its instruction set. Only fmadd fuses
// a product and a sum into one rounding, so the bits are the same at every level.
#pragma once

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "octet/base/dtype.h"
#include "octet/base/fp8_vector.h"
#include "octet/device/cpu.h"

namespace octet::ops::simd {

/// a * b + c with one rounding.
OCTET_INLINE float fmadd(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

/// T -> float for f32 and bf16.
OCTET_INLINE float load(float x) {
  return x;
}
OCTET_INLINE float load(Bf16 x) {
  return from_bf16(x.bits);
}

OCTET_INLINE void store(float& to, float x) {
  to = x;
}
OCTET_INLINE void store(Bf16& to, float x) {
  to.bits = to_bf16(x);
}

/// Returns x rounded to T.
template <typename T>
OCTET_INLINE float rounded_to(float x) {
  T kept;
  store(kept, x);
  return load(kept);
}

/// e^x within 1.5 ulp over the whole range: 0 for -inf and on underflow (subnormals are kept), inf above
/// 88.73, NaN for NaN. Cody-Waite reduction by ln 2 and a polynomial of degree 7 (Cephes expf).
OCTET_INLINE float exp(float x) {
  constexpr float log2e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693145752f;    // 17 bits: n * ln2_high is exact
  constexpr float ln2_low = 1.42860677e-06f;  // ln 2 - ln2_high
  constexpr float to_integer = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer
  float y = x < -104.0f ? -104.0f : x;
  y = y > 89.0f ? 89.0f : y;
  const float shifted = fmadd(y, log2e, to_integer);
  const float n = shifted - to_integer;
  const float r = fmadd(-n, ln2_low, fmadd(-n, ln2_high, y));
  float p = 1.9875691500e-4f;
  p = fmadd(p, r, 1.3981999507e-3f);
  p = fmadd(p, r, 8.3334519073e-3f);
  p = fmadd(p, r, 4.1665795894e-2f);
  p = fmadd(p, r, 1.6666665459e-1f);
  p = fmadd(p, r, 5.0000001201e-1f);
  p = fmadd(p, r * r, r) + 1.0f;
  // 2^n in two factors: n ranges from -150 to 128, and one factor would leave the normal range.
  const auto whole = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u);
  const std::int32_t half = whole >> 1;
  const auto first = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const auto second = std::bit_cast<float>(static_cast<std::uint32_t>(whole - half + 127) << 23);
  return p * first * second;
}

/// tanh(x) within 3 ulp: an odd polynomial near zero, 1 - 2 / (e^2|x| + 1) elsewhere.
OCTET_INLINE float tanh(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto a = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  const float e = exp(2.0f * a);  // infinity gives 1
  const float large = 1.0f - 2.0f / (e + 1.0f);
  // Rational form of Cephes' tanhf for |x| < 0.625.
  const float s = x * x;
  float p = -5.70498872745e-3f;
  p = fmadd(p, s, 2.06390887954e-2f);
  p = fmadd(p, s, -5.37397155531e-2f);
  p = fmadd(p, s, 1.33314422036e-1f);
  p = fmadd(p, s, -3.33332819422e-1f);
  const float small = fmadd(p * s, x, x);
  // Chosen by a mask: a conditional would be compiled to a branch around the division.
  const auto near_zero = static_cast<std::uint32_t>(-static_cast<std::int32_t>(a < 0.625f));
  const std::uint32_t far = std::bit_cast<std::uint32_t>(large) | (bits & 0x80000000u);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(small) & near_zero) | (far & ~near_zero));
}

/// Calls body(begin, end) for disjoint ranges that cover [0, rows), on at most cpu::op_threads() threads. The
/// ranges are equal static pieces; if cpu::claims(), threads claim smaller pieces dynamically. Runs in the
/// caller alone if rows * work_per_row (approximate operations) is too little to share. The body must not
/// throw.
template <typename Body>
void parallel_rows(std::int64_t rows, std::int64_t work_per_row, const Body& body) {
  if (rows <= 0) return;
  constexpr double worth_a_thread = 16384;  // about the cost of waking a thread
  const double work =
      static_cast<double>(rows) * static_cast<double>(std::max<std::int64_t>(1, work_per_row));
  std::int64_t threads = std::min<std::int64_t>(octet::cpu::op_threads(), rows);
  threads = std::min(threads, 1 + static_cast<std::int64_t>(work / worth_a_thread));
  if (threads <= 1) {
    body(std::int64_t{0}, rows);
    return;
  }
  if (octet::cpu::claims()) {
    const std::int64_t pieces =
        std::min({rows, 4 * threads, 1 + static_cast<std::int64_t>(work / worth_a_thread)});
    octet::cpu::share(static_cast<int>(pieces),
                      [&](int piece, int) { body(rows * piece / pieces, rows * (piece + 1) / pieces); });
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    // The runtime may start fewer threads than requested.
    const std::int64_t team = omp_get_num_threads();
    const std::int64_t me = omp_get_thread_num();
    const std::int64_t begin = rows * me / team;
    const std::int64_t end = rows * (me + 1) / team;
    if (begin < end) body(begin, end);
  }
}

/// Calls body(piece) for each of `pieces` pieces, which threads take dynamically. `work_of_piece`:
/// approximate operations. The body must not throw.
template <typename Body>
void parallel_pieces(std::int64_t pieces, std::int64_t work_of_piece, const Body& body) {
  const std::int64_t threads = std::min<std::int64_t>(octet::cpu::op_threads(), pieces);
  if (threads <= 1 || pieces * work_of_piece < 32768) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(piece);
    return;
  }
  if (octet::cpu::claims()) {
    octet::cpu::share(static_cast<int>(pieces), [&](int piece, int) { body(piece); });
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast <int>(threads))
  for (std::int64_t piece = 0; piece < pieces; ++piece) body(piece);
}

}  // namespace octet::ops::simd
