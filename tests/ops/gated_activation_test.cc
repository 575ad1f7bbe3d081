#include "octet/ops/gated_activation.h"

#include <algorithm>
#include <limits>

#include "ops/tensor.h"

namespace octet::ops::gated_activation_test {
namespace {

constexpr Activation kAll[] = {Activation::silu, Activation::gelu_tanh, Activation::clamped};
/// Bounds many of the random values of these tests.
constexpr double kLimit = 2.5;

double activate(Activation a, double g) {
  if (a == Activation::clamped) {
    const double x = std::min(g, kLimit);
    return x / (1 + std::exp(-1.702 * x));
  }
  if (a == Activation::silu) return g / (1 + std::exp(-g));
  return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
}
double slope(Activation a, double g) {
  if (a == Activation::clamped) {
    const double s = 1 / (1 + std::exp(-1.702 * g));
    return g > kLimit ? 0 : s * (1 + 1.702 * g * (1 - s));
  }
  if (a == Activation::silu) {
    const double s = 1 / (1 + std::exp(-g));
    return s * (1 + g * (1 - s));
  }
  const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (g + 0.044715 * g * g * g));
  return 0.5 * (1 + t) + 0.5 * g * (1 - t * t) * k * (1 + 3 * 0.044715 * g * g);
}

/// The factor of the activation, and its slope.
double factor(Activation a, double u) {
  return a == Activation::clamped ? 1 + std::clamp(u, -kLimit, kLimit) : u;
}
double slope_of_factor(Activation a, double u) {
  return a == Activation::clamped && std::abs(u) > kLimit ? 0 : 1;
}

TEST(GatedActivation, TheReferenceSlopeIsTheSlopeOfTheReference) {
  for (const Activation a : kAll) {
    for (double g = -6; g < 6; g += 0.37) {
      const double h = 1e-5;
      EXPECT_NEAR(slope(a, g), (activate(a, g + h) - activate(a, g - h)) / (2 * h), 3e-10) << g;
    }
  }
}

void expect_both(std::int64_t rows, std::int64_t width, DType dtype, Activation a, bool in_place) {
  SCOPED_TRACE(testing::Message() << rows << "x" << width << " " << name_of(dtype) << " in place "
                                  << in_place);
  const Tensor x = Tensor::random(dtype, rows, 2 * width, 1, 3), dy = Tensor::random(dtype, rows, width, 2);
  Tensor out(dtype, rows, width), kept = x, dx(dtype, rows, 2 * width);
  Fp8Copy copy(DType::e4m3, rows, width), back(DType::e5m2, rows, 2 * width);
  CpuStream stream;
  gated_activation(stream, {.gate_up = x.matrix(),
                            .activation = a,
                            .out = out.matrix(),
                            .quantize = copy.into(),
                            .limit = static_cast<float>(kLimit)});
  gated_activation_backward(stream, {.gate_up = kept.matrix(),
                                     .d_out = dy.matrix(),
                                     .activation = a,
                                     .d_gate_up = in_place ? kept.matrix() : dx.matrix(),
                                     .quantize = back.into(),
                                     .limit = static_cast<float>(kLimit)});
  const Tensor& d = in_place ? kept : dx;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = x.at(r, c), u = x.at(r, c + width), w = dy.at(r, c);
      const double f = factor(a, u), h = activate(a, g) * f;
      ASSERT_NEAR(out.at(r, c), h, std::abs(h) * out.rounding() + 1e-6 * std::abs(f)) << g << " " << u;
      const double dg = w * f * slope(a, g), du = w * activate(a, g) * slope_of_factor(a, u);
      ASSERT_NEAR(d.at(r, c), dg, std::abs(dg) * out.rounding() + 3e-6 * std::abs(w * f)) << g << " " << u;
      ASSERT_NEAR(d.at(r, c + width), du, std::abs(du) * out.rounding() + 1e-6 * std::abs(w))
          << g << " " << u;
    }
  }
  EXPECT_TRUE(out.margin_untouched() && d.margin_untouched());
  copy.expect_copy_of(out);
  back.expect_copy_of(d);
}

TEST(GatedActivation, ForwardAndBackwardAreTheFloat64Ones) {
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

TEST(GatedActivation, FarOutItIsTheGateOrNothing) {
  const float gates[] = {-1e30f, -200.0f, -90.0f, -88.0f, 0.0f, 88.0f, 200.0f, 1e10f};
  for (const Activation a : {Activation::silu, Activation::gelu_tanh}) {
    Tensor x(DType::f32, 8, 2), y(DType::f32, 8, 1), dy(DType::f32, 8, 1), dx(DType::f32, 8, 2);
    for (int r = 0; r < 8; ++r) {
      x.set(r, 0, static_cast<double>(gates[r]));
      x.set(r, 1, 1);
      dy.set(r, 0, 1);
    }
    CpuStream stream;
    gated_activation(stream, {.gate_up = x.matrix(), .activation = a, .out = y.matrix()});
    gated_activation_backward(
        stream, {.gate_up = x.matrix(), .d_out = dy.matrix(), .activation = a, .d_gate_up = dx.matrix()});
    for (int r = 0; r < 8; ++r) {
      const double g = static_cast<double>(gates[r]);
      EXPECT_NEAR(y.at(r, 0), g > 0 ? g : 0.0, 1e-30) << g;
      EXPECT_NEAR(dx.at(r, 0), g > 0 ? 1.0 : (g < 0 ? 0.0 : 0.5), 1e-30) << g;
    }
  }
}

// Like clamp of PyTorch: NaN stays NaN, and a value at a bound has a gradient.
TEST(GatedActivation, ClampedKeepsNanAndBoundsOnlyWhatIsBeyond) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const float values[][2] = {{1e30f, 1}, {-1e30f, 1}, {7, 7}, {1, 1e30f}, {1, -1e30f}, {nan, 1}, {1, nan}};
  constexpr std::int64_t rows = std::size(values);
  Tensor x(DType::f32, rows, 2), y(DType::f32, rows, 1), dy(DType::f32, rows, 1), dx(DType::f32, rows, 2);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < 2; ++c) x.set(r, c, static_cast<double>(values[r][c]));
    dy.set(r, 0, 1);
  }
  CpuStream stream;
  gated_activation(stream, {.gate_up = x.matrix(), .activation = Activation::clamped, .out = y.matrix()});
  gated_activation_backward(stream, {.gate_up = x.matrix(),
                                     .d_out = dy.matrix(),
                                     .activation = Activation::clamped,
                                     .d_gate_up = dx.matrix()});
  const auto act = [](double g) { return g / (1 + std::exp(-1.702 * g)); };
  EXPECT_NEAR(y.at(0, 0), 2 * act(7), 1e-5);
  EXPECT_EQ(dx.at(0, 0), 0);
  EXPECT_EQ(y.at(1, 0), 0);
  EXPECT_NEAR(y.at(2, 0), 8 * act(7), 1e-5);
  EXPECT_GT(dx.at(2, 0), 7.9);
  EXPECT_NEAR(dx.at(2, 1), act(7), 1e-5);
  EXPECT_NEAR(y.at(3, 0), 8 * act(1), 1e-5);
  EXPECT_EQ(dx.at(3, 1), 0);
  EXPECT_NEAR(y.at(4, 0), -6 * act(1), 1e-5);
  EXPECT_TRUE(std::isnan(y.at(5, 0)) && std::isnan(dx.at(5, 0)));
  EXPECT_TRUE(std::isnan(y.at(6, 0)));
  EXPECT_THROW(gated_activation(stream, {.gate_up = x.matrix(), .out = y.matrix(), .limit = 0}),
               std::exception);
}

TEST(GatedActivation, TheFp8CopyAloneHasTheSameBits) {
  const Tensor x = Tensor::random(DType::bf16, 6, 1400, 1);
  Fp8Copy with(DType::e4m3, 6, 700), alone(DType::e4m3, 6, 700);
  Tensor out(DType::bf16, 6, 700);
  CpuStream stream;
  gated_activation(stream, {.gate_up = x.matrix(), .out = out.matrix(), .quantize = with.into()});
  gated_activation(stream, {.gate_up = x.matrix(), .quantize = alone.into()});
  EXPECT_EQ(with.row, alone.row);
  EXPECT_EQ(with.transposed, alone.transposed);

  const Tensor d_out = Tensor::random(DType::bf16, 6, 700, 2);
  Fp8Copy back(DType::e5m2, 6, 1400), back_alone(DType::e5m2, 6, 1400);
  Tensor d_x(DType::bf16, 6, 1400);
  gated_activation_backward(
      stream,
      {.gate_up = x.matrix(), .d_out = d_out.matrix(), .d_gate_up = d_x.matrix(), .quantize = back.into()});
  gated_activation_backward(stream,
                            {.gate_up = x.matrix(), .d_out = d_out.matrix(), .quantize = back_alone.into()});
  EXPECT_EQ(back.row, back_alone.row);
  EXPECT_EQ(back.transposed, back_alone.transposed);
  EXPECT_THROW(gated_activation_backward(stream, {.gate_up = x.matrix(), .d_out = d_out.matrix()}),
               std::exception);
}

}  // namespace
}  // namespace octet::ops::gated_activation_test
