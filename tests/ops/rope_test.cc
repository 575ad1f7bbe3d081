#include "octet/ops/rope.h"

#include "ops/tensor.h"

namespace octet::ops::rope_test {
namespace {

struct Table {
  Table(Stream& stream, std::int64_t positions, std::int64_t half, float factor)
      : inv_freq(static_cast<std::size_t>(half)),
        cosine(static_cast<std::size_t>(positions * half)),
        sine(cosine.size()) {
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      inv_freq[i] =
          static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
    }
    rope_table(stream, {.inv_freq = inv_freq.data(),
                        .factor = factor,
                        .positions = positions,
                        .half_dim = half,
                        .cosine = cosine.data(),
                        .sine = sine.data()});
  }
  std::vector<float> inv_freq, cosine, sine;
};

TEST(Rope, TheTableHoldsCosinesAndSinesOfFp32Angles) {
  CpuStream stream;
  const Table table(stream, 5000, 33, 1.25f);
  for (std::size_t p = 0; p < 5000; p += 7) {
    for (std::size_t i = 0; i < 33; ++i) {
      const auto angle = static_cast<double>(static_cast<float>(p) * table.inv_freq[i]);
      ASSERT_NEAR(table.cosine[p * 33 + i], 1.25 * std::cos(angle), 1.3e-7) << p << " " << i;
      ASSERT_NEAR(table.sine[p * 33 + i], 1.25 * std::sin(angle), 1.3e-7) << p << " " << i;
    }
  }
}

TEST(Rope, TheTableEndsWithItsLastPosition) {
  const float inv_freq[] = {1.0f, 0.1f};
  std::vector<float> cosine(7, -9.0f), sine(7, -9.0f);
  CpuStream stream;
  rope_table(stream, {.inv_freq = inv_freq,
                      .factor = 1.0f,
                      .positions = 3,
                      .half_dim = 2,
                      .cosine = cosine.data(),
                      .sine = sine.data()});
  EXPECT_EQ(cosine[6], -9.0f);
  EXPECT_EQ(sine[6], -9.0f);
}

/// `rotated`: dimensions of a head that rotate; 0: all.
void expect_rotation(std::int64_t tokens, const Heads& heads, DType dtype, bool inverse,
                     std::int64_t rotated = 0, bool interleaved = false) {
  SCOPED_TRACE(testing::Message() << tokens << " tokens, head_dim " << heads.head_dim << " " << name_of(dtype)
                                  << ", " << rotated << " rotate");
  CpuStream stream;
  const std::int64_t half = (rotated == 0 ? heads.head_dim : rotated) / 2;
  const Table table(stream, 200, half, 1.0f);
  const Tensor x = Tensor::random(dtype, tokens, heads.qkv_width(), 1);
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<std::int32_t>(t * 37 % 200));
  Tensor y = x;
  Fp8Copy copy(DType::e5m2, tokens, heads.qkv_width());
  rope(stream, {.qkv = y.matrix(),
                .heads = heads,
                .positions = positions.data(),
                .cosine = table.cosine.data(),
                .sine = table.sine.data(),
                .inverse = inverse,
                .quantize = copy.into(),
                .rotated = rotated,
                .interleaved = interleaved});
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads.q_heads + 2 * heads.kv_heads; ++h) {
      for (std::int64_t c = h * heads.head_dim + 2 * half; c < (h + 1) * heads.head_dim; ++c)
        ASSERT_EQ(y.at(t, c), x.at(t, c)) << "it does not rotate";
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t ca = h * heads.head_dim + (interleaved ? 2 * i : i);
        const std::int64_t cb = ca + (interleaved ? 1 : half);
        const double a = x.at(t, ca), b = x.at(t, cb);
        if (h >= heads.q_heads + heads.kv_heads) {
          ASSERT_EQ(y.at(t, ca), a);  // values are not rotated
          ASSERT_EQ(y.at(t, cb), b);
          continue;
        }
        const auto at = static_cast<std::size_t>(positions[static_cast<std::size_t>(t)] * half + i);
        const double c = static_cast<double>(table.cosine[at]);
        const double s = static_cast<double>(table.sine[at]) * (inverse ? -1 : 1);
        const double slack = 2e-7 * (std::abs(a) + std::abs(b));
        ASSERT_NEAR(y.at(t, ca), a * c - b * s, std::abs(a * c - b * s) * y.rounding() + slack);
        ASSERT_NEAR(y.at(t, cb), b * c + a * s, std::abs(b * c + a * s) * y.rounding() + slack);
      }
    }
  }
  EXPECT_TRUE(y.margin_untouched());
  copy.expect_copy_of(y);
}

TEST(Rope, QueriesAndKeysTurnAndValuesStay) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t tokens : kRows) {
      expect_rotation(tokens, {.q_heads = 4, .kv_heads = 2, .head_dim = 64}, dtype, false);
      expect_rotation(tokens, {.q_heads = 3, .kv_heads = 1, .head_dim = 10}, dtype, true);
    }
    expect_rotation(3, {.q_heads = 6, .kv_heads = 6, .head_dim = 128}, dtype, true);
  }
}

TEST(Rope, APartOfEachHeadTurnsAndTheRestStays) {
  for (const DType dtype : kComputeTypes) {
    for (const bool inverse : {false, true}) {
      for (const std::int64_t tokens : kRows) {
        expect_rotation(tokens, {.q_heads = 4, .kv_heads = 2, .head_dim = 64}, dtype, inverse, 32);
        expect_rotation(tokens, {.q_heads = 3, .kv_heads = 1, .head_dim = 10}, dtype, inverse, 2);
      }
      expect_rotation(3, {.q_heads = 6, .kv_heads = 6, .head_dim = 128}, dtype, inverse, 128);
    }
  }
  const Heads heads{.q_heads = 1, .kv_heads = 1, .head_dim = 8};
  Tensor x = Tensor::random(DType::f32, 1, heads.qkv_width(), 1);
  CpuStream stream;
  const Table table(stream, 4, 4, 1.0f);
  const std::int32_t position = 1;
  for (const std::int64_t rotated : {-2, 3, 10}) {
    const RopeArgs args{.qkv = x.matrix(),
                        .heads = heads,
                        .positions = &position,
                        .cosine = table.cosine.data(),
                        .sine = table.sine.data(),
                        .rotated = rotated};
    EXPECT_THROW(rope(stream, args), std::logic_error) << rotated;
  }
}

TEST(Rope, NeighboursTurnIfPairsAreInterleaved) {
  for (const DType dtype : kComputeTypes) {
    for (const bool inverse : {false, true}) {
      for (const std::int64_t tokens : kRows) {
        expect_rotation(tokens, {.q_heads = 4, .kv_heads = 2, .head_dim = 64}, dtype, inverse, 0, true);
        expect_rotation(tokens, {.q_heads = 3, .kv_heads = 1, .head_dim = 10}, dtype, inverse, 6, true);
      }
      expect_rotation(3, {.q_heads = 2, .kv_heads = 1, .head_dim = 48}, dtype, inverse, 24, true);
    }
  }
}

TEST(Rope, BackwardIsTheTransposeOfForward) {
  // <rotate(x), y> = <x, rotate_back(y)>: the definition of the backward pass of a linear map.
  const Heads heads{.q_heads = 2, .kv_heads = 1, .head_dim = 16};
  CpuStream stream;
  const Table table(stream, 64, 8, 1.5f);
  Tensor x = Tensor::random(DType::f32, 5, heads.qkv_width(), 1),
         y = Tensor::random(DType::f32, 5, heads.qkv_width(), 2);
  const Tensor x0 = x, y0 = y;
  const std::int32_t positions[] = {0, 3, 63, 20, 20};
  RopeArgs args{.qkv = x.matrix(), .heads = heads, .positions = positions};
  args.cosine = table.cosine.data();
  args.sine = table.sine.data();
  rope(stream, args);
  args.qkv = y.matrix();
  args.inverse = true;
  rope(stream, args);
  double forward = 0, backward = 0;
  for (std::int64_t r = 0; r < 5; ++r) {
    for (std::int64_t c = 0; c < heads.qkv_width(); ++c) {
      forward += x.at(r, c) * y0.at(r, c);
      backward += x0.at(r, c) * y.at(r, c);
    }
  }
  EXPECT_NEAR(forward, backward, 2e-6);
}

}  // namespace
}  // namespace octet::ops::rope_test
