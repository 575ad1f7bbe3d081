// AdamW on states in narrow formats. Every stored value is a neighbour of the fp32 value. The mean of many
// roundings is the fp32 value. The noise of an element depends only on its tensor, step and seed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "octet/ops/optimizer.h"
#include "ops/tensor.h"

namespace octet::ops::adamw_storage_test {
namespace {

double decode(std::uint8_t code, int exponent_bias, bool has_sign) {
  const int magnitude = has_sign ? code & 0x7F : code;
  const int exponent = magnitude >> 3, mantissa = magnitude & 7;
  const double value = exponent == 0 ? std::ldexp(mantissa, -2 - exponent_bias)
                                     : std::ldexp(8 + mantissa, exponent - 3 - exponent_bias);
  return has_sign && (code & 0x80) ? -value : value;
}
double first_moment(std::uint8_t code) {
  return decode(code, 7, true);
}
double second_moment(std::uint8_t code) {
  return decode(code, 15, false);
}

/// The states of one tensor in given formats, filled with values that these formats represent exactly.
struct States {
  States(std::int64_t n, DType parameters, DType gradients, DType moments)
      : count(n), master_dtype(parameters), grad_dtype(gradients), moment_dtype(moments) {
    master = numbers(1, 1.0, master_dtype);
    grad = numbers(2, 50.0, grad_dtype);
    const auto blocks = static_cast<std::size_t>((n + kMomentBlock - 1) / kMomentBlock);
    m_scale.resize(blocks, 0x1p-12f);
    v_scale.resize(blocks, 0x1p-24f);
    if (moments == DType::u8) {
      m.resize(static_cast<std::size_t>(n)), v.resize(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < m.size(); ++i) {
        m[i] = std::byte(philox(3, RandomUse::data, i)[0] % 0x7F | (i % 2 ? 0x80 : 0));
        v[i] = std::byte(philox(4, RandomUse::data, i)[0] % 0xF0 + 1);
      }
    } else {
      m = numbers(3, 0.1, moments);
      v = numbers(4, 0.1, moments, true);
    }
    scalars.learning_rate = 3e-4f;
    scalars.bias_correction1 = 0.271f;
    scalars.bias_correction2 = 0.0957f;
    scalars.grad_scale = 0.0123f;
    scalars.noise = 99;
  }
  std::vector<std::byte> numbers(std::uint64_t seed, double scale, DType dtype, bool squares = false) const {
    std::vector<float> x = random_floats(count, seed, scale);
    for (float& value : x) value = squares ? value * value : value;
    std::vector<std::byte> bytes(x.size() * size_of(dtype));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint16_t narrow = to_bf16(x[i]);
      if (dtype == DType::f32) std::memcpy(&bytes[4 * i], &x[i], 4);
      if (dtype == DType::bf16) std::memcpy(&bytes[2 * i], &narrow, 2);
    }
    return bytes;
  }
  static double value(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
    float wide = 0;
    std::uint16_t narrow = 0;
    if (dtype == DType::f32) std::memcpy(&wide, &bytes[4 * i], 4);
    if (dtype == DType::bf16) {
      std::memcpy(&narrow, &bytes[2 * i], 2);
      wide = from_bf16(narrow);
    }
    return static_cast<double>(wide);
  }
  double w_at(std::size_t i) const { return value(master, master_dtype, i); }
  double g_at(std::size_t i) const { return value(grad, grad_dtype, i); }
  double m_at(std::size_t i) const {
    if (moment_dtype != DType::u8) return value(m, moment_dtype, i);
    return first_moment(static_cast<std::uint8_t>(m[i])) *
           static_cast<double>(m_scale[i / static_cast<std::size_t>(kMomentBlock)]);
  }
  double v_at(std::size_t i) const {
    if (moment_dtype != DType::u8) return value(v, moment_dtype, i);
    return second_moment(static_cast<std::uint8_t>(v[i])) *
           static_cast<double>(v_scale[i / static_cast<std::size_t>(kMomentBlock)]);
  }

  void update(const std::vector<AdamWSpan>& spans, int threads = 2, std::int64_t skip = 0) {
    AdamWArgs a;
    const auto at = static_cast<std::size_t>(skip);
    a.master = master.data() + at * size_of(master_dtype);
    a.master_dtype = master_dtype;
    a.grad = grad.data() + at * size_of(grad_dtype);
    a.grad_dtype = grad_dtype;
    a.exp_avg = m.data() + at * size_of(moment_dtype);
    a.exp_avg_sq = v.data() + at * size_of(moment_dtype);
    a.moment_dtype = moment_dtype;
    a.exp_avg_scale = m_scale.data() + at / static_cast<std::size_t>(kMomentBlock);
    a.exp_avg_sq_scale = v_scale.data() + at / static_cast<std::size_t>(kMomentBlock);
    a.beta2 = 0.95;
    a.weight_decay = 0.1;
    a.scalars = &scalars;
    a.amax = amax;
    a.spans = spans;
    CpuStream stream(threads);
    adamw(stream, a);
  }
  bool same(const States& other) const {
    return master == other.master && m == other.m && v == other.v && m_scale == other.m_scale &&
           v_scale == other.v_scale;
  }

  std::int64_t count;
  DType master_dtype, grad_dtype, moment_dtype;
  std::vector<std::byte> master, grad, m, v;
  std::vector<float> m_scale, v_scale;
  StepScalars scalars;
  float amax[2] = {0, 0};
};

/// AdamW's results for element i, in double.
struct Expected {
  double w, m, v;
};
Expected expected(const States& s, std::size_t i) {
  const auto to_double = [](float x) { return static_cast<double>(x); };
  const double lr = to_double(s.scalars.learning_rate), g = s.g_at(i) * to_double(s.scalars.grad_scale);
  Expected e{};
  e.m = s.m_at(i) + 0.1 * (g - s.m_at(i));
  e.v = 0.95 * s.v_at(i) + 0.05 * g * g;
  e.w = s.w_at(i) * (1 - lr * 0.1) - lr / to_double(s.scalars.bias_correction1) * e.m /
                                         (std::sqrt(e.v / to_double(s.scalars.bias_correction2)) + 1e-8);
  return e;
}

struct Case {
  const char* name;
  DType parameters, gradients, moments;
};
const Case kCases[] = {{"bf16 parameters", DType::bf16, DType::f32, DType::f32},
                       {"bf16 parameters and gradients", DType::bf16, DType::bf16, DType::f32},
                       {"bf16 moments", DType::f32, DType::f32, DType::bf16},
                       {"all bf16", DType::bf16, DType::bf16, DType::bf16},
                       {"8-bit moments", DType::f32, DType::f32, DType::u8},
                       {"bf16 and 8-bit moments", DType::bf16, DType::bf16, DType::u8}};

/// Returns the distance between neighbours of x in a format with `bits` mantissa bits.
double spacing(double x, int bits, double smallest) {
  return x == 0 ? smallest : std::max(std::ldexp(1.0, std::ilogb(x) - bits), smallest);
}
double slack(double x) {
  return 4e-7 * std::abs(x) + 1e-45;  // error of the fp32 arithmetic before the rounding
}
double spacing_of(double x, DType dtype, double scale, bool second) {
  if (dtype == DType::f32) return 0;
  if (dtype == DType::bf16) return spacing(x, 7, 0x1p-133);
  return spacing(x, 3, scale * (second ? 0x1p-17 : 0x1p-9));
}

TEST(AdamWStorage, EveryValueIsANeighbourOfTheExactOneAndTheMeanIsThatOne) {
  constexpr std::int64_t n = 1000;
  constexpr int kRounds = 400;
  const std::vector<AdamWSpan> spans = {{.begin = 0, .count = 900, .amax_index = 1, .tensor = 3}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const States before(n, c.parameters, c.gradients, c.moments);
    std::vector<Expected> mean(n, Expected{});
    double bias_w = 0, bias_m = 0, bias_v = 0;
    for (int round = 0; round < kRounds; ++round) {
      States s = before;
      s.scalars.noise = static_cast<std::uint64_t>(round) * 7919;
      s.update(spans);
      float most = 0;
      for (std::size_t i = 0; i < 900; ++i) {
        const Expected e = expected(before, i);
        const auto block = i / static_cast<std::size_t>(kMomentBlock);
        const double dw = spacing_of(e.w, c.parameters, 0, false);
        const double dm = spacing_of(e.m, c.moments, static_cast<double>(s.m_scale[block]), false);
        const double dv = spacing_of(e.v, c.moments, static_cast<double>(s.v_scale[block]), true);
        ASSERT_LE(std::abs(s.w_at(i) - e.w), dw + 4e-7) << i;
        ASSERT_LE(std::abs(s.m_at(i) - e.m), dm * 1.0001 + slack(e.m) + slack(before.g_at(i))) << i;
        ASSERT_LE(std::abs(s.v_at(i) - e.v), dv * 1.0001 + slack(e.v)) << i;
        ASSERT_GT(s.v_at(i), 0.0);
        mean[i].w += s.w_at(i) - e.w, mean[i].m += s.m_at(i) - e.m, mean[i].v += s.v_at(i) - e.v;
        if (dw > 0) bias_w += (s.w_at(i) - e.w) / dw;
        if (dm > 0) bias_m += (s.m_at(i) - e.m) / dm;
        if (dv > 0 && e.v > 2 * dv) bias_v += (s.v_at(i) - e.v) / dv;
        most = std::max(most, static_cast<float>(std::abs(s.w_at(i))));
      }
      EXPECT_EQ(s.amax[1], most);
      // Padding and elements outside of the spans are unchanged.
      for (std::size_t i = 900; i < n; ++i) ASSERT_EQ(s.w_at(i), before.w_at(i));
    }
    // A rounding has a standard deviation of at most half a step. The limits are five standard deviations of
    // the mean.
    const double all = 5 * 0.5 / std::sqrt(900.0 * kRounds), one = 5 * 0.5 / std::sqrt(double{kRounds});
    EXPECT_LE(std::abs(bias_w) / (900 * kRounds), all + 1e-3);
    EXPECT_LE(std::abs(bias_m) / (900 * kRounds), all + 1e-3);
    EXPECT_LE(std::abs(bias_v) / (900 * kRounds), all + 1e-3);
    for (std::size_t i = 0; i < 900; ++i) {
      const Expected e = expected(before, i);
      ASSERT_LE(std::abs(mean[i].w) / kRounds, one * spacing_of(e.w, c.parameters, 0, false) + 4e-7) << i;
    }
  }
}

TEST(AdamWStorage, WhatIsFarBelowAStepOfTheFormatIsNotLost) {
  // A bf16 weight of 1 moves by 1e-5 per step, a hundredth of the distance to its lower neighbour.
  States s(1024, DType::bf16, DType::bf16, DType::bf16);
  const std::uint16_t one = to_bf16(1.0f), rate = to_bf16(81.0f), zero = 0;
  for (std::size_t i = 0; i < 1024; ++i) {
    std::memcpy(&s.master[2 * i], &one, 2), std::memcpy(&s.grad[2 * i], &rate, 2);
    std::memcpy(&s.m[2 * i], &zero, 2), std::memcpy(&s.v[2 * i], &zero, 2);
  }
  s.scalars.learning_rate = 1e-5f;
  for (int step = 1; step <= 200; ++step) {
    s.scalars.bias_correction1 = static_cast<float>(1 - std::pow(0.9, step));
    s.scalars.bias_correction2 = static_cast<float>(1 - std::pow(0.95, step));
    s.scalars.noise = static_cast<std::uint64_t>(step);
    s.update({{.begin = 0, .count = 1024, .decay = false}});
  }
  double mean = 0;
  for (std::size_t i = 0; i < 1024; ++i) mean += s.w_at(i) / 1024;
  EXPECT_NEAR(mean, 1 - 200 * 1e-5, 1.5e-4);
}

TEST(AdamWStorage, EightBitMomentsKeepSmallValuesBesideLargeOnes) {
  States s(256, DType::f32, DType::f32, DType::u8);
  std::fill(s.m.begin(), s.m.end(), std::byte{0});
  std::fill(s.v.begin(), s.v.end(), std::byte{0});
  std::fill(s.m_scale.begin(), s.m_scale.end(), 0.0f);
  std::fill(s.v_scale.begin(), s.v_scale.end(), 0.0f);
  s.scalars.grad_scale = 1;
  for (std::size_t i = 0; i < 256; ++i) {  // gradients over five decades in one block
    const auto g = static_cast<float>(std::pow(10.0, -static_cast<double>(i % 128) / 25.6));
    std::memcpy(&s.grad[4 * i], &g, 4);
  }
  const States before = s;
  for (int step = 1; step <= 50; ++step) {
    s.scalars.noise = static_cast<std::uint64_t>(step);
    s.update({{.begin = 0, .count = 256, .decay = false}});
  }
  for (std::size_t i = 0; i < 256; ++i) {
    const double g = before.g_at(i), m = g * (1 - std::pow(0.9, 50)), v = g * g * (1 - std::pow(0.95, 50));
    EXPECT_NEAR(s.v_at(i) / v, 1, 0.6) << i;
    EXPECT_NEAR(s.m_at(i) / m, 1, g > 1e-3 ? 0.4 : 3) << i;
    // A weight moves by about the learning rate, however small its gradient is.
    EXPECT_LT(std::abs(s.w_at(i) - before.w_at(i)), 50 * 3e-4 / 0.271 * 1.6) << i;
  }
  // A block without any gradient stays at zero.
  States still(128, DType::f32, DType::f32, DType::u8);
  std::fill(still.m.begin(), still.m.end(), std::byte{0});
  std::fill(still.v.begin(), still.v.end(), std::byte{0});
  std::fill(still.grad.begin(), still.grad.end(), std::byte{0});
  const std::vector<std::byte> weights = still.master;
  still.update({{.begin = 0, .count = 128, .decay = false}});
  EXPECT_EQ(still.master, weights);
  EXPECT_EQ(still.m_scale[0], 0.0f);
  EXPECT_EQ(still.v_scale[0], 0.0f);
}

TEST(AdamWStorage, SlicesAndThreadsLeaveNoTrace) {
  constexpr std::int64_t n = 128 * 700 + 77;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    States whole(n, c.parameters, c.gradients, c.moments), cut = whole, moved = whole;
    whole.update({{.begin = 0, .count = n, .amax_index = 0, .tensor = 5}}, 1);
    // Two ranks with a slice each; tensors in several spans.
    cut.update({{.begin = 0, .count = 128 * 3, .amax_index = 0, .tensor = 5},
                {.begin = 128 * 3, .count = 128 * 200, .amax_index = 0, .tensor = 5, .first = 128 * 3}},
               3);
    cut.update({{.begin = 0, .count = n - 128 * 203, .amax_index = 0, .tensor = 5, .first = 128 * 203}}, 2,
               128 * 203);
    EXPECT_TRUE(whole.same(cut));
    EXPECT_EQ(whole.amax[0], cut.amax[0]);
    // A different tensor, step or seed has different noise.
    moved.update({{.begin = 0, .count = n, .amax_index = 0, .tensor = 6}}, 1);
    EXPECT_FALSE(whole.same(moved));
  }
}

// If all states of an element had the same noise, they would all be rounded up together. The values are
// halfway between two bf16 numbers, so each is rounded up with probability 1/2. The roundings of different
// states must be uncorrelated.
TEST(AdamWStorage, TheStatesOfAParameterAreNotRoundedAlike) {
  constexpr std::int64_t n = 1 << 16;
  constexpr float kHalfway = 1.0f + 0x1p-8f;  // between 1 and the next bf16
  States s(n, DType::bf16, DType::f32, DType::bf16);
  std::fill(s.m.begin(), s.m.end(), std::byte{0});
  std::fill(s.v.begin(), s.v.end(), std::byte{0});
  const float weight = -1.0f, gradient = 10.0f * kHalfway;  // exp_avg becomes a tenth of it
  const std::uint16_t one = to_bf16(weight);
  for (std::size_t i = 0; i < n; ++i) {
    std::memcpy(&s.master[2 * i], &one, 2);
    std::memcpy(&s.grad[4 * i], &gradient, 4);
  }
  s.scalars.grad_scale = 1;
  s.scalars.bias_correction1 = s.scalars.bias_correction2 = 1;
  // exp_avg_sq becomes 0.05 g^2, and the weight becomes -1 - rate * m / sqrt(v). Both are set halfway between
  // bf16 numbers.
  const double square = 0.05 * 100.0 * std::pow(static_cast<double>(kHalfway), 2);
  const double between =
      std::ldexp(std::floor(std::ldexp(square, 7 - std::ilogb(square))) + 0.5, std::ilogb(square) - 7);
  const float wanted = static_cast<float>(static_cast<double>(gradient) * std::sqrt(between / square));
  for (std::size_t i = 0; i < n; ++i) std::memcpy(&s.grad[4 * i], &wanted, 4);
  const double m = 0.1 * static_cast<double>(wanted);
  s.scalars.learning_rate = static_cast<float>(0x1p-8 / (m / std::sqrt(between)));
  s.update({{.begin = 0, .count = n, .decay = false, .tensor = 3}});
  // +1 if the magnitude was rounded up, -1 if down.
  const auto ups = [&](auto at, double exact) {
    std::vector<double> signs(n);
    for (std::size_t i = 0; i < n; ++i) signs[i] = std::abs(at(i)) > std::abs(exact) ? 1 : -1;
    return signs;
  };
  const std::vector<double> states[] = {ups([&](std::size_t i) { return s.w_at(i); }, -1 - 0x1p-8),
                                        ups([&](std::size_t i) { return s.m_at(i); }, m),
                                        ups([&](std::size_t i) { return s.v_at(i); }, between)};
  const auto mean_product = [&](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum / n;
  };
  const std::vector<double> ones(n, 1.0);
  for (const auto& state : states) EXPECT_LT(std::abs(mean_product(state, ones)), 0.7) << "both ways are taken";
  for (const auto& [a, b] : {std::pair{0, 1}, {0, 2}, {1, 2}}) {
    const double together =
        mean_product(states[a], states[b]) - mean_product(states[a], ones) * mean_product(states[b], ones);
    EXPECT_LT(std::abs(together), 0.05) << "states " << a << " and " << b;
  }
}

TEST(AdamWStorage, ASkippedStepChangesNothing) {
  for (const Case& c : kCases) {
    States s(500, c.parameters, c.gradients, c.moments);
    const States before = s;
    s.scalars.skip = 1;
    s.update({{.begin = 0, .count = 500, .amax_index = 0}});
    EXPECT_TRUE(s.same(before)) << c.name;
    EXPECT_EQ(s.amax[0], 0.0f);
  }
}

TEST(AdamWStorage, SpansThatCutABlockAreRefused) {
  States s(500, DType::bf16, DType::f32, DType::f32);
  EXPECT_THROW(s.update({{.begin = 64, .count = 100}}), std::logic_error);
  EXPECT_THROW(s.update({{.begin = 128, .count = 100, .first = 8}}), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::adamw_storage_test
