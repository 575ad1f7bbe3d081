// Building blocks of AMX attention. Included only by files that compile for AMX. Every function has the AMX
// target attribute, so that intrinsics compile and functions can be inlined.
//
// Three layouts of bf16: rows [r][c]; pairs [r / 2][c][2], which interleave two rows (the tile layout of the
// right operand); and transposed rows, which are pairs transposed as 32-bit words.
#pragma once

#if defined(__x86_64__)

// GCC 12 reports the "undefined" operands inside its AVX-512 headers as errors.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/attention_tiles.h"
#include "cpu/simd.h"

#define OCTET_AMX __attribute__((target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16")))

namespace octet::ops::cpu::amx {

/// Configures eight tiles of 16 rows of 64 bytes on this thread for the lifetime of the object.
class Tiles {
 public:
  OCTET_AMX Tiles() {
    alignas(64) std::uint8_t config[64] = {};
    config[0] = 1;  // palette
    for (int tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;  // bytes of a row
      config[48 + tile] = 16;      // rows
    }
    _tile_loadconfig(config);
  }
  OCTET_AMX ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

/// C [m, n] f32 = (or +=) A [m, k] · B [k, n]: A in rows, B in pairs. m and n are multiples of 16, k of 32.
struct AmxGemm {
  const std::uint16_t* a;
  std::int64_t lda;  ///< elements
  const std::uint32_t* b;
  std::int64_t ldb;  ///< 32-bit words
  float* c;
  std::int64_t ldc;
  std::int64_t m, n, k;
  bool accumulate;
};

template <int tall, int wide>
OCTET_AMX inline void tile_gemm(const AmxGemm& p, std::int64_t row, std::int64_t col) {
  float* c = p.c + row * p.ldc + col;
  const auto c_stride = static_cast<std::size_t>(p.ldc) * 4, a_stride = static_cast<std::size_t>(p.lda) * 2,
             b_stride = static_cast<std::size_t>(p.ldb) * 4;
  if (p.accumulate) {
    _tile_loadd(0, c, c_stride);
    if constexpr (wide == 2) _tile_loadd(1, c + 16, c_stride);
    if constexpr (tall == 2) _tile_loadd(2, c + 16 * p.ldc, c_stride);
    if constexpr (tall == 2 && wide == 2) _tile_loadd(3, c + 16 * p.ldc + 16, c_stride);
  } else {
    _tile_zero(0);
    if constexpr (wide == 2) _tile_zero(1);
    if constexpr (tall == 2) _tile_zero(2);
    if constexpr (tall == 2 && wide == 2) _tile_zero(3);
  }
  const std::uint16_t* a = p.a + row * p.lda;
  const std::uint32_t* b = p.b + col;
  for (std::int64_t k = 0; k < p.k; k += 32, a += 32, b += 16 * p.ldb) {
    _tile_loadd(4, a, a_stride);
    _tile_loadd(6, b, b_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (wide == 2) {
      _tile_loadd(7, b + 16, b_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (tall == 2) {
      _tile_loadd(5, a + 16 * p.lda, a_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (wide == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_stride);
  if constexpr (wide == 2) _tile_stored(1, c + 16, c_stride);
  if constexpr (tall == 2) _tile_stored(2, c + 16 * p.ldc, c_stride);
  if constexpr (tall == 2 && wide == 2) _tile_stored(3, c + 16 * p.ldc + 16, c_stride);
}

OCTET_AMX inline void multiply(const AmxGemm& p) {
  std::int64_t row = 0;
  for (; row + 32 <= p.m; row += 32) {
    std::int64_t col = 0;
    for (; col + 32 <= p.n; col += 32) tile_gemm<2, 2>(p, row, col);
    if (col < p.n) tile_gemm<2, 1>(p, row, col);
  }
  if (row < p.m) {
    std::int64_t col = 0;
    for (; col + 32 <= p.n; col += 32) tile_gemm<1, 2>(p, row, col);
    if (col < p.n) tile_gemm<1, 1>(p, row, col);
  }
}

/// Transposes a 16 x 16 block of 32-bit words.
OCTET_AMX inline void transpose_16(const std::uint32_t* from, std::int64_t ld, std::uint32_t* to,
                                   std::int64_t ld_to) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + i * ld);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // r[4g + c] holds, in its 128-bit lane l, column 4l + c of rows 4g .. 4g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
    _mm512_storeu_si512(to + c * ld_to, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_storeu_si512(to + (4 + c) * ld_to, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_si512(to + (8 + c) * ld_to, _mm512_shuffle_i32x4(even_low, even_high, 0xDD));
    _mm512_storeu_si512(to + (12 + c) * ld_to, _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD));
  }
}

/// rows x cols words (multiples of 16) -> cols x rows.
OCTET_AMX inline void transpose(const void* from, std::int64_t ld, std::int64_t rows, std::int64_t cols,
                                void* to, std::int64_t ld_to) {
  for (std::int64_t r = 0; r < rows; r += 16) {
    for (std::int64_t c = 0; c < cols; c += 16) {
      transpose_16(static_cast<const std::uint32_t*>(from) + r * ld + c, ld,
                   static_cast<std::uint32_t*>(to) + c * ld_to + r, ld_to);
    }
  }
}

/// Copies rows of head_dim values into rows of `width`. The rest of each row, and further rows up to `total`,
/// are set to zero.
OCTET_AMX inline void copy_rows(const Bf16* from, std::int64_t ld, std::int64_t rows, std::int64_t head_dim,
                                std::uint16_t* to, std::int64_t width, std::int64_t total) {
  const auto bytes = static_cast<std::size_t>(head_dim) * 2;
  const auto rest = static_cast<std::size_t>(width - head_dim) * 2;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * width, from + r * ld, bytes);
    if (rest > 0) std::memset(to + r * width + head_dim, 0, rest);
  }
  std::memset(to + rows * width, 0, static_cast<std::size_t>((total - rows) * width) * 2);
}

/// Zero-extends 16 16-bit values to 32-bit words.
OCTET_AMX inline __m512i widened(const std::uint16_t* x) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}

/// rows [2n][ld] -> pairs [n][cols]; cols is a multiple of 16.
OCTET_AMX inline void pair_rows(const std::uint16_t* from, std::int64_t ld, std::int64_t rows,
                                std::int64_t cols, std::uint32_t* to) {
  for (std::int64_t r = 0; r < rows; r += 2) {
    const std::uint16_t* low = from + r * ld;
    for (std::int64_t c = 0; c < cols; c += 16) {
      const __m512i both = _mm512_or_si512(widened(low + c), _mm512_slli_epi32(widened(low + ld + c), 16));
      _mm512_storeu_si512(to + r / 2 * cols + c, both);
    }
  }
}

/// Converts two rows of 16 fp32 values to one row of bf16 pairs.
OCTET_AMX inline __m512i paired(__m512 low, __m512 high) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

/// rows of f32 [ld] times factor -> bf16 rows.
OCTET_AMX inline void store_rows(const float* from, std::int64_t ld, std::int64_t rows, std::int64_t head_dim,
                                 float factor, Bf16* to, std::int64_t ld_to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = from + r * ld;
    Bf16* out = to + r * ld_to;
    for (std::int64_t i = 0; i < head_dim; ++i) simd::store(out[i], row[i] * factor);
  }
}

/// e^x of 16 values, like simd::exp, but the power of two is one instruction.
OCTET_AMX inline __m512 exp(__m512 x) {
  const auto constant = _mm512_set1_ps;
  // If x is NaN, these instructions return the second operand.
  const __m512 y = _mm512_min_ps(constant(89.0f), _mm512_max_ps(constant(-104.0f), x));
  const __m512 magic = constant(12582912.0f);
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(y, constant(1.44269504088896341f), magic), magic);
  __m512 r = _mm512_fnmadd_ps(n, constant(0.693145752f), y);
  r = _mm512_fnmadd_ps(n, constant(1.42860677e-06f), r);
  __m512 p = constant(1.9875691500e-4f);
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = _mm512_fmadd_ps(p, r, constant(c));
  }
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), constant(1.0f));
  return _mm512_scalef_ps(p, n);
}

/// cap * tanh(x / cap) of a row of 64.
OCTET_AMX inline void cap_row(float* row, float scale, float cap) {
  for (std::int64_t q = 0; q < block; ++q) row[q] = cap * simd::tanh(row[q] * scale / cap);
}

/// Returns a bit for each of 16 consecutive queries: set if 0 <= distance < reach. The distance to the key is
/// `back` for the first query and increases by 1.
OCTET_AMX inline __mmask16 seen(std::int32_t back, std::int32_t reach) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i distance = _mm512_add_epi32(lanes, _mm512_set1_epi32(back));
  return _mm512_cmpge_epi32_mask(distance, _mm512_setzero_si512()) &
         _mm512_cmplt_epi32_mask(distance, _mm512_set1_epi32(reach));
}

/// Allocates pieces of scratch, aligned to 64 bytes.
class Pieces {
 public:
  explicit Pieces(void* memory) : next_(static_cast<std::uint8_t*>(memory)) {}
  template <typename T>
  T* take(std::int64_t count) {
    auto* here = reinterpret_cast<T*>(next_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return here;
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* next_;
  std::size_t used_ = 0;
};

}  // namespace octet::ops::cpu::amx

#endif
