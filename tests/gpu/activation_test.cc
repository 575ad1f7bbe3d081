// Activations without a gate on the GPU, against the CPU side.
#include "octet/ops/activation.h"

#include "gpu/copies.h"

namespace octet::ops::activation_test {
namespace {

void compare(Activation which, DType dtype, std::int64_t rows, std::int64_t width, std::int64_t gap) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width) + " " + std::string(name_of(dtype)) +
               ", activation " + std::to_string(static_cast<int>(which)));
  const Tensor values = Tensor::random(dtype, rows, width, 1, 3, gap),
               d_out = Tensor::random(dtype, rows, width, 2, 1, gap);
  both(
      [&](Side& s) {
        const Xielu xielu{.alpha_p = s.put(std::vector<float>{0.3f}),
                          .alpha_n = s.put(std::vector<float>{-0.7f}),
                          .beta = s.put(std::vector<float>{0.5f}),
                          .eps = s.put(std::vector<float>{-1e-6f})};
        const Matrix x = s.put(values), out = s.put(Tensor(dtype, rows, width, gap));
        Copies copies(s, DType::e4m3, rows, width), back(s, DType::e5m2, rows, width);
        activation(s, {.x = x, .activation = which, .xielu = xielu, .out = out, .quantize = copies.into});
        copies.hold_to(out);
        s.out("out", out);
        float *d_p = s.put(std::vector<float>{1.0f}), *d_n = s.put(std::vector<float>{2.0f});
        const bool sums = which == Activation::xielu;
        activation_backward(
            s, {.x = x,
                .d_out = s.put(d_out),
                .activation = which,
                .xielu = xielu,
                .d_x = x,
                .quantize = back.into,
                .d_alpha_p = sums ? d_p : nullptr,
                .d_alpha_n = sums ? d_n : nullptr,
                .workspace = s.workspace(activation_backward_workspace(s.device(), rows, width))});
        back.hold_to(x);
        s.out("d_x", x);
        s.out("d_alpha_p", d_p, 1, DType::f32);
        s.out("d_alpha_n", d_n, 1, DType::f32);
      },
      // Sums of up to a million terms.
      {.relative = 2e-5, .absolute = 2e-3, .bf16_steps = 1.01});
}

TEST(Activation, ForwardAndBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const Activation which : {Activation::silu, Activation::gelu_tanh, Activation::xielu}) {
      for (const std::int64_t width : {1, 7, 80, 257, 1300}) {
        compare(which, dtype, 1, width, 3);
        compare(which, dtype, 129, width, 3);
      }
      compare(which, dtype, 144, 128, 0);
      compare(which, dtype, 256, 4096, 0);
    }
  }
}

TEST(Activation, ACopyWithAScalePerRow) {
  for (const std::int64_t width : {80, 257, 4096}) {
    const std::int64_t rows = 5;
    const Tensor x = Tensor::random(DType::bf16, rows, width, 1);
    both(
        [&](Side& s) {
          const Matrix out = s.put(Tensor(DType::bf16, rows, width));
          RowCopy copy(s, rows, width);
          activation(
              s, {.x = s.put(x), .activation = Activation::gelu_tanh, .out = out, .quantize = copy.into()});
          copy.hold_to(out);
          s.out("out", out);
        },
        {.relative = 1e-5, .absolute = 1e-5, .bf16_steps = 1.01});
  }
}

}  // namespace
}  // namespace octet::ops::activation_test
