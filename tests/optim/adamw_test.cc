#include "octet/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/random.h"

namespace octet::optim::adamw_test {
namespace {

float draw(std::uint64_t what, std::uint64_t i) {
  return 2.0f * uniform(philox(what, RandomUse::data, i)[0]) - 1.0f;
}

// Device memory for one slice; on the CPU the host reads and writes it.
struct Slice {
  explicit Slice(std::int64_t n)
      : device(make_cpu_device({.threads = 1})),
        arena(*device),
        stream(device->make_stream({.name = "compute"})),
        norm(arena),
        count(n),
        master(take()),
        gradient(take()),
        exp_avg(take()),
        exp_avg_sq(take()),
        scalars(arena.reserve_as<ops::StepScalars>("scalars", 1)) {}
  float* take() { return arena.reserve_as<float>("slice", static_cast<std::size_t>(count)); }

  std::unique_ptr<Device> device;
  Arena arena;
  std::unique_ptr<Stream> stream;
  GradientNorm norm;
  std::int64_t count;
  float *master, *gradient, *exp_avg, *exp_avg_sq;
  ops::StepScalars* scalars;
};

TEST(AdamW, FollowsFloat64OverManySteps) {
  constexpr std::int64_t kCount = 1000, kDecayed = 600;
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  constexpr double kClip = 0.5, kTokens = 37;
  Slice s(kCount);
  std::vector<double> w(kCount), m(kCount), v(kCount);
  for (std::int64_t i = 0; i < kCount; ++i) w[i] = s.master[i] = draw(1, i);
  const std::vector<ops::AdamWSpan> spans = {{.begin = 0, .count = kDecayed, .decay = true},
                                             {.begin = kDecayed, .count = kCount - kDecayed, .decay = false}};
  for (int step = 1; step <= 50; ++step) {
    const double rate = 1e-2 / step;
    for (std::int64_t i = 0; i < kCount; ++i) s.gradient[i] = 3.0f * draw(100 + step, i);
    *s.scalars = step_scalars(options, {.step = step, .learning_rate = rate, .max_grad_norm = kClip});
    s.scalars->label_tokens = kTokens;
    s.norm.zero(*s.stream);
    s.norm.add(*s.stream, s.gradient, DType::f32, kCount);
    s.norm.finish(*s.stream, s.scalars);
    ops::AdamWArgs args = adamw_args(options);
    args.master = s.master;
    args.grad = s.gradient;
    args.exp_avg = s.exp_avg;
    args.exp_avg_sq = s.exp_avg_sq;
    args.spans = spans;
    args.scalars = s.scalars;
    ops::adamw(*s.stream, args);
    s.stream->synchronize();

    double squares = 0;
    for (std::int64_t i = 0; i < kCount; ++i) squares += double(s.gradient[i]) * double(s.gradient[i]);
    const double norm = std::sqrt(squares) / kTokens;
    EXPECT_NEAR(s.scalars->grad_norm, norm, 1.2e-7 * norm);
    const double scale = std::min(1.0, kClip / (norm + 1e-6)) / kTokens;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const double g = double(s.gradient[i]) * scale;
      if (i < kDecayed) w[i] -= rate * options.weight_decay * w[i];
      m[i] += (1 - options.beta1) * (g - m[i]);
      v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
      const double c1 = 1 - std::pow(options.beta1, step), c2 = 1 - std::pow(options.beta2, step);
      w[i] -= rate / c1 * m[i] / (std::sqrt(v[i]) / std::sqrt(c2) + options.epsilon);
    }
  }
  for (std::int64_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(s.master[i], w[i], 2e-6) << i;
    EXPECT_NEAR(s.exp_avg[i], m[i], 5e-9) << i;
    EXPECT_NEAR(s.exp_avg_sq[i], v[i], 5e-10) << i;
  }
}

TEST(AdamW, TheFirstStepMovesEveryElementByTheRate) {
  Slice s(256);
  for (int i = 0; i < 256; ++i) s.gradient[i] = draw(7, i);
  *s.scalars = step_scalars({}, {.step = 1, .learning_rate = 1e-3, .max_grad_norm = 0});
  s.scalars->label_tokens = 1;
  s.norm.zero(*s.stream);
  s.norm.add(*s.stream, s.gradient, DType::f32, 256);
  s.norm.finish(*s.stream, s.scalars);
  const std::vector<ops::AdamWSpan> spans = {{.begin = 0, .count = 256}};
  ops::AdamWArgs args = adamw_args({});
  args.master = s.master;
  args.grad = s.gradient;
  args.exp_avg = s.exp_avg;
  args.exp_avg_sq = s.exp_avg_sq;
  args.spans = spans;
  args.scalars = s.scalars;
  ops::adamw(*s.stream, args);
  s.stream->synchronize();
  for (int i = 0; i < 256; ++i) EXPECT_NEAR(s.master[i], s.gradient[i] > 0 ? -1e-3 : 1e-3, 1e-8) << i;
}

TEST(AdamW, BiasCorrectionsKeepTheirDigits) {
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.999};
  EXPECT_DOUBLE_EQ(bias_corrections(options, 1).first, 0.1);
  EXPECT_NEAR(bias_corrections(options, 1).second, 0.001, 1e-18);
  EXPECT_NEAR(bias_corrections(options, 2).first, 0.19, 1e-16);
  EXPECT_NEAR(bias_corrections(options, 1000).second, 1 - std::pow(0.999L, 1000), 1e-15);
  EXPECT_EQ(bias_corrections(options, 1000000).first, 1.0);
  EXPECT_EQ(bias_corrections({.beta1 = 0, .beta2 = 0}, 1).first, 1.0);
}

TEST(AdamW, HyperParametersThatMakeNoSenseAreRefusedByName) {
  const auto refused = [](const AdamWOptions& options) -> std::string {
    try {
      check_options(options);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({.beta1 = 0, .beta2 = 0, .epsilon = 0, .weight_decay = 0}), "");
  for (const double beta : {-0.1, 1.0, 1.5, std::nan("")}) {
    EXPECT_NE(refused({.beta1 = beta}).find("adam_beta1"), std::string::npos) << beta;
    EXPECT_NE(refused({.beta2 = beta}).find("adam_beta2"), std::string::npos) << beta;
  }
  for (const double number : {-1e-9, static_cast<double>(INFINITY), std::nan("")}) {
    EXPECT_NE(refused({.epsilon = number}).find("adam_epsilon"), std::string::npos) << number;
    EXPECT_NE(refused({.weight_decay = number}).find("weight_decay"), std::string::npos) << number;
  }
}

TEST(AdamW, EveryStepAndSeedHasNoiseOfItsOwn) {
  const auto noise = [](std::uint64_t seed, std::int64_t step) {
    return step_scalars({.seed = seed}, {.step = step, .learning_rate = 1e-3, .max_grad_norm = 1}).noise;
  };
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {0ull, 1ull, 42ull, 1ull << 40}) {
    for (std::int64_t step = 1; step <= 100; ++step) seen.insert(noise(seed, step));
  }
  EXPECT_EQ(seen.size(), 400u);
  EXPECT_EQ(noise(42, 7), noise(42, 7)) << "a resumed run has the same";
}

// Both halves of the noise are noise.
TEST(AdamW, NoiseFillsAllOfItsBits) {
  std::set<std::uint64_t> high, low;
  for (std::int64_t step = 1; step <= 50; ++step) {
    const std::uint64_t noise = step_scalars({.seed = 7}, {.step = step}).noise;
    high.insert(noise >> 32);
    low.insert(noise & 0xFFFFFFFFu);
  }
  EXPECT_EQ(high.size(), 50u);
  EXPECT_EQ(low.size(), 50u);
}

TEST(AdamW, EveryHyperParameterReachesTheUpdate) {
  const AdamWOptions options{.beta1 = 0.5, .beta2 = 0.625, .epsilon = 0.75, .weight_decay = 0.875, .seed = 3};
  const ops::AdamWArgs args = adamw_args(options);
  EXPECT_EQ(args.beta1, 0.5f);
  EXPECT_EQ(args.beta2, 0.625f);
  EXPECT_EQ(args.eps, 0.75f);
  EXPECT_EQ(args.weight_decay, 0.875f);
  const ops::StepScalars scalars =
      step_scalars(options, {.step = 2, .learning_rate = 0.25, .max_grad_norm = 3});
  EXPECT_EQ(scalars.learning_rate, 0.25f);
  EXPECT_EQ(scalars.max_grad_norm, 3.0f);
  EXPECT_FLOAT_EQ(scalars.bias_correction1, 1 - 0.25f);
  EXPECT_FLOAT_EQ(scalars.bias_correction2, 1 - 0.625f * 0.625f);
}

TEST(AdamW, TheNormHasTheSameBitsHoweverItIsCut) {
  constexpr std::int64_t kCount = 128 * 9 + 5;
  Slice s(kCount);
  // Magnitudes far apart, so that rounding would show in any other order.
  for (std::int64_t i = 0; i < kCount; ++i)
    s.gradient[i] = std::ldexp(draw(3, i), static_cast<int>(i % 60) - 30);
  const auto measure = [&](std::vector<std::int64_t> cuts) {
    s.norm.zero(*s.stream);
    cuts.push_back(kCount);
    for (std::size_t i = cuts.size() - 1; i > 0; --i) {
      s.norm.add(*s.stream, s.gradient + cuts[i - 1], DType::f32, cuts[i] - cuts[i - 1]);
    }
    s.scalars->label_tokens = 11;
    s.norm.finish(*s.stream, s.scalars);
    s.stream->synchronize();
    return s.scalars->grad_norm;
  };
  const float whole = measure({0});
  EXPECT_GT(whole, 0.0f);
  EXPECT_EQ(whole, measure({0, 128}));
  EXPECT_EQ(whole, measure({0, 256, 384, 1024}));
}

TEST(AdamW, HyperParametersThatMakeNoSenseAreRefused) {
  EXPECT_NO_THROW(check_options({}));
  EXPECT_THROW(check_options({.beta1 = 1.0}), Error);
  EXPECT_THROW(check_options({.beta2 = -0.1}), Error);
  EXPECT_THROW(check_options({.epsilon = std::nan("")}), Error);
  EXPECT_THROW(check_options({.weight_decay = std::numeric_limits<double>::infinity()}), Error);
}

}  // namespace
}  // namespace octet::optim::adamw_test
