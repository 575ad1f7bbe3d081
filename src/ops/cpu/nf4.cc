#include "octet/ops/nf4.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/rows.h"
#include "nf4_rules.h"

namespace octet::ops::cpu {
namespace {

constexpr Nf4Table kTable;

template <typename T>
OCTET_SIMD void quantize_blocks(const Nf4QuantizeArgs& a, std::int64_t first, std::int64_t last) {
  float x[kNf4Block];
  for (std::int64_t b = first; b < last; ++b) {
    const std::int64_t begin = b * kNf4Block, n = std::min(kNf4Block, a.count - begin);
    load(static_cast<const T*>(a.x) + begin, x, n);
    for (std::int64_t i = n; i < kNf4Block; ++i) x[i] = 0.0f;
    float most = 0.0f;
    for (std::int64_t i = 0; i < kNf4Block; ++i) most = std::max(most, std::abs(x[i]));
    a.scales[b] = most;
    const float reciprocal = 1.0f / most;
    for (std::int64_t i = 0; i < kNf4Block; ++i) x[i] *= reciprocal;
    // A code is the number of thresholds below its element. This needs no branches.
    std::int32_t codes[kNf4Block] = {};
    for (int t = 0; t < 15; ++t) {
      const float threshold = between(kTable.value[t], kTable.value[t + 1]);
      for (std::int64_t i = 0; i < kNf4Block; ++i) codes[i] += x[i] > threshold ? 1 : 0;
    }
    for (std::int64_t i = 0; i < n; i += 2) {
      a.codes[(begin + i) / 2] = static_cast<std::uint8_t>(codes[i] << 4 | codes[i + 1]);
    }
  }
}

float scale_of(const Nf4Scales& s, std::int64_t block) {
  if (s.plain != nullptr) return s.plain[block];
  return nf4_scale(nf4_scale_values()[s.codes[block]], s.nested[block / kNf4ScaleBlock], *s.mean);
}

template <typename T>
OCTET_SIMD void decode_blocks(const Nf4DecodeArgs& a, std::int64_t first, std::int64_t last) {
  float x[kNf4Block];
  for (std::int64_t b = first; b < last; ++b) {
    const std::int64_t block = a.begin / kNf4Block + b;
    const float scale = scale_of(a.scales, block);
    const std::int64_t n = std::min(kNf4Block, a.count - b * kNf4Block);
    const std::uint8_t* codes = a.codes + block * (kNf4Block / 2);
    for (std::int64_t i = 0; i < n; ++i) {
      const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
      x[i] = kTable.value[code] * scale;
    }
    store(x, static_cast<T*>(a.to) + b * kNf4Block, n);
  }
}

/// Processes one row at a time. A row may begin and end inside of a block.
template <typename T>
OCTET_SIMD void cast_rows(const Nf4ToFp8Args& a, std::int64_t first, std::int64_t last) {
  float x[kNf4Block];
  T rounded[kNf4Block];
  std::uint8_t cast[kNf4Block];
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t col = 0, n = 0; col < a.cols; col += n) {
      const std::int64_t at = row * a.cols + col, block = at / kNf4Block;
      n = std::min(kNf4Block - at % kNf4Block, a.cols - col);
      const float scale = scale_of(a.scales, block);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint8_t both = a.codes[(at + i) / 2];
        x[i] = kTable.value[(at + i) % 2 == 0 ? both >> 4 : both & 15] * scale;
      }
      store(x, rounded, n);
      load(rounded, x, n);
      std::uint8_t* const to = a.row != nullptr ? a.row + at : cast;
      if (a.format == DType::e4m3) {
        encode_chunk<E4M3>(x, *a.scale, to, n);
      } else {
        encode_chunk<E5M2>(x, *a.scale, to, n);
      }
      if (a.transposed == nullptr) continue;
      for (std::int64_t i = 0; i < n; ++i) a.transposed[(col + i) * a.transposed_ld + row] = to[i];
    }
  }
}

/// Calls act(tensor, first, last) for rows [begin, end) of a series with `rows` rows per tensor.
template <typename Act>
void each_of_series(std::int64_t rows, std::int64_t begin, std::int64_t end, Act&& act) {
  while (begin < end) {
    const std::int64_t tensor = begin / rows, first = begin % rows;
    const std::int64_t last = std::min(rows, first + end - begin);
    act(tensor, first, last);
    begin += last - first;
  }
}

}  // namespace

void nf4_quantize(const Nf4QuantizeArgs& a) {
  simd::parallel_rows(nf4_blocks(a.count), 4 * kNf4Block, [&](std::int64_t begin, std::int64_t end) {
    with_type(a.dtype, [&](auto type) { quantize_blocks<decltype(type)>(a, begin, end); });
  });
}

void nf4_quantize_scales(const Nf4QuantizeScalesArgs& a) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < a.blocks; begin += kNf4ScaleBlock) {
    double run = 0;
    for (std::int64_t b = begin; b < std::min(begin + kNf4ScaleBlock, a.blocks); ++b) run += a.scales[b];
    sum += run;
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(a.blocks));
  *a.mean = mean;
  const float* map = nf4_scale_values();
  for (std::int64_t begin = 0; begin < a.blocks; begin += kNf4ScaleBlock) {
    const std::int64_t end = std::min(begin + kNf4ScaleBlock, a.blocks);
    float most = 0;
    for (std::int64_t b = begin; b < end; ++b) most = std::max(most, std::abs(a.scales[b] - mean));
    a.nested[begin / kNf4ScaleBlock] = most;
    const float reciprocal = 1.0f / most;
    for (std::int64_t b = begin; b < end; ++b) {
      a.codes[b] = static_cast<std::uint8_t>(nf4_scale_code(map, (a.scales[b] - mean) * reciprocal));
    }
  }
}

void nf4_decode(const Nf4DecodeArgs& a) {
  const std::int64_t blocks = nf4_blocks(a.count);
  simd::parallel_rows(a.series.tensors * blocks, kNf4Block, [&](std::int64_t begin, std::int64_t end) {
    with_type(a.dtype, [&](auto type) {
      each_of_series(blocks, begin, end, [&](std::int64_t tensor, std::int64_t first, std::int64_t last) {
        decode_blocks<decltype(type)>(nth_of_series(a, tensor), first, last);
      });
    });
  });
}

void nf4_to_fp8(const Nf4ToFp8Args& a) {
  simd::parallel_rows(a.series.tensors * a.rows, a.cols, [&](std::int64_t begin, std::int64_t end) {
    with_type(a.through, [&](auto type) {
      each_of_series(a.rows, begin, end, [&](std::int64_t tensor, std::int64_t first, std::int64_t last) {
        cast_rows<decltype(type)>(nth_of_series(a, tensor), first, last);
      });
    });
  });
}

}  // namespace octet::ops::cpu
