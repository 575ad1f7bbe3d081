// FP8 copies with a scale for each whole row, from all ops that make them, and GEMMs of them, against
// float64.
#include <limits>

#include "octet/base/error.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/gemm.h"
#include "octet/ops/quantize.h"
#include "octet/ops/rms_norm.h"
#include "ops/tensor.h"
#include "support/float64.h"

namespace octet::ops::row_scales_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A copy and its scales, between guard values that must stay unchanged.
struct RowCopy {
  RowCopy(std::int64_t r, std::int64_t c)
      : rows(r),
        cols(c),
        codes(static_cast<std::size_t>(r * c + 1), 0xEE),
        scales(static_cast<std::size_t>(r + 1), -7.0f) {}
  QuantizeInto into() { return {.row = codes.data(), .row_scale_inv = scales.data()}; }
  float scale(std::int64_t r) const { return scales[static_cast<std::size_t>(r)]; }
  std::uint8_t code(std::int64_t r, std::int64_t c) const {
    return codes[static_cast<std::size_t>(r * cols + c)];
  }
  double value(std::int64_t r, std::int64_t c) const {
    return double{from_fp8(code(r, c), DType::e4m3)} * double{scale(r)};
  }
  Operand operand() const {
    return {.data = codes.data(),
            .dtype = DType::e4m3,
            .rows = rows,
            .cols = cols,
            .scale_inv = scales.data(),
            .scaling = Scaling::whole_rows};
  }
  /// Checks each row against a row of `y`: scaled by the smallest power of two that fits, and rounded once.
  void expect_copy_of(const Tensor& y) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      double most = 0;
      for (std::int64_t c = 0; c < cols; ++c) most = std::max(most, std::abs(y.at(r, c)));
      int exponent = 0;
      ASSERT_EQ(std::frexp(scale(r), &exponent), 0.5f) << "a power of two, row " << r;
      if (most > 0) {
        EXPECT_LE(most / double{scale(r)}, 448) << "row " << r;
        EXPECT_GT(most / double{scale(r)}, 224) << "row " << r;
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(code(r, c), to_fp8(static_cast<float>(y.at(r, c)) / scale(r), DType::e4m3))
            << r << "," << c;
      }
    }
    EXPECT_EQ(codes.back(), 0xEE);
    EXPECT_EQ(scales.back(), -7.0f);
  }

  std::int64_t rows, cols;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

RowCopy copy_of(Stream& stream, const Tensor& x) {
  RowCopy copy(x.rows(), x.cols());
  block_quantize(stream, {.x = x.matrix(),
                          .scaling = Scaling::whole_rows,
                          .row = copy.codes.data(),
                          .scale_inv = copy.scales.data()});
  return copy;
}

constexpr std::int64_t kShapes[][2] = {{1, 1}, {1, 1300}, {7, 129}, {33, 512}, {5, 513}, {70, 64}};

TEST(RowScales, AreTheSmallestPowersAndCodesAreRoundedOnce) {
  for (const int threads : {1, 3}) {
    CpuStream stream(threads);
    for (const auto& [rows, cols] : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor x = Tensor::uneven(dtype, rows, cols, 3);
        copy_of(stream, x).expect_copy_of(x);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(RowScales, ARowOfZerosOrWithANanIsNotScaledAndItsNeighboursAre) {
  CpuStream stream;
  Tensor x = Tensor::random(DType::f32, 4, 300, 5, 1e3);
  for (std::int64_t c = 0; c < 300; ++c) x.set(1, c, 0);
  x.set(2, 299, static_cast<double>(kNaN));
  const RowCopy copy = copy_of(stream, x);
  EXPECT_EQ(copy.scale(1), 1.0f);
  EXPECT_EQ(copy.code(1, 7), 0);
  EXPECT_EQ(copy.scale(2), 1.0f);
  EXPECT_TRUE(std::isnan(copy.value(2, 299)));
  EXPECT_GT(copy.scale(0), 1.0f);
  EXPECT_GT(copy.scale(3), 1.0f);
}

TEST(RowScales, ANormLeavesTheCopyOfWhatItWouldWrite) {
  CpuStream stream(3);
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Tensor residual = Tensor::uneven(dtype, rows, cols, 3), out = Tensor::zeros(dtype, rows, cols);
      const Tensor delta = Tensor::random(dtype, rows, cols, 4);
      const auto weight = random_floats(cols, 5);
      RowCopy beside(rows, cols), alone(rows, cols);
      RmsNormArgs args{.residual = residual.matrix(),
                       .delta = delta.matrix(),
                       .weight = weight.data(),
                       .out = out.matrix(),
                       .quantize = beside.into()};
      rms_norm(stream, args);
      args.out = {};
      args.quantize = alone.into();
      rms_norm(stream, args);
      beside.expect_copy_of(out);
      alone.expect_copy_of(out);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RowScales, AGatedActivationLeavesTheCopyOfWhatItWouldWrite) {
  CpuStream stream(3);
  for (const auto& [rows, cols] : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
        const Tensor gate_up = Tensor::random(dtype, rows, 2 * cols, 3, 4);
        Tensor out = Tensor::zeros(dtype, rows, cols);
        RowCopy beside(rows, cols), alone(rows, cols);
        GatedActivationArgs args{.gate_up = gate_up.matrix(),
                                 .activation = activation,
                                 .out = out.matrix(),
                                 .quantize = beside.into()};
        gated_activation(stream, args);
        args.out = {};
        args.quantize = alone.into();
        gated_activation(stream, args);
        beside.expect_copy_of(out);
        alone.expect_copy_of(out);
        if (HasFatalFailure()) return;
      }
    }
  }
}

struct Product64 {
  std::int64_t tokens, in, out;
  DType dtype;
  bool bias, addend, fixed_order;
};

void expect_gemm(const Product64& p) {
  CpuStream stream;
  const RowCopy x = copy_of(stream, Tensor::uneven(DType::bf16, p.tokens, p.in, 1));
  const RowCopy w = copy_of(stream, Tensor::uneven(DType::bf16, p.out, p.in, 2));
  Tensor d = Tensor::random(p.dtype, p.tokens, p.out, 9);
  const Tensor addend = Tensor::random(p.dtype, p.tokens, p.out, 10, 1e3);
  const auto bias = random_floats(p.out, 11, 1e3);
  GemmArgs args{.gemm_kind = GemmKind::forward,
                .a = x.operand(),
                .b = w.operand(),
                .d = d.matrix(),
                .addend = p.addend ? addend.matrix() : ConstMatrix{},
                .bias = p.bias ? bias.data() : nullptr,
                .fixed_order = p.fixed_order};
  Arena arena(stream.device());
  args.workspace.bytes = gemm_workspace(stream.device(), args);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  EXPECT_EQ(gemm(stream, args).way, GemmWay::emulated);
  EXPECT_TRUE(d.margin_untouched());
  for (std::int64_t i = 0; i < p.tokens; ++i) {
    for (std::int64_t j = 0; j < p.out; ++j) {
      const test::Dot terms = test::dot(
          p.in, [&](std::int64_t l) { return x.value(i, l); }, [&](std::int64_t l) { return w.value(j, l); });
      const double first = p.bias ? double{bias[static_cast<std::size_t>(j)]} : 0;
      const double size = terms.size + std::abs(first);
      double want = first + terms.sum;
      const double rounding = p.dtype == DType::bf16 ? 0x1p-8 : 0x1p-22;
      double tolerance =
          size * 0.6e-7 * (4 + std::sqrt(static_cast<double>(p.in))) + std::abs(want) * rounding;
      if (p.addend) {
        want += addend.at(i, j);
        tolerance += std::abs(want) * rounding;
      }
      ASSERT_NEAR(d.at(i, j), want, tolerance) << i << "," << j;
    }
  }
}

TEST(RowScales, GemmsHaveTheScalesOfTheirRowsAndColumns) {
  for (const auto& [tokens, in, out] :
       {std::array<std::int64_t, 3>{1, 128, 256}, {13, 300, 129}, {64, 33, 200}, {3, 1, 1}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool more : {false, true}) {
        expect_gemm({tokens, in, out, dtype, more, false, false});
        expect_gemm({tokens, in, out, dtype, more, true, more});
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(RowScales, NeighboursDoNotChangeARowOfAProduct) {
  CpuStream stream;
  const RowCopy w = copy_of(stream, Tensor::random(DType::bf16, 96, 256, 2));
  const Tensor all = Tensor::random(DType::bf16, 40, 256, 1);
  const auto gemm_of = [&](std::int64_t rows) {
    Tensor some(DType::bf16, rows, 256), d(DType::bf16, rows, 96);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < 256; ++c) some.set(r, c, all.at(r, c));
    }
    const RowCopy x = copy_of(stream, some);
    GemmArgs args{.a = x.operand(), .b = w.operand(), .d = d.matrix()};
    Arena arena(stream.device());
    args.workspace.bytes = gemm_workspace(stream.device(), args);
    args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
    gemm(stream, args);
    return d;
  };
  const Tensor one = gemm_of(1), many = gemm_of(40);
  for (std::int64_t c = 0; c < 96; ++c) EXPECT_EQ(one.at(0, c), many.at(0, c));
}

TEST(RowScales, WhatNobodyMakesIsRefused) {
  CpuStream stream;
  Tensor x = Tensor::random(DType::f32, 16, 16, 1), y = x;
  RowCopy copy(16, 16);
  std::vector<std::uint8_t> flipped(256);
  std::vector<float> scales(16);
  EXPECT_THROW(block_quantize(stream, {.x = x.matrix(),
                                       .scaling = Scaling::whole_rows,
                                       .row = copy.codes.data(),
                                       .scale_inv = copy.scales.data(),
                                       .transposed = flipped.data(),
                                       .transposed_scale_inv = scales.data()}),
               std::logic_error);
  EXPECT_THROW(quantize(stream, x.matrix(), copy.into()), std::logic_error);
  QuantizeInto both = copy.into();
  both.transposed = flipped.data();
  const std::vector<float> weight(16, 1.0f);
  EXPECT_THROW(rms_norm(stream, {.residual = x.matrix(), .weight = weight.data(), .quantize = both}),
               std::logic_error);
  const RowCopy a = copy_of(stream, x);
  GemmArgs args{.a = a.operand(), .b = a.operand(), .d = y.matrix()};
  args.accumulate = true;
  EXPECT_THROW(gemm_workspace(stream.device(), args), std::logic_error);
  args.accumulate = false;
  args.gemm_kind = GemmKind::dgrad;
  EXPECT_THROW(gemm_workspace(stream.device(), args), std::logic_error);
  args.gemm_kind = GemmKind::forward;
  args.b.scaling = Scaling::tensor;
  EXPECT_THROW(gemm_workspace(stream.device(), args), std::logic_error);
}

// The plan for a GPU, tested without one.
TEST(RowScales, AGpuMultipliesWholeUnitsInFp8AndDecodesTheRest) {
  const auto gpu = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto way = [&](std::int64_t tokens, std::int64_t in, std::int64_t out) {
    const Operand a{.dtype = DType::e4m3, .rows = tokens, .cols = in, .scaling = Scaling::whole_rows};
    const Operand b{.dtype = DType::e4m3, .rows = out, .cols = in, .scaling = Scaling::whole_rows};
    return gemm_outcome(*gpu, {.a = a, .b = b, .d = {nullptr, DType::bf16, tokens, out, out}});
  };
  for (const std::int64_t tokens : {1, 3, 32}) EXPECT_EQ(way(tokens, 4096, 6144).way, GemmWay::fp8);
  EXPECT_EQ(way(1, 4096, 4100).reason, GemmReason::columns);
  EXPECT_EQ(way(1, 4100, 4096).reason, GemmReason::inner);
  EXPECT_EQ(way(1, 4100, 4096).way, GemmWay::decoded);
  EXPECT_EQ(fp8_token_unit(*gpu, Scaling::whole_rows), 1);
}

}  // namespace
}  // namespace octet::ops::row_scales_test
