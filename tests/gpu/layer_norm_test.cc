// Layer norms on the GPU, against the CPU side: rows of whole packs, and rows that are not.
#include "octet/ops/layer_norm.h"

#include "gpu/copies.h"

namespace octet::ops::layer_norm_test {
namespace {

void compare(DType dtype, std::int64_t rows, std::int64_t hidden, std::int64_t gap, bool bias) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(hidden) + " " + std::string(name_of(dtype)) +
               ", gap " + std::to_string(gap));
  const Tensor residual = Tensor::random(dtype, rows, hidden, 1, 1, gap),
               delta = Tensor::random(dtype, rows, hidden, 2, 1, gap),
               dy = Tensor::random(dtype, rows, hidden, 3, 1, gap),
               before = Tensor::random(dtype, rows, hidden, 4, 1, gap);
  const auto weight = random_floats(hidden, 5), of_bias = random_floats(hidden, 6);
  both(
      [&](Side& s) {
        const Matrix x = s.put(residual), out = s.put(Tensor(dtype, rows, hidden, gap));
        const std::vector<float> zeros(static_cast<std::size_t>(rows), 0.0f);
        auto *mean = s.put(zeros), *rstd = s.put(zeros), *w = s.put(weight);
        Copies copies(s, DType::e4m3, rows, hidden);
        layer_norm(s, {.residual = x,
                       .delta = bias ? s.put(delta) : Matrix{},
                       .sum = bias ? x : Matrix{},
                       .weight = w,
                       .bias = bias ? s.put(of_bias) : nullptr,
                       .eps = 1e-5f,
                       .out = out,
                       .mean = mean,
                       .rstd = rstd,
                       .quantize = copies.into});
        copies.hold_to(out);
        s.out("sum", x);
        s.out("out", out);
        s.out("mean", mean, rows, DType::f32);
        s.out("rstd", rstd, rows, DType::f32);
        const Matrix d = s.put(before);
        auto *d_weight = s.put(random_floats(hidden, 7)), *d_bias = s.put(random_floats(hidden, 8));
        Copies back(s, DType::e5m2, rows, hidden);
        layer_norm_backward(
            s, {.dy = s.put(dy),
                .x = x,
                .mean = mean,
                .rstd = rstd,
                .weight = w,
                .d_residual = d,
                .accumulate = bias,
                .d_weight = d_weight,
                .d_bias = bias ? d_bias : nullptr,
                .quantize = back.into,
                .workspace = s.workspace(layer_norm_backward_workspace(s.device(), rows, hidden))});
        back.hold_to(d);
        s.out("d_residual", d);
        s.out("d_weight", d_weight, hidden, DType::f32);
        s.out("d_bias", d_bias, hidden, DType::f32);
      },
      {.relative = 1e-5, .absolute = 2e-4, .bf16_steps = 1.01});
}

TEST(LayerNorm, ForwardAndBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const bool bias : {false, true}) {
      for (const std::int64_t hidden : {2, 7, 80, 257, 1300}) {
        compare(dtype, 1, hidden, 3, bias);
        compare(dtype, 129, hidden, 3, bias);
      }
      compare(dtype, 33, 256, 0, bias);
      compare(dtype, 129, 4096, 0, bias);
      compare(dtype, 48, 12288, 0, bias);
      compare(dtype, 4112, 256, 0, bias);
    }
  }
}

TEST(LayerNorm, ACopyWithAScalePerRow) {
  for (const std::int64_t hidden : {80, 257, 4096}) {
    const std::int64_t rows = 5;
    const Tensor x = Tensor::random(DType::bf16, rows, hidden, 1);
    both(
        [&](Side& s) {
          const Matrix out = s.put(Tensor(DType::bf16, rows, hidden));
          RowCopy copy(s, rows, hidden);
          layer_norm(s, {.residual = s.put(x),
                         .weight = s.put(random_floats(hidden, 2)),
                         .bias = s.put(random_floats(hidden, 3)),
                         .out = out,
                         .quantize = copy.into()});
          copy.hold_to(out);
          s.out("out", out);
        },
        {.relative = 1e-5, .absolute = 1e-5, .bf16_steps = 1.01});
  }
}

}  // namespace
}  // namespace octet::ops::layer_norm_test
