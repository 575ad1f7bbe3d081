// FP8 with a scale per row on the GPU: copies by all producers have the bits of the CPU, and GEMMs have its
// values.
#include <limits>

#include "gpu/copies.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/gemm.h"
#include "octet/ops/rms_norm.h"

namespace octet::ops::row_scales_test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16};

TEST(RowScales, CopiesHaveTheBitsOfTheCpu) {
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{2, 28672},
                                                            {3, 17003}};  // more than threads keep
  for (const auto& [rows, cols] : kShapes) shapes.emplace_back(rows, cols);
  for (const auto& [rows, cols] : shapes) {
    if (rows == 0) continue;
    for (const DType dtype : kTypes) {
      Tensor x = Tensor::uneven(dtype, rows, cols, 3);
      x.set(rows / 2, cols / 2, std::numeric_limits<double>::infinity());
      both(
          [&](Side& s) {
            RowCopy copy(s, rows, cols);
            copy.of(s.put(x));
            copy.tell();
          },
          {});
    }
  }
}

TEST(RowScales, NormsAndActivationsLeaveTheCopiesOfTheirValues) {
  for (const auto& [rows, cols] : kShapes) {
    if (rows == 0) continue;
    for (const DType dtype : kTypes) {
      const Tensor x = Tensor::random(dtype, rows, cols, 1), delta = Tensor::random(dtype, rows, cols, 2);
      const Tensor gate_up = Tensor::random(dtype, rows, 2 * cols, 3, 4);
      const auto weight = random_floats(cols, 5);
      both(
          [&](Side& s) {
            const Matrix out = s.put(delta), activated = s.put(delta);
            RowCopy normed(s, rows, cols), alone(s, rows, cols), gated(s, rows, cols),
                gated_alone(s, rows, cols);
            RmsNormArgs norm{.residual = s.put(x),
                             .delta = s.put(delta),
                             .weight = s.put(weight),
                             .out = out,
                             .quantize = normed.into()};
            rms_norm(s, norm);
            norm.out = {};
            norm.quantize = alone.into();
            rms_norm(s, norm);
            GatedActivationArgs gate{.gate_up = s.put(gate_up), .out = activated, .quantize = gated.into()};
            gated_activation(s, gate);
            gate.out = {};
            gate.quantize = gated_alone.into();
            gated_activation(s, gate);
            normed.hold_to(out);
            alone.hold_to(out);
            gated.hold_to(activated);
            gated_alone.hold_to(activated);
            s.out("normed", out);
            s.out("activated", activated);
          },
          {.relative = 1e-5, .absolute = 2e-4, .bf16_steps = 1.01});
      if (HasFatalFailure()) return;
    }
  }
}

struct Shape {
  std::int64_t tokens, in, out;
};

/// Sums of few tokens are fp32. Sums of streamed weights and of the library keep about 14 bits of their
/// largest terms.
Within bounds_of(const Shape& p, bool stands) {
  if (p.tokens <= (stands ? 16 : 32) && p.in % 64 == 0 && p.out % 16 == 0) {
    return {.relative = 1e-5, .absolute = 2e-3, .bf16_steps = 1.01};
  }
  return {.relative = 2e-3, .absolute = 0.1, .bf16_steps = 2.01};
}

void expect_gemms(const Shape& p, DType d, bool stands = false) {
  for (const bool bias : {false, true}) {
    for (const bool addend : {false, true}) {
      if (stands && bias != addend) continue;
      SCOPED_TRACE(std::to_string(p.tokens) + " x " + std::to_string(p.in) + " into " +
                   std::to_string(p.out) + " " + std::string(name_of(d)) + (bias ? ", bias" : "") +
                   (addend ? ", addend" : "") + (stands ? ", standing weight" : ""));
      both(
          [&](Side& s) {
            RowCopy x(s, p.tokens, p.in), w(s, p.out, p.in);
            x.of(s.put(Tensor::random(DType::bf16, p.tokens, p.in, 1)));
            w.of(s.put(Tensor::random(DType::bf16, p.out, p.in, 2)));
            GemmArgs args{
                .a = x.operand(), .b = w.operand(), .d = s.put(Tensor::random(d, p.tokens, p.out, 4))};
            args.d.ld = args.d.cols;
            args.fast_accumulation = true;
            args.b_stands = stands;
            if (bias) args.bias = s.put(random_floats(p.out, 6));
            if (addend) {
              Matrix more = s.put(Tensor::random(d, p.tokens, p.out, 5));
              more.ld = more.cols;
              args.addend = more;
            }
            args.workspace = s.workspace(gemm_workspace(s.device(), args));
            const GemmOutcome outcome = gemm(s, args);
            const bool units = p.in % 16 == 0 && p.out % 16 == 0;
            if (s.gpu()) {
              EXPECT_EQ(outcome.way, units ? GemmWay::fp8 : GemmWay::decoded) << text_of(outcome.reason);
            }
            s.out("product", args.d);
          },
          bounds_of(p, stands));
    }
  }
}

// Without and with an addend, in bf16 as in a model, and in fp32 like logits.
TEST(RowScales, GemmsHaveTheValuesOfTheCpu) {
  for (const Shape& p : {Shape{1, 4096, 512},
                         {2, 256, 384},
                         {7, 1024, 6144},
                         {8, 14336, 48},
                         {9, 1088, 272},
                         {16, 64, 16},
                         {17, 448, 144},
                         {32, 4096, 1024},
                         {300, 512, 256},
                         {3, 200, 129},
                         {5, 64, 48}}) {
    expect_gemms(p, DType::bf16);
  }
  expect_gemms({4, 256, 64}, DType::f32);
  expect_gemms({30, 320, 64}, DType::f32);
  expect_gemms({33, 320, 64}, DType::f32);
}

// The weight is streamed for 17 to 64 tokens. Cases: fewer and more runs than blocks, tiles that several
// blocks sum, and partial tiles and runs. The GEMMs run repeatedly on one stream, to check that each run
// clears the exchange buffer.
TEST(RowScales, GemmsOfStandingWeightsHaveTheValuesOfTheCpu) {
  for (const std::int64_t tokens : {16, 17, 32, 33, 64}) {
    for (const auto& [in, out] : {std::pair{4096, 512}, {14336, 144}, {16, 16}, {208, 9008}, {400, 80}}) {
      expect_gemms({tokens, in, out}, DType::bf16, true);
    }
  }
  expect_gemms({30, 320, 64}, DType::f32, true);
  expect_gemms({50, 4096, 1008}, DType::f32, true);
  expect_gemms({65, 512, 144}, DType::bf16, true);
}

// The summation order of a row does not depend on other rows, as long as tiles have the same capacity.
TEST(RowScales, RowsOfAStreamedProductHaveTheSameBitsBesideOthers) {
  const std::int64_t in = 2000, out = 1504;
  for (const auto& [most, some] : {std::pair<std::int64_t, std::int64_t>{32, 17}, {64, 33}}) {
    const auto device = make_cuda_device();
    Side s(*device);
    RowCopy x(s, most, in), w(s, out, in);
    x.of(s.put(Tensor::random(DType::bf16, most, in, 1)));
    w.of(s.put(Tensor::random(DType::bf16, out, in, 2)));
    const auto gemm_kind = [&](std::int64_t rows) {
      GemmArgs args{.a = x.operand(), .b = w.operand(), .d = s.put(Tensor::random(DType::f32, rows, out, 4))};
      args.a.rows = rows;
      args.d.ld = out;
      args.b_stands = true;
      args.workspace = s.workspace(gemm_workspace(s.device(), args));
      EXPECT_EQ(gemm(s, args).way, GemmWay::fp8);
      s.out("product", args.d);
      return s.take();
    };
    const Side::Output all = gemm_kind(most), part = gemm_kind(some);
    for (std::int64_t row = 0; row < some; ++row) {
      for (std::int64_t i = 0; i < out; ++i) {
        ASSERT_EQ(part.at(row, i), all.at(row, i)) << some << " rows, " << row << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::row_scales_test
