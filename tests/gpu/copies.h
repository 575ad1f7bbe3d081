// Helpers of GPU tests of ops with FP8 copies: shapes, and the comparison of copies with their source values.
#pragma once

#include <cmath>
#include <cstring>

#include "gpu/sides.h"
#include "octet/ops/block_quantize.h"

namespace octet::ops {

inline constexpr std::int64_t kShapes[][2] = {{1, 8},     {1, 1},     {127, 80}, {129, 257},  {128, 768},
                                              {64, 4096}, {144, 128}, {3, 6000}, {200, 1300}, {0, 64}};
/// An FP8 copy that is requested from an op on a side. Copies are compared with the values of the same side,
/// because a value on the other side of a rounding boundary has another code.
struct Copies {
  Copies(Side& on, DType format, std::int64_t rows, std::int64_t cols) : side(on), count(rows * cols) {
    const std::vector<std::uint8_t> poison(static_cast<std::size_t>(count), 0xEE);
    into = {.format = format,
            .row = side.put(poison),
            .transposed = side.put(poison),
            .scale = side.put(std::vector<float>{13.7f}),
            .amax = side.put(std::vector<float>{0.0f}),
            .seen = side.put(std::vector<Fp8Seen>{Fp8Seen{}})};
  }
  /// Checks the copies against the matrix of this side, bit by bit.
  void hold_to(const Matrix& y) {
    Side::Output values, row, flipped, amax;
    side.out("", y);
    values = side.take();
    side.out("", into.row, count, DType::u8);
    row = side.take();
    side.out("", into.transposed, count, DType::u8);
    flipped = side.take();
    side.out("", into.amax, 1, DType::f32);
    amax = side.take();
    double most = 0;
    int wrong = 0;
    for (std::int64_t r = 0; r < y.rows && wrong < 5; ++r) {
      for (std::int64_t c = 0; c < y.cols && wrong < 5; ++c) {
        const auto value = static_cast<float>(values.at(r, c));
        most = std::max(most, std::abs(values.at(r, c)));
        const std::uint8_t code = to_fp8(value * 13.7f, into.format);
        if (row.at(0, r * y.cols + c) == code && flipped.at(0, c * y.rows + r) == code) continue;
        ++wrong;
        ADD_FAILURE() << "FP8 copy at (" << r << ", " << c << ") of " << value << ": row "
                      << row.at(0, r * y.cols + c) << ", transposed " << flipped.at(0, c * y.rows + r)
                      << ", expected " << static_cast<int>(code);
      }
    }
    EXPECT_EQ(amax.at(0, 0), most);
    side.out("", reinterpret_cast<const std::uint8_t*>(into.seen), sizeof(Fp8Seen), DType::u8);
    const Side::Output bytes = side.take();
    Fp8Seen seen;
    std::memcpy(&seen, bytes.bytes.data(), sizeof seen);
    Fp8Seen want = seen_of(
        y.rows, y.cols, into.format, [&](auto r, auto c) { return values.at(r, c); },
        [](auto, auto) { return 13.7f; });
    want.scale = want.values > 0 ? 13.7f : 0;
    expect_seen(seen, want);
  }

  Side& side;
  std::int64_t count;
  QuantizeInto into;
};

/// An FP8 copy with a scale per row on a side.
struct RowCopy {
  RowCopy(Side& on, std::int64_t r, std::int64_t c)
      : side(on),
        rows(r),
        cols(c),
        codes(side.put(std::vector<std::uint8_t>(static_cast<std::size_t>(r * c + 16), 0xEE))),
        scales(side.put(std::vector<float>(static_cast<std::size_t>(r + 4), -7.0f))) {}
  QuantizeInto into() const { return {.row = codes, .row_scale_inv = scales}; }
  void of(const Matrix& x) {
    block_quantize(side, {.x = x, .scaling = Scaling::whole_rows, .row = codes, .scale_inv = scales});
  }
  void tell() {
    side.out("codes", codes, rows * cols + 16, DType::u8);
    side.out("scales", scales, rows + 4, DType::f32);
  }
  Operand operand() const {
    return {.data = codes,
            .dtype = DType::e4m3,
            .rows = rows,
            .cols = cols,
            .scale_inv = scales,
            .scaling = Scaling::whole_rows};
  }
  /// Checks that this is the copy of a matrix of this side, bit by bit. The GPU's values may differ from the
  /// CPU's in their last bits, but the copy must match the GPU's values.
  void hold_to(const Matrix& y) {
    side.out("", y);
    const Side::Output values = side.take();
    side.out("", codes, rows * cols, DType::u8);
    const Side::Output found = side.take();
    side.out("", scales, rows, DType::f32);
    const Side::Output scale = side.take();
    for (std::int64_t r = 0; r < rows; ++r) {
      double most = 0;
      for (std::int64_t c = 0; c < cols; ++c) most = std::max(most, std::abs(values.at(r, c)));
      const double s = scale.at(0, r);
      if (most > 0) {
        ASSERT_TRUE(most / s <= 448 && most / s > 224) << "row " << r << ": " << s;
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(found.at(0, r * cols + c), to_fp8(static_cast<float>(values.at(r, c) / s), DType::e4m3))
            << r << "," << c;
      }
    }
  }

  Side& side;
  std::int64_t rows, cols;
  std::uint8_t* codes;
  float* scales;
};

}  // namespace octet::ops
