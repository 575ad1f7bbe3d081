// Helpers of GPU tests of ops with FP8 copies: shapes, and the comparison of copies with their source values.
#pragma once

#include <cmath>
#include <cstring>

#include "gpu/sides.h"

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

}  // namespace octet::ops
