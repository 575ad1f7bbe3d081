// FP8 copies and their scales on the GPU have the bits of the CPU.
#include <cstring>
#include <limits>

#include "gpu/copies.h"
#include "octet/ops/quantize.h"

namespace octet::ops::quantize_test {
namespace {

TEST(Quantize, GivesTheSameBitsForEveryFloatPattern) {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    for (const std::uint32_t low : {0x0u, 0x1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      x.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  const auto n = static_cast<std::int64_t>(x.size());
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    for (const float scale : {1.0f, 0.37f, 3.4e38f}) {
      both(
          [&](Side& s) {
            const float* values = s.put(x);
            auto* row = s.put(std::vector<std::uint8_t>(x.size(), 0xEE));
            auto* seen = s.put(std::vector<Fp8Seen>{Fp8Seen{}});
            quantize(s, {values, DType::f32, 1, n, n},
                     {.format = format, .row = row, .scale = s.put(std::vector<float>{scale}), .seen = seen});
            s.out("codes", row, n, DType::u8);
            s.out("counts", reinterpret_cast<std::uint8_t*>(&seen->values), 3 * sizeof seen->values,
                  DType::u8);
            s.out("amax and scale", &seen->amax, 2, DType::f32);
          },
          {});
    }
  }
}

TEST(Quantize, BothLayoutsAndTheAmaxOfEveryShape) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, cols] : kShapes) {
      for (const DType format : {DType::e4m3, DType::e5m2}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
        const Tensor x = Tensor::random(dtype, rows, cols, 1, 5);
        both(
            [&](Side& s) {
              const Matrix m = s.put(x);
              Copies copies(s, format, rows, cols);
              quantize(s, m, copies.into);
              copies.hold_to(m);
              s.out("row", copies.into.row, rows * cols, DType::u8);
              s.out("transposed", copies.into.transposed, rows * cols, DType::u8);
              auto* most = s.put(std::vector<float>{0.25f});
              amax(s, m, most);
              s.out("amax alone", most, 1, DType::f32);
              auto* flipped = s.put(std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols), 0x11));
              transpose(s, {.from = copies.into.row, .rows = rows, .cols = cols, .to = flipped});
              s.out("transpose", flipped, rows * cols, DType::u8);
            },
            {});
      }
    }
  }
}

TEST(Quantize, EachMatrixHasItsScaleAndAmax) {
  constexpr std::int64_t count = 5;
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, cols] : kShapes) {
      for (const bool copied : {true, false}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
        const Tensor x = Tensor::random(dtype, count * rows, cols, 1, 5, 0);
        both(
            [&](Side& s) {
              const Matrix m = s.put(x);
              const std::vector<std::uint8_t> poison(static_cast<std::size_t>(count * rows * cols), 0xEE);
              QuantizeInto into{.format = rows % 2 == 0 ? DType::e4m3 : DType::e5m2,
                                .amax = s.put(std::vector<float>(count))};
              if (copied) {
                into.row = s.put(poison);
                into.transposed = s.put(poison);
                into.scale = s.put(std::vector<float>{0.5f, 3.0f, 40.0f, 1.0f, 7.0f});
                into.seen = s.put(std::vector<Fp8Seen>(count));
              }
              quantize_each(s, {.x = m,
                                .count = count,
                                .into = into,
                                .skip = copied ? nullptr : s.put(std::vector<std::int32_t>{0})});
              s.out("amax", into.amax, count, DType::f32);
              if (!copied) return;
              s.out("row", into.row, count * rows * cols, DType::u8);
              s.out("transposed", into.transposed, count * rows * cols, DType::u8);
            },
            {});
      }
    }
  }
}

TEST(Scales, FollowTheSameRules) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> amaxes = {0.0f, 1e-42f, 3.5f, inf, nan, 448.0f, 1e30f, 0.1f};
  const auto n = static_cast<std::int64_t>(amaxes.size());
  std::vector<std::uint8_t> formats;
  for (std::int64_t i = 0; i < n; ++i)
    formats.push_back(static_cast<std::uint8_t>(i % 2 ? DType::e5m2 : DType::e4m3));
  for (const std::int64_t length : {1, 2, 33, 1024}) {
    both(
        [&](Side& s) {
          auto* amax = s.put(amaxes);
          auto* scale = s.put(std::vector<float>(amaxes.size(), 2.0f));
          auto* inverse = s.put(std::vector<float>(amaxes.size(), 0.5f));
          auto* f = s.put(formats);
          current_scale(s, {amax, f, scale, inverse, n});
          s.out("current scale", scale, n, DType::f32);
          s.out("current inverse", inverse, n, DType::f32);
          const std::int64_t stride = n + 3;  // other amaxes are stored between
          std::vector<float> past = random_floats(length * stride, 3);
          for (float& x : past) x = std::abs(x) * 100;
          auto* history = s.put(past);
          for (const bool most_recent : {false, true}) {
            delayed_scale(s, {amax, history, f, scale, inverse, n, 1, stride, length, 1, most_recent});
            s.out("delayed scale", scale, n, DType::f32);
            s.out("delayed inverse", inverse, n, DType::f32);
            s.out("history", history, length * stride, DType::f32);
            s.out("amax", amax, n, DType::f32);
          }
        },
        {.absolute = 1e-300});
  }
}

}  // namespace
}  // namespace octet::ops::quantize_test
