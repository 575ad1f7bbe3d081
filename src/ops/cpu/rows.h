// Parts of row functions. Arithmetic runs on chunks of floats that stay in the first-level cache: load a
// chunk (from f32 or bf16), compute, round, store, and write the FP8 copy. All functions are inlined into the
// calling OCTET_SIMD function, so that they are compiled for its target.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "block_scale.h"
#include "cpu/simd.h"
#include "octet/base/fp8_vector.h"
#include "octet/ops/types.h"

namespace octet::ops::cpu {

/// Elements of a chunk.
inline constexpr std::int64_t kChunk = 512;

/// Lanes of a sum. The number is fixed, so that a sum has the same bits on every machine.
inline constexpr int kLanes = 32;

/// Returns the length of the chunk that starts at `begin` of `end` elements.
OCTET_INLINE std::int64_t chunk_length(std::int64_t begin, std::int64_t end) {
  return end - begin < kChunk ? end - begin : kChunk;
}

/// Calls f(T{}) with the storage type of a compute dtype, which must be f32 or bf16.
template <typename F>
inline void with_type(DType dtype, F f) {
  if (dtype == DType::bf16) {
    f(Bf16{});
  } else {
    f(float{});
  }
}

/// Returns row r of a matrix with elements of type T.
template <typename T>
OCTET_INLINE const T* row_of(const ConstMatrix& m, std::int64_t r) {
  return static_cast<const T*>(m.data) + r * m.ld;
}
template <typename T>
OCTET_INLINE T* row_of(const Matrix& m, std::int64_t r) {
  return static_cast<T*>(m.data) + r * m.ld;
}

template <typename T>
OCTET_INLINE void load(const T* __restrict from, float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = simd::load(from[i]);
}
template <typename T>
OCTET_INLINE void store(const float* __restrict from, T* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) simd::store(to[i], from[i]);
}
/// Rounds a chunk to T.
template <typename T>
OCTET_INLINE void round_to(float* x, std::int64_t n) {
  if constexpr (!std::is_same_v<T, float>) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = simd::rounded_to<T>(x[i]);
  }
}

/// A sum of many terms in kLanes lanes: term i is added to lane i % kLanes, and lanes are added as a tree.
struct Lanes {
  float lane[kLanes] = {};
};
/// Adds f(i) for i in [0, n). Chunks of one sum start at multiples of kLanes.
template <typename F>
OCTET_INLINE void add_terms(Lanes& sum, std::int64_t n, F f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sum.lane[j] += f(i + j);
  }
  for (int j = 0; i + j < n; ++j) sum.lane[j] += f(i + j);
}
OCTET_INLINE float total(const Lanes& sum) {
  float t[kLanes];
  std::memcpy(t, sum.lane, sizeof(t));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) t[j] += t[j + width];
  }
  return t[0];
}

/// Returns the largest |x| as bits. Non-negative floats are ordered like their bits, and NaN is above
/// infinity.
OCTET_INLINE std::uint32_t max_bits(const float* x, std::int64_t n) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

/// *amax = max(*amax, value of bits), from any thread. NaN wins.
inline void raise_amax(float* amax, std::uint32_t bits) {
  std::atomic_ref<float> shared(*amax);
  float held = shared.load(std::memory_order_relaxed);
  while ((std::bit_cast<std::uint32_t>(held) & 0x7FFFFFFFu) < bits &&
         !shared.compare_exchange_weak(held, std::bit_cast<float>(bits), std::memory_order_relaxed)) {
  }
}

/// Values of a chunk that a cast saturates or rounds to zero.
struct CastCounts {
  std::uint32_t saturated = 0, lost = 0;
};
OCTET_INLINE void count_casts(const float* __restrict y, float scale, std::int64_t n, DType format,
                              CastCounts& counts) {
  const float most = fp8_fits(format), least = fp8_lost(format);
  std::uint32_t saturated = 0, lost = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(y[i] * scale) & 0x7FFFFFFFu);
    saturated += magnitude > most ? 1u : 0u;
    lost += (magnitude <= least) & (y[i] != 0.0f) ? 1u : 0u;
  }
  counts.saturated += saturated;
  counts.lost += lost;
}

/// Adds to the counts of casts, from any thread.
inline void add_seen(Fp8Seen& seen, std::int64_t values, const CastCounts& counts) {
  const auto add = [](std::uint64_t& to, std::uint64_t count) {
    if (count > 0) std::atomic_ref(to).fetch_add(count, std::memory_order_relaxed);
  };
  add(seen.values, static_cast<std::uint64_t>(values));
  add(seen.saturated, counts.saturated);
  add(seen.lost, counts.lost);
}
/// Lowers `to` to the least used scale, from any thread.
inline void lower_scale(float& to, float scale) {
  std::atomic_ref<float> shared(to);
  float held = shared.load(std::memory_order_relaxed);
  while ((held == 0.0f || scale < held) &&
         !shared.compare_exchange_weak(held, scale, std::memory_order_relaxed)) {
  }
}

template <typename F>
OCTET_INLINE void encode_chunk(const float* __restrict y, float scale, std::uint8_t* __restrict to,
                               std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = encode_fp8<F>(y[i] * scale);
}

}  // namespace octet::ops::cpu
