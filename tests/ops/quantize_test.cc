#include "octet/ops/quantize.h"

#include <cfloat>
#include <limits>
#include <vector>

#include "ops/tensor.h"

namespace octet::ops::quantize_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Floats that cover the relevant cases of a cast: every exponent and sign, with mantissas that have each
// 8-bit pattern at the top and the nearest values below and above.
std::vector<float> every_exponent() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000u; high += 0x8u) {
    for (const std::uint32_t low : {0x0u, 0x1u, 0x7FFFFu, 0x3FFFFu, 0x40000u, 0x40001u}) {
      values.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  for (std::uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FC00000u, 0xFFFFFFFFu}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

TEST(Quantize, GivesTheBitsOfTheScalarCastForEveryExponent) {
  const std::vector<float> x = every_exponent();
  const auto n = static_cast<std::int64_t>(x.size());
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    for (const float scale : {1.0f, 0.37f}) {
      std::vector<std::uint8_t> codes(x.size());
      CpuStream stream;
      quantize(stream, {x.data(), DType::f32, 1, n, n},
               {.format = format, .row = codes.data(), .scale = &scale});
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(codes[i], to_fp8(x[i] * scale, format)) << x[i] << " " << name_of(format) << " " << scale;
      }
    }
  }
}

TEST(Transpose, PutsEveryByteAtItsPlace) {
  for (const std::int64_t rows : {0, 1, 63, 64, 129}) {
    for (const std::int64_t cols : {1, 7, 64, 200}) {
      std::vector<std::uint8_t> from(static_cast<std::size_t>(rows * cols)), to(from.size(), 0xEE);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i * 37 + i / 251);
      CpuStream stream;
      transpose(stream, {.from = from.data(), .rows = rows, .cols = cols, .to = to.data()});
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(to[static_cast<std::size_t>(c * rows + r)], from[static_cast<std::size_t>(r * cols + c)]);
        }
      }
    }
  }
}

TEST(Quantize, EveryFp8ValueAndEveryMidpointRoundsToEven) {
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    std::vector<float> x;
    for (int code = 0; code < 0x7F; ++code) {
      const float low = from_fp8(static_cast<std::uint8_t>(code), format);
      const float high = from_fp8(static_cast<std::uint8_t>(code + 1), format);
      if (!std::isfinite(low) || !std::isfinite(high)) break;
      const float middle = (low + high) / 2;
      for (const float v : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
        x.push_back(v);
        x.push_back(-v);
      }
    }
    const auto n = static_cast<std::int64_t>(x.size());
    std::vector<std::uint8_t> codes(x.size());
    const float one = 1;
    CpuStream stream;
    quantize(stream, {x.data(), DType::f32, 1, n, n}, {.format = format, .row = codes.data(), .scale = &one});
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(codes[i], to_fp8(x[i], format)) << x[i];
      const auto neighbour = [&](int step) {
        const int code = (codes[i] & 0x7F) + step;
        return code < 0 ? 1e30
                        : std::abs(static_cast<double>(from_fp8(static_cast<std::uint8_t>(code), format)));
      };
      const double size = std::abs(static_cast<double>(x[i])), error = std::abs(neighbour(0) - size);
      ASSERT_LE(error, std::abs(neighbour(-1) - size));
      if (std::isfinite(neighbour(1))) {
        ASSERT_LE(error, std::abs(neighbour(1) - size));
      }
    }
  }
}

TEST(Quantize, AllShapesInBothLayoutsWithTheAmax) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t cols : kHiddenSizes) {
        const Tensor x = Tensor::random(dtype, rows, cols, 1, 4);
        Fp8Copy copy(cols % 2 ? DType::e4m3 : DType::e5m2, rows, cols);
        CpuStream stream(3);
        quantize(stream, x.matrix(), copy.into());
        copy.expect_copy_of(x);
        float found = 0;
        amax(stream, x.matrix(), &found);
        EXPECT_EQ(found, copy.amax);
      }
    }
  }
}

TEST(Quantize, EachMatrixHasItsScaleAndAmax) {
  constexpr std::int64_t count = 3, rows = 5, cols = 24, all = count * rows * cols;
  const Tensor x = Tensor::random(DType::bf16, count * rows, cols, 1, 5, 0);
  const std::vector<float> scales{0.5f, 3.0f, 40.0f};
  const auto part = [&](std::int64_t i) { return static_cast<std::size_t>(i * rows * cols); };
  struct Found {
    std::vector<std::uint8_t> row = std::vector<std::uint8_t>(static_cast<std::size_t>(all), 0xEE),
                              transposed = row;
    std::vector<float> amax = std::vector<float>(count);
    std::vector<Fp8Seen> seen = std::vector<Fp8Seen>(count);
  } one, each, skipped;
  CpuStream stream(2);
  const auto into = [&](Found& f, std::int64_t i) {
    return QuantizeInto{.format = DType::e4m3,
                        .row = f.row.data() + part(i),
                        .transposed = f.transposed.data() + part(i),
                        .scale = scales.data() + i,
                        .amax = f.amax.data() + i,
                        .seen = f.seen.data() + i};
  };
  for (std::int64_t i = 0; i < count; ++i) {
    ConstMatrix m = x.matrix();
    m.data = static_cast<const std::uint16_t*>(m.data) + part(i);
    m.rows = rows;
    quantize(stream, m, into(one, i));
  }
  quantize_each(stream, {.x = x.matrix(), .count = count, .into = into(each, 0)});
  EXPECT_EQ(each.row, one.row);
  EXPECT_EQ(each.transposed, one.transposed);
  EXPECT_EQ(each.amax, one.amax);
  for (std::size_t i = 0; i < count; ++i) expect_seen(each.seen[i], one.seen[i]);
  const std::int32_t no = 0, yes = 1;
  for (const std::int32_t* skip : {&yes, &no}) {
    quantize_each(stream,
                  {.x = x.matrix(), .count = count, .into = {.amax = skipped.amax.data()}, .skip = skip});
    EXPECT_EQ(skipped.amax, skip == &yes ? Found().amax : one.amax);
  }
  EXPECT_THROW(quantize_each(stream, {.x = x.matrix(), .count = count, .into = into(each, 0), .skip = &no}),
               std::logic_error);
  EXPECT_THROW(quantize_each(stream, {.x = x.matrix(), .count = 4, .into = into(each, 0)}), std::logic_error);
}

// Infinities, NaN, subnormals, only zeros, one huge value, and every exponent.
TEST(Quantize, SeesWhatTheCastLoses) {
  const std::vector<std::vector<float>> matrices{
      {kInfinity, -kInfinity, 1, 0, -0.0f, 448, 464, -464.001f, 57344, -61439, 61440},
      {kNaN, 1, 1e-30f, -1e-45f, 0, 0x1p-10f, 0x1.000002p-10f, 0x1p-17f},
      {0, 0, 0, -0.0f},
      {FLT_MAX, 1e-6f, -1e-6f, 2, -3},
      {FLT_MIN, FLT_MIN / 2, -FLT_MIN / 4},
      every_exponent()};
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    for (const float scale : {1.0f, 0.37f, 3.4e38f, 1e-30f}) {
      for (const std::vector<float>& x : matrices) {
        const auto n = static_cast<std::int64_t>(x.size());
        std::vector<std::uint8_t> plain(x.size()), watched(x.size());
        Fp8Seen seen{};
        CpuStream stream;
        const ConstMatrix m(x.data(), DType::f32, 1, n, n);
        quantize(stream, m, {.format = format, .row = plain.data(), .scale = &scale});
        quantize(stream, m, {.format = format, .row = watched.data(), .scale = &scale, .seen = &seen});
        EXPECT_TRUE(plain == watched) << "watching changes a bit";
        Fp8Seen want = seen_of(
            1, n, format, [&](auto, auto c) { return x[static_cast<std::size_t>(c)]; },
            [&](auto, auto) { return scale; });
        want.scale = scale;
        expect_seen(seen, want);
      }
    }
  }
}

// The counts of casts add up for any number of threads. The least scale is kept.
TEST(Quantize, AddsToWhatWasSeen) {
  const Tensor x = Tensor::random(DType::f32, 129, 768, 3, 300);
  Fp8Copy copy(DType::e4m3, 129, 768);
  CpuStream stream(3);
  copy.scale = 2;
  quantize(stream, x.matrix(), copy.into());
  copy.expect_copy_of(x);
  const Fp8Seen once = copy.seen;
  EXPECT_GT(once.saturated, 0u);
  copy.scale = 0.5f;
  quantize(stream, x.matrix(), copy.into());
  EXPECT_EQ(copy.seen.values, 2 * once.values);
  EXPECT_EQ(copy.seen.scale, 0.5f);
  EXPECT_LT(copy.seen.saturated, 2 * once.saturated);
  EXPECT_GT(copy.seen.saturated, once.saturated);
  copy.scale = 4;
  quantize(stream, x.matrix(), copy.into());
  EXPECT_EQ(copy.seen.scale, 0.5f);
}

TEST(Amax, IsRaisedAndNaNWins) {
  Tensor x = Tensor::zeros(DType::f32, 40, 700);
  CpuStream stream(3);
  float found = 2;
  amax(stream, x.matrix(), &found);
  EXPECT_EQ(found, 2.0f);
  x.set(31, 699, -7);
  amax(stream, x.matrix(), &found);
  EXPECT_EQ(found, 7.0f);
  x.set(2, 1, static_cast<double>(-kInfinity));
  amax(stream, x.matrix(), &found);
  EXPECT_EQ(found, kInfinity);
  x.set(17, 3, static_cast<double>(-kNaN));
  amax(stream, x.matrix(), &found);
  EXPECT_TRUE(std::isnan(found));
  amax(stream, Tensor::zeros(DType::f32, 1, 1).matrix(), &found);
  EXPECT_TRUE(std::isnan(found));
}

TEST(CurrentScale, FollowsTransformerEngineAtTheEdges) {
  const float amax[] = {2.0f, 0.0f, kInfinity, kNaN, 1e-38f, 3.0f, 1e-45f};
  const DType e4 = DType::e4m3, e5 = DType::e5m2;
  const std::uint8_t formats[] = {std::uint8_t(e4), std::uint8_t(e4), std::uint8_t(e4), std::uint8_t(e5),
                                  std::uint8_t(e5), std::uint8_t(e5), std::uint8_t(e4)};
  const float want[] = {224.0f, 1.0f, 1.0f, 1.0f, FLT_MAX, 57344.0f / 3.0f, FLT_MAX};
  float scale[7] = {}, inverse[7] = {};
  CpuStream stream;
  current_scale(stream, {.amax = amax, .formats = formats, .scale = scale, .scale_inv = inverse, .count = 7});
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(scale[i], want[i]) << i;
    EXPECT_EQ(inverse[i], 1.0f / want[i]) << i;
  }
}

TEST(CurrentScale, WritesItsOwnPlacesAlone) {
  const float amax[] = {2.0f, 4.0f, 8.0f};
  const auto e4 = std::uint8_t(DType::e4m3);
  const std::uint8_t formats[] = {e4, e4, e4};
  float scale[3] = {-1, -1, -1}, inverse[6] = {-1, -1, -1, -1, -1, -1};
  CpuStream stream;
  current_scale(stream, {.amax = amax,
                         .formats = formats,
                         .scale = scale,
                         .scale_inv = inverse,
                         .count = 2,
                         .inverse_stride = 2});
  EXPECT_EQ(std::vector<float>(scale, scale + 3), (std::vector<float>{224.0f, 112.0f, -1.0f}));
  EXPECT_EQ(std::vector<float>(inverse, inverse + 6),
            (std::vector<float>{1 / 224.0f, -1.0f, 1 / 112.0f, -1.0f, -1.0f, -1.0f}));
}

// The history of one tensor in TransformerEngine's layout. Row 0 stages the next amax.
struct Staged {
  std::vector<float> history;
  float scale = 1;
  void update(float amax, float fp8_limit, int margin, bool most_recent) {
    if (amax == 0) return;
    float most = 0;
    const std::size_t n = history.size();
    for (std::size_t i = 0; i < n; ++i) {
      const float a = i + 1 < n ? history[i + 1] : amax;
      most = std::fmax(most, a);
      history[i] = i > 0 ? a : 0;
    }
    if (most_recent) most = amax;
    if (std::isfinite(most) && most > 0) {
      scale = fp8_limit * std::pow(2.0f, static_cast<float>(-margin)) / most;
      if (std::isinf(scale)) scale = FLT_MAX;
    }
  }
};

TEST(DelayedScale, FollowsTransformerEngineOverManySteps) {
  for (const std::int64_t length : {1, 2, 3, 16}) {
    for (const bool most_recent : {false, true}) {
      for (const int margin : {0, 2}) {
        SCOPED_TRACE(testing::Message() << length << " " << most_recent << " " << margin);
        constexpr std::int64_t count = 3;
        const std::uint8_t formats[count] = {std::uint8_t(DType::e4m3), std::uint8_t(DType::e5m2),
                                             std::uint8_t(DType::e4m3)};
        constexpr std::int64_t stride = count + 2;  // amaxes of other tensors are in between
        std::vector<float> history(static_cast<std::size_t>(length * stride)), scale(count, 1.0f),
            inverse(count);
        std::vector<float> amax(count);
        Staged staged[count];
        for (Staged& s : staged) s.history.resize(static_cast<std::size_t>(length));
        CpuStream stream;
        for (std::uint64_t step = 0; step < 60; ++step) {
          for (std::size_t i = 0; i < count; ++i) {
            amax[i] = std::abs(normal(3, RandomUse::data, step * count + i));
            if (step % 11 == 3) amax[i] = 0;
            if (step % 17 == 5) amax[i] = kInfinity;
            if (step % 19 == 7) amax[i] = kNaN;
            if (step % 23 == 9) amax[i] = 1e-44f;
            staged[i].update(amax[i], fp8_max(static_cast<DType>(formats[i])), margin, most_recent);
          }
          delayed_scale(stream, {.amax = amax.data(),
                                 .history = history.data(),
                                 .formats = formats,
                                 .scale = scale.data(),
                                 .scale_inv = inverse.data(),
                                 .count = count,
                                 .stride = stride,
                                 .length = length,
                                 .margin = margin,
                                 .most_recent = most_recent});
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(scale[i], staged[i].scale) << "step " << step;
            ASSERT_EQ(inverse[i], 1.0f / staged[i].scale);
            ASSERT_EQ(amax[i], 0.0f);
          }
          for (std::int64_t i = 0; i < length * stride; ++i) {
            ASSERT_TRUE(i % stride < count || history[static_cast<std::size_t>(i)] == 0.0f);
          }
        }
      }
    }
  }
}

TEST(Quantize, ACopyWithoutAScaleIsRefused) {
  const Tensor x = Tensor::zeros(DType::f32, 2, 2);
  std::uint8_t codes[4];
  CpuStream stream;
  EXPECT_THROW(quantize(stream, x.matrix(), {.row = codes}), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::quantize_test
