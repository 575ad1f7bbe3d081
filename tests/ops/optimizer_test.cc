#include "octet/ops/optimizer.h"

#include <algorithm>
#include <limits>

#include "ops/tensor.h"

namespace octet::ops::optimizer_test {
namespace {

using Limbs = std::vector<std::int64_t>;

Limbs limbs_of(const void* x, DType dtype, std::int64_t count, int threads = 2) {
  Limbs limbs(kExactLimbs + 1);
  CpuStream stream(threads);
  square_sum(stream, {.x = x, .dtype = dtype, .count = count, .limbs = limbs.data()});
  return limbs;
}

// Returns the limbs after carrying: equal for equal sums.
Limbs normalized(const Limbs& limbs) {
  Limbs out(limbs.size() + 1);
  __int128 carry = 0;
  for (std::size_t i = 0; i < kExactLimbs; ++i) {
    carry += limbs[i];
    out[i] = static_cast<std::int64_t>(carry & 0xFFFFFFFF);
    carry >>= 32;
  }
  out[kExactLimbs] = static_cast<std::int64_t>(carry);
  out[kExactLimbs + 1] = limbs[kExactLimbs];
  return out;
}

StepScalars finish(const Limbs& limbs, double label_tokens, float max_grad_norm) {
  StepScalars s;
  s.label_tokens = label_tokens;
  s.max_grad_norm = max_grad_norm;
  s.grad_norm = s.grad_scale = 7.0f;  // of the previous step
  CpuStream stream;
  finish_norm(stream, limbs.data(), &s);
  return s;
}

// Σ x² of the block that begins at element b, in the contract's order.
double sum_as_promised(const std::vector<float>& x, std::size_t b) {
  double sums[16] = {};
  for (std::size_t i = b; i < std::min(x.size(), b + 128); ++i) {
    sums[(i - b) / 8] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  for (const std::size_t apart : {8u, 4u, 2u, 1u}) {
    for (std::size_t lane = 0; lane < apart; ++lane) sums[lane] += sums[lane + apart];
  }
  return sums[0];
}

TEST(SquareSum, WholeNumbersAddUpToTheirExactSum) {
  for (const std::int64_t n : {0, 1, 127, 128, 129, 1023, 1024, 1025, 10000, 300000}) {
    std::vector<float> x;
    unsigned __int128 want = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t whole = philox(1, RandomUse::data, static_cast<std::uint64_t>(i))[0] % 0x1000000;
      x.push_back(static_cast<float>(whole) * (i % 2 ? 1.0f : -1.0f));
      want +=
          static_cast<unsigned __int128>(whole) * whole;  // block sums stay below 2^55: rounded, see below
    }
    const Limbs limbs = normalized(limbs_of(x.data(), DType::f32, n));
    // The contract: exact sums of the block sums in double.
    unsigned __int128 blocks = 0;
    for (std::size_t b = 0; b < x.size(); b += 128) {
      blocks += static_cast<unsigned __int128>(sum_as_promised(x, b));
    }
    unsigned __int128 found = 0;
    for (std::size_t i = 16; i < 20; ++i) {
      found |= static_cast<unsigned __int128>(static_cast<std::uint64_t>(limbs[i])) << (32 * (i - 16));
    }
    EXPECT_TRUE(found == blocks) << n;
    EXPECT_NEAR(static_cast<double>(found), static_cast<double>(want), 4e-15 * static_cast<double>(want));
  }
}

TEST(SquareSum, AnySplitAtBlocksOrderAndThreadsGivesTheSameNumber) {
  constexpr std::int64_t n = 128 * 57 + 31;
  std::vector<float> x = random_floats(n, 1);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i % 200) - 140);
  const Limbs whole = normalized(limbs_of(x.data(), DType::f32, n));
  EXPECT_EQ(whole, normalized(limbs_of(x.data(), DType::f32, n, 1)));
  EXPECT_EQ(whole, normalized(limbs_of(x.data(), DType::f32, n, 5)));
  // Pieces of three blocks, the last piece first, are added into the limbs of several ranks. The limbs are
  // then added.
  std::vector<Limbs> ranks(4, Limbs(kExactLimbs + 1));
  CpuStream stream;
  std::size_t piece = 0;
  for (std::int64_t begin = (n / 384) * 384; begin >= 0; begin -= 384, ++piece) {
    square_sum(stream, {.x = x.data() + begin,
                        .dtype = DType::f32,
                        .count = std::min<std::int64_t>(384, n - begin),
                        .limbs = ranks[piece % 4].data()});
  }
  Limbs sum(kExactLimbs + 1);
  for (const Limbs& rank : ranks) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rank[i];
  }
  EXPECT_EQ(whole, normalized(sum));
}

TEST(SquareSum, NormAgreesWithLongDoubleInBothTypes) {
  for (const DType dtype : kComputeTypes) {
    for (const double scale : {1.0, 1e-20, 1e-40, 1e18}) {
      const Tensor x = Tensor::random(dtype, 1, 5003, 1, scale);
      long double want = 0;
      for (std::int64_t i = 0; i < 5003; ++i) {
        want += static_cast<long double>(x.at(0, i)) * static_cast<long double>(x.at(0, i));
      }
      const StepScalars s = finish(limbs_of(x.matrix().data, dtype, 5003), 1, 0);
      const auto norm = static_cast<float>(std::sqrt(want));
      EXPECT_NEAR(s.grad_norm, norm, 1.2e-7 * static_cast<double>(norm)) << scale;
      EXPECT_EQ(s.skip, 0);
    }
  }
}

TEST(SquareSum, TheSmallestAndTheLargestFloatsFit) {
  std::vector<float> x(256);
  x[0] = std::numeric_limits<float>::max();
  x[128] = std::numeric_limits<float>::denorm_min();
  const Limbs limbs = normalized(limbs_of(x.data(), DType::f32, 256));
  // (2^128 - 2^104)² + (2^-149)² = 2^256 - 2^233 + 2^208 + 2^-298
  Limbs want(kExactLimbs + 1);
  const auto add_bit = [&](int position, std::int64_t sign) {
    want[static_cast<std::size_t>((position + 512) / 32)] +=
        sign * (std::int64_t{1} << ((position + 512) % 32));
  };
  add_bit(256, 1);
  add_bit(233, -1);
  add_bit(208, 1);
  add_bit(-298, 1);
  EXPECT_EQ(limbs, normalized(want));
}

TEST(SquareSum, WhatIsNotFiniteIsFlaggedAndSkipsTheStep) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = random_floats(2000, 1);
    x[1234] = bad;
    const Limbs limbs = limbs_of(x.data(), DType::f32, 2000);
    EXPECT_NE(limbs[kExactLimbs], 0);
    const StepScalars s = finish(limbs, 10, 1);
    EXPECT_EQ(s.skip, 1);
    EXPECT_FALSE(std::isfinite(s.grad_norm));
    EXPECT_EQ(s.grad_scale, 0.0f);
  }
}

// Finite gradients with a norm that exceeds fp32.
TEST(FinishNorm, ThatIsInfiniteSkipsTheStep) {
  const std::vector<float> x(16, std::numeric_limits<float>::max());
  const Limbs limbs = limbs_of(x.data(), DType::f32, 16);
  EXPECT_EQ(limbs[kExactLimbs], 0);
  const StepScalars s = finish(limbs, 1, 1);
  EXPECT_EQ(s.grad_norm, std::numeric_limits<float>::infinity());
  EXPECT_EQ(s.skip, 1);
  EXPECT_EQ(finish(limbs, 8, 1).skip, 0) << "by its tokens it fits";
}

TEST(FinishNorm, ClipsAsPyTorchDoes) {
  const std::vector<float> x = {3.0f, 4.0f};  // norm 5
  const Limbs limbs = limbs_of(x.data(), DType::f32, 2);
  StepScalars s = finish(limbs, 2, 1.0f);
  EXPECT_EQ(s.grad_norm, 2.5f);
  EXPECT_EQ(s.grad_scale, static_cast<float>(static_cast<double>(1.0f / (2.5f + 1e-6f)) / 2));
  EXPECT_EQ(s.skip, 0);
  s = finish(limbs, 2, 3.0f);  // below the limit
  EXPECT_EQ(s.grad_scale, 0.5f);
  s = finish(limbs, 2, 0.0f);  // no clipping
  EXPECT_EQ(s.grad_scale, 0.5f);
  s = finish(limbs, 0, 1.0f);
  EXPECT_EQ(s.skip, 1);
  EXPECT_EQ(s.grad_norm, 0.0f);
  s = finish(Limbs(kExactLimbs + 1), 7, 1.0f);
  EXPECT_EQ(s.grad_norm, 0.0f);
  EXPECT_EQ(s.skip, 0);
  EXPECT_EQ(s.grad_scale, static_cast<float>(1.0 / 7));
}

TEST(FinishNorm, AllBitsOfTheSumCount) {
  // t^2 + 2^-4 is a tie in double: it rounds down to t^2. With an additional bit far below, it rounds up. t
  // itself is a tie in float.
  constexpr std::int64_t t = (3 << 23) + 1;
  Limbs limbs(kExactLimbs + 1);
  limbs[17] = (t * t) >> 32;
  limbs[16] = (t * t) & 0xFFFFFFFF;
  limbs[15] = 1 << 28;
  EXPECT_EQ(finish(limbs, 1, 0).grad_norm, static_cast<float>(t - 1));
  for (const std::size_t far_below : {14u, 2u, 0u}) {
    Limbs more = limbs;
    more[far_below] = 1;
    EXPECT_EQ(finish(more, 1, 0).grad_norm, static_cast<float>(t + 1)) << far_below;
  }
  // The first limb, the last limb, and the carry out of the last limb.
  Limbs first(kExactLimbs + 1), last(kExactLimbs + 1);
  first[0] = 1;
  EXPECT_EQ(finish(first, 0x1p-200, 0).grad_norm, 0x1p-56f);
  last[kExactLimbs - 1] = 1;
  EXPECT_EQ(finish(last, 0x1p200, 0).grad_norm, 0x1p40f);
  last[kExactLimbs - 1] = std::int64_t{1} << 62;
  EXPECT_EQ(finish(last, 0x1p200, 0).grad_norm, 0x1p71f);
  // Limbs beyond 32 bits, filled by several ranks, carry.
  Limbs full(kExactLimbs + 1);
  full[15] = std::int64_t{1} << 62;
  EXPECT_EQ(finish(full, 1, 0).grad_norm, 0x1p15f);
}

struct Optimizer {
  explicit Optimizer(std::int64_t n)
      : master(random_floats(n, 1)),
        grad(random_floats(n, 2, 50)),
        m(random_floats(n, 3, 0.1)),
        v(random_floats(n, 4, 0.1)) {
    for (float& x : v) x = x * x;
    scalars.learning_rate = 3e-4f;
    scalars.bias_correction1 = 0.271f;
    scalars.bias_correction2 = 0.00299f;
    scalars.grad_scale = 0.0123f;
    copy.resize(master.size(), 0x1234);
  }
  AdamWArgs args() {
    AdamWArgs a;
    a.master = master.data();
    a.grad = grad.data();
    a.exp_avg = m.data();
    a.exp_avg_sq = v.data();
    a.beta2 = 0.95;
    a.weight_decay = 0.1;
    a.scalars = &scalars;
    a.copy = copy.data();
    a.amax = amax;
    return a;
  }
  std::vector<float> master, grad, m, v;
  std::vector<std::uint16_t> copy;
  StepScalars scalars;
  float amax[2] = {0, 0};
};

TEST(AdamW, IsTheFloat32StatementOfPyTorchBitForBit) {
  constexpr std::int64_t n = 3001;
  Optimizer o(n), before(n);
  const AdamWSpan spans[] = {{.begin = 0, .count = 1100, .decay = true, .amax_index = 1},
                             {.begin = 1280, .count = 1721, .decay = false}};
  AdamWArgs args = o.args();
  args.eps = 0.01;  // large enough to show in every element
  args.spans = spans;
  CpuStream stream;
  adamw(stream, args);
  float most = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i >= 1100 && i < 1280) {  // padding
      ASSERT_EQ(o.master[i], before.master[i]);
      ASSERT_EQ(o.m[i], before.m[i]);
      ASSERT_EQ(o.v[i], before.v[i]);
      ASSERT_EQ(o.copy[i], before.copy[i]);
      continue;
    }
    const StepScalars& s = before.scalars;
    const double lr = static_cast<double>(s.learning_rate);
    const float g = before.grad[i] * s.grad_scale;
    float w = before.master[i];
    if (i < 1100) w *= static_cast<float>(1 - lr * 0.1);
    float m = before.m[i];
    m = m + static_cast<float>(1 - 0.9) * (g - m);
    float v = before.v[i] * static_cast<float>(0.95);
    const float scaled = static_cast<float>(1 - 0.95) * g;
    v = v + scaled * g;
    const float root = std::sqrt(v) / static_cast<float>(std::sqrt(static_cast<double>(s.bias_correction2)));
    const float step = static_cast<float>(lr / static_cast<double>(s.bias_correction1)) * m;
    w = w - step / (root + static_cast<float>(0.01));
    ASSERT_EQ(o.master[i], w) << i;
    ASSERT_EQ(o.m[i], m) << i;
    ASSERT_EQ(o.v[i], v) << i;
    ASSERT_EQ(o.copy[i], to_bf16(w)) << i;
    if (i < 1100) most = std::max(most, std::abs(w));
  }
  EXPECT_EQ(o.amax[1], most);
  EXPECT_EQ(o.amax[0], 0.0f);
  EXPECT_EQ(o.grad, before.grad);
}

// A span's rate scales the step's learning rate, also for weight decay.
TEST(AdamW, ASpanMayHaveARateOfItsOwn) {
  constexpr std::int64_t n = 600;
  Optimizer together(n), apart(n);
  const AdamWSpan both[] = {{.begin = 0, .count = 250}, {.begin = 256, .count = 344, .rate = 16.0f}};
  AdamWArgs args = together.args();
  args.spans = both;
  CpuStream stream;
  adamw(stream, args);
  args = apart.args();
  args.spans = std::span(both).first(1);
  adamw(stream, args);
  const AdamWSpan second[] = {{.begin = 256, .count = 344}};
  apart.scalars.learning_rate *= 16.0f;
  args.spans = second;
  adamw(stream, args);
  EXPECT_EQ(together.master, apart.master);
  EXPECT_EQ(together.m, apart.m);
  EXPECT_EQ(together.copy, apart.copy);
}

TEST(AdamW, StaysWithFloat64OverManySteps) {
  constexpr std::int64_t n = 257;
  Optimizer o(n);
  std::vector<double> w(o.master.begin(), o.master.end()), m(n), v(n);
  std::fill(o.m.begin(), o.m.end(), 0.0f);
  std::fill(o.v.begin(), o.v.end(), 0.0f);
  const AdamWSpan spans[] = {{.begin = 0, .count = n}};
  CpuStream stream;
  for (int step = 1; step <= 100; ++step) {
    o.grad = random_floats(n, static_cast<std::uint64_t>(100 + step));
    o.scalars.bias_correction1 = static_cast<float>(1 - std::pow(0.9, step));
    o.scalars.bias_correction2 = static_cast<float>(1 - std::pow(0.95, step));
    AdamWArgs args = o.args();
    args.spans = spans;
    adamw(stream, args);
    const double lr = static_cast<double>(o.scalars.learning_rate);
    for (std::size_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(o.grad[i]) * static_cast<double>(o.scalars.grad_scale);
      w[i] -= lr * 0.1 * w[i];
      m[i] += 0.1 * (g - m[i]);
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.95, step);
      w[i] -= lr / c1 * m[i] / (std::sqrt(v[i]) / std::sqrt(c2) + 1e-8);
    }
  }
  // 100 roundings of w of half an ulp each, and the roundings of steps of at most lr.
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(static_cast<double>(o.master[i]), w[i], 100 * (6e-8 * (std::abs(w[i]) + 1e-3) + 1e-9)) << i;
  }
}

TEST(AdamW, SliceBoundariesAndThreadsLeaveNoTrace) {
  constexpr std::int64_t n = 100003;
  Optimizer whole(n), cut(n);
  const AdamWSpan one[] = {{.begin = 0, .count = n, .amax_index = 0}};
  std::vector<AdamWSpan> many;
  for (std::int64_t begin = 0, size = 1; begin < n; begin += size, size = size * 3 % 1009 + 1) {
    many.push_back({.begin = begin, .count = std::min(size, n - begin), .amax_index = 0});
  }
  AdamWArgs a = whole.args(), b = cut.args();
  a.spans = one;
  b.spans = many;
  CpuStream three(3);
  adamw(three, a);
  CpuStream single(1);
  adamw(single, b);
  EXPECT_EQ(whole.master, cut.master);
  EXPECT_EQ(whole.m, cut.m);
  EXPECT_EQ(whole.v, cut.v);
  EXPECT_EQ(whole.copy, cut.copy);
  EXPECT_EQ(whole.amax[0], cut.amax[0]);
}

TEST(AdamW, ASkippedStepChangesNothing) {
  Optimizer o(500), before(500);
  o.scalars.skip = 1;
  const AdamWSpan spans[] = {{.begin = 0, .count = 500, .amax_index = 0}};
  AdamWArgs args = o.args();
  args.spans = spans;
  CpuStream stream;
  adamw(stream, args);
  EXPECT_EQ(o.master, before.master);
  EXPECT_EQ(o.m, before.m);
  EXPECT_EQ(o.v, before.v);
  EXPECT_EQ(o.copy, before.copy);
  EXPECT_EQ(o.amax[0], 0.0f);
}

TEST(AdamW, AnF32CopyIsTheMaster) {
  Optimizer o(300);
  std::vector<float> copy(300);
  const AdamWSpan spans[] = {{.begin = 0, .count = 300}};
  AdamWArgs args = o.args();
  args.spans = spans;
  args.copy = copy.data();
  args.copy_dtype = DType::f32;
  args.amax = nullptr;
  CpuStream stream;
  adamw(stream, args);
  EXPECT_EQ(copy, o.master);
}

}  // namespace
}  // namespace octet::ops::optimizer_test
