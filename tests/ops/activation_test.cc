#include "octet/ops/activation.h"

#include <algorithm>
#include <limits>

#include "ops/tensor.h"

namespace octet::ops::activation_test {
namespace {

constexpr Activation kAll[] = {Activation::silu, Activation::gelu_tanh, Activation::xielu};
constexpr float kAlphaP = 0.31f, kAlphaN = -0.7f, kBeta = 0.5f, kEps = -1e-6f;
constexpr Xielu kXielu{.alpha_p = &kAlphaP, .alpha_n = &kAlphaN, .beta = &kBeta, .eps = &kEps};

double softplus(double x) {
  return std::log1p(std::exp(x));
}
const double kP = softplus(static_cast<double>(kAlphaP));
const double kN = static_cast<double>(kBeta) + softplus(static_cast<double>(kAlphaN));

/// The factor of n.
double bend(double x) {
  return std::expm1(std::min(x, static_cast<double>(kEps))) - x;
}

double activate(Activation a, double g) {
  if (a == Activation::xielu) return (g > 0 ? kP * g * g : kN * bend(g)) + 0.5 * g;
  if (a == Activation::silu) return g / (1 + std::exp(-g));
  return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
}
double slope(Activation a, double g) {
  if (a == Activation::xielu) {
    if (g > 0) return 2 * kP * g + 0.5;
    return kN * (g < static_cast<double>(kEps) ? std::expm1(g) : -1) + 0.5;
  }
  if (a == Activation::silu) {
    const double s = 1 / (1 + std::exp(-g));
    return s * (1 + g * (1 - s));
  }
  const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (g + 0.044715 * g * g * g));
  return 0.5 * (1 + t) + 0.5 * g * (1 - t * t) * k * (1 + 3 * 0.044715 * g * g);
}

TEST(Activation, TheReferenceSlopeIsTheSlopeOfTheReference) {
  for (const Activation a : kAll) {
    for (double g = -6; g < 6; g += 0.37) {
      const double h = 1e-5;
      EXPECT_NEAR(slope(a, g), (activate(a, g + h) - activate(a, g - h)) / (2 * h), 3e-10 * (1 + std::abs(g)))
          << g;
    }
  }
}

void expect_both(std::int64_t rows, std::int64_t width, DType dtype, Activation a, bool in_place) {
  SCOPED_TRACE(testing::Message() << rows << "x" << width << " " << name_of(dtype) << " in place " << in_place
                                  << " activation " << static_cast<int>(a));
  const Tensor x = Tensor::random(dtype, rows, width, 1, 3), dy = Tensor::random(dtype, rows, width, 2);
  Tensor out(dtype, rows, width), kept = x, dx(dtype, rows, width);
  Fp8Copy copy(DType::e4m3, rows, width), back(DType::e5m2, rows, width);
  CpuStream stream;
  activation(
      stream,
      {.x = x.matrix(), .activation = a, .xielu = kXielu, .out = out.matrix(), .quantize = copy.into()});
  float d_p = 2, d_n = 3;
  const bool sums = a == Activation::xielu;
  std::vector<std::byte> scratch(activation_backward_workspace(stream.device(), rows, width));
  activation_backward(stream, {.x = kept.matrix(),
                               .d_out = dy.matrix(),
                               .activation = a,
                               .xielu = kXielu,
                               .d_x = in_place ? kept.matrix() : dx.matrix(),
                               .quantize = back.into(),
                               .d_alpha_p = sums ? &d_p : nullptr,
                               .d_alpha_n = sums ? &d_n : nullptr,
                               .workspace = {scratch.data(), scratch.size()}});
  const Tensor& d = in_place ? kept : dx;
  double of_p = 0, of_n = 0, size = 1;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = x.at(r, c), w = dy.at(r, c), h = activate(a, g), dg = w * slope(a, g);
      ASSERT_NEAR(out.at(r, c), h, std::abs(h) * out.rounding() + 1e-6 * std::min(1.0, std::abs(g))) << g;
      ASSERT_NEAR(d.at(r, c), dg, std::abs(dg) * out.rounding() + 3e-6 * std::abs(w)) << g;
      const double term = w * (g > 0 ? g * g : bend(g));
      (g > 0 ? of_p : of_n) += term;
      size += std::abs(term);
    }
  }
  const auto sigmoid = [](float at) { return 1 / (1 + std::exp(-static_cast<double>(at))); };
  EXPECT_NEAR(d_p, 2 + (sums ? of_p * sigmoid(kAlphaP) : 0), 1e-6 * size);
  EXPECT_NEAR(d_n, 3 + (sums ? of_n * sigmoid(kAlphaN) : 0), 1e-6 * size);
  EXPECT_TRUE(out.margin_untouched() && d.margin_untouched());
  copy.expect_copy_of(out);
  back.expect_copy_of(d);
}

TEST(Activation, ForwardAndBackwardAreTheFloat64Ones) {
  for (const DType dtype : kComputeTypes) {
    for (const Activation a : kAll) {
      for (const std::int64_t rows : kRows) {
        for (const std::int64_t width : {1, 7, 80, 257, 1300}) {
          expect_both(rows, width, dtype, a, (rows + width) % 2 == 0);
        }
      }
    }
  }
}

// Values near zero and far from it, where differences cancel or powers overflow.
TEST(Activation, XieluIsExactAtAnyDistanceFromZero) {
  const double values[] = {-1e30, -100, -1,  -0.51,   -0.5,     -0.49,    -1e-2, -1e-4, -2e-6,
                           -1e-6, 0,    -0., -9.9e-7, -1.01e-6, 1.01e-30, 1e-6,  3,     1e15};
  constexpr std::int64_t count = std::size(values);
  Tensor x(DType::f32, 1, count), y(DType::f32, 1, count), d(DType::f32, 1, count),
      ones(DType::f32, 1, count);
  for (std::int64_t c = 0; c < count; ++c) {
    x.set(0, c, values[c]);
    ones.set(0, c, 1);
  }
  CpuStream stream;
  std::vector<std::byte> scratch(activation_backward_workspace(stream.device(), 1, count));
  activation(stream, {.x = x.matrix(), .activation = Activation::xielu, .xielu = kXielu, .out = y.matrix()});
  activation_backward(stream, {.x = x.matrix(),
                               .d_out = ones.matrix(),
                               .activation = Activation::xielu,
                               .xielu = kXielu,
                               .d_x = d.matrix(),
                               .workspace = {scratch.data(), scratch.size()}});
  for (std::int64_t c = 0; c < count; ++c) {
    const double g = x.at(0, c), h = activate(Activation::xielu, g), s = slope(Activation::xielu, g);
    EXPECT_NEAR(y.at(0, c), h, 5e-7 * std::abs(g) + 1e-12 + 3e-7 * std::abs(h)) << g;
    EXPECT_NEAR(d.at(0, c), s, 1e-6 * std::max(1.0, std::abs(s))) << g;
  }
  x.set(0, 0, std::numeric_limits<double>::quiet_NaN());
  activation(stream, {.x = x.matrix(), .activation = Activation::xielu, .xielu = kXielu, .out = y.matrix()});
  EXPECT_TRUE(std::isnan(y.at(0, 0)));
}

TEST(Activation, BitsDoNotDependOnTheNumberOfThreads) {
  const std::int64_t rows = 300, width = 257;
  const Tensor x = Tensor::random(DType::bf16, rows, width, 1),
               dy = Tensor::random(DType::bf16, rows, width, 2);
  std::vector<float> found;
  for (const int threads : {1, 2, 3, 7}) {
    CpuStream stream(threads);
    Tensor dx(DType::bf16, rows, width);
    float d_p = 0, d_n = 0;
    std::vector<std::byte> scratch(activation_backward_workspace(stream.device(), rows, width));
    activation_backward(stream, {.x = x.matrix(),
                                 .d_out = dy.matrix(),
                                 .activation = Activation::xielu,
                                 .xielu = kXielu,
                                 .d_x = dx.matrix(),
                                 .d_alpha_p = &d_p,
                                 .d_alpha_n = &d_n,
                                 .workspace = {scratch.data(), scratch.size()}});
    if (found.empty()) found = {d_p, d_n};
    EXPECT_EQ(d_p, found[0]);
    EXPECT_EQ(d_n, found[1]);
  }
}

TEST(Activation, TheFp8CopyAloneHasTheSameBits) {
  const Tensor x = Tensor::random(DType::bf16, 6, 700, 1), d_out = Tensor::random(DType::bf16, 6, 700, 2);
  Fp8Copy with(DType::e4m3, 6, 700), alone(DType::e4m3, 6, 700);
  Tensor out(DType::bf16, 6, 700);
  CpuStream stream;
  activation(stream, {.x = x.matrix(), .out = out.matrix(), .quantize = with.into()});
  activation(stream, {.x = x.matrix(), .quantize = alone.into()});
  EXPECT_EQ(with.row, alone.row);
  EXPECT_EQ(with.transposed, alone.transposed);
  Fp8Copy back(DType::e5m2, 6, 700), back_alone(DType::e5m2, 6, 700);
  activation_backward(
      stream, {.x = x.matrix(), .d_out = d_out.matrix(), .d_x = out.matrix(), .quantize = back.into()});
  activation_backward(stream, {.x = x.matrix(), .d_out = d_out.matrix(), .quantize = back_alone.into()});
  EXPECT_EQ(back.row, back_alone.row);
  EXPECT_EQ(back.transposed, back_alone.transposed);
}

TEST(Activation, WrongArgumentsAreRefused) {
  CpuStream stream;
  Tensor x(DType::f32, 2, 8), y(DType::f32, 2, 7);
  EXPECT_THROW(activation(stream, {.x = x.matrix(), .out = y.matrix()}), std::logic_error);
  EXPECT_THROW(activation(stream, {.x = x.matrix(), .activation = Activation::clamped, .out = x.matrix()}),
               std::logic_error);
  EXPECT_THROW(activation(stream, {.x = x.matrix(), .activation = Activation::xielu, .out = x.matrix()}),
               std::logic_error)
      << "no numbers";
  EXPECT_THROW(activation_backward(stream, {.x = x.matrix(), .d_out = x.matrix()}), std::logic_error);
  float d_p = 0;
  EXPECT_THROW(activation_backward(stream, {.x = x.matrix(),
                                            .d_out = x.matrix(),
                                            .activation = Activation::xielu,
                                            .xielu = kXielu,
                                            .d_x = x.matrix(),
                                            .d_alpha_p = &d_p}),
               std::logic_error)
      << "no workspace";
  Tensor both(DType::f32, 2, 16);
  EXPECT_THROW(gated_activation(
                   stream, {.gate_up = both.matrix(), .activation = Activation::xielu, .out = x.matrix()}),
               std::logic_error);
}

}  // namespace
}  // namespace octet::ops::activation_test
