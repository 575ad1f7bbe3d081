#include "octet/ops/block_quantize.h"

#include <algorithm>

#include "block_scale.h"
#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t kSide = kScaleBlock;

/// A square of the matrix as floats, in the layout of the output.
struct Square {
  float value[kSide][kSide];
  std::int64_t lines = 0, length = 0;
};

template <typename T>
OCTET_SIMD void load_square(const ConstMatrix& x, std::int64_t row0, std::int64_t col0, Square& s) {
  s.lines = std::min(kSide, x.rows - row0);
  s.length = std::min(kSide, x.cols - col0);
  for (std::int64_t r = 0; r < s.lines; ++r) load(row_of<T>(x, row0 + r) + col0, s.value[r], s.length);
}

OCTET_SIMD void turn(const Square& from, Square& to) {
  to.lines = from.length;
  to.length = from.lines;
  for (std::int64_t c = 0; c < to.lines; ++c) {
    for (std::int64_t r = 0; r < to.length; ++r) to.value[c][r] = from.value[r][c];
  }
}

OCTET_SIMD std::uint32_t largest(const Square& s) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < s.lines; ++i) most = std::max(most, max_bits(s.value[i], s.length));
  return most;
}

/// An output layout of a matrix: [lines, length].
struct Layout {
  Scaling scaling;
  std::uint8_t* codes;
  float* scale_inv;
  std::int64_t lines, length;
  Fp8Seen* seen = nullptr;
};

OCTET_SIMD void write_square(const Layout& to, const Square& s, std::int64_t line0, std::int64_t at0) {
  const bool squares = to.scaling == Scaling::squares;
  const std::int32_t of_square = squares ? block_exponent(largest(s)) : 0;
  if (squares) {
    float* scale = to.scale_inv + scale_index(to.scaling, to.lines, to.length, line0, at0);
    const std::int64_t block = at0 / kSide;
    const bool last = block + 1 == scale_blocks(to.length);
    *scale = power_of_two(of_square);
    for (std::int64_t i = 1; last && block + i < square_pitch(to.length); ++i) scale[i] = 1.0f;
  }
  CastCounts counts;
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < s.lines; ++i) {
    const std::int32_t e = squares ? of_square : block_exponent(max_bits(s.value[i], s.length));
    if (to.seen) {
      count_casts(s.value[i], power_of_two(-e), s.length, DType::e4m3, counts);
      const std::uint32_t bits = max_bits(s.value[i], s.length);
      most = bits > most ? bits : most;
    }
    if (!squares)
      to.scale_inv[scale_index(to.scaling, to.lines, to.length, line0 + i, at0)] = power_of_two(e);
    encode_chunk<E4M3>(s.value[i], power_of_two(-e), to.codes + (line0 + i) * to.length + at0, s.length);
  }
  if (to.seen == nullptr) return;
  if (most > 0) raise_amax(&to.seen->amax, most);
  add_seen(*to.seen, s.lines * s.length, counts);
}

template <typename T>
OCTET_SIMD void write_row(const BlockQuantizeArgs& a, RowQuantizer& quantizer, std::int64_t row) {
  float x[kChunk];
  for (std::int64_t c = 0; c < a.x.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, a.x.cols);
    load(row_of<T>(a.x, row) + c, x, n);
    quantizer.take(x, row, c, n);
  }
  quantizer.finish_row();
}

void quantize_whole_rows(const BlockQuantizeArgs& a) {
  const QuantizeInto into{.row = a.row, .row_scale_inv = a.scale_inv};
  with_type(a.x.dtype, [&](auto type) {
    simd::parallel_rows(a.x.rows, 2 * a.x.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(into, a.x.rows, a.x.cols);
      for (std::int64_t row = begin; row < end; ++row) write_row<decltype(type)>(a, quantizer, row);
    });
  });
}

}  // namespace

void block_quantize(const BlockQuantizeArgs& a) {
  if (a.scaling == Scaling::whole_rows) return quantize_whole_rows(a);
  const std::int64_t across = scale_blocks(a.x.cols);
  simd::parallel_rows(
      scale_blocks(a.x.rows) * across, kSide * kSide, [&](std::int64_t begin, std::int64_t end) {
        Square square, flipped;
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t row0 = i / across * kSide, col0 = i % across * kSide;
          with_type(a.x.dtype, [&](auto type) { load_square<decltype(type)>(a.x, row0, col0, square); });
          if (a.row != nullptr) {
            write_square({a.scaling, a.row, a.scale_inv, a.x.rows, a.x.cols, a.seen}, square, row0, col0);
          }
          if (a.transposed == nullptr) continue;
          turn(square, flipped);
          write_square({a.scaling, a.transposed, a.transposed_scale_inv, a.x.cols, a.x.rows}, flipped, col0,
                       row0);
        }
      });
}

}  // namespace octet::ops::cpu
