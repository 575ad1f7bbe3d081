// Norms and gates of a delta rule's output on the GPU, against the CPU side.
#include "octet/ops/gated_norm.h"

#include "gpu/copies.h"

namespace octet::ops::gated_norm_test {
namespace {

void compare(DType dtype, std::int64_t tokens, const DeltaColumns& columns, std::int64_t gap, bool in_place) {
  const std::int64_t values = columns.heads.values(), dim = columns.heads.value_dim;
  SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(columns.heads.value_heads) + " heads of " +
               std::to_string(dim) + ", gap " + std::to_string(gap) + ", " + std::string(name_of(dtype)));
  const Tensor first = Tensor::random(dtype, tokens, values, 1, 1, gap),
               projected = Tensor::random(dtype, tokens, columns.width(), 2, 2, gap),
               d_out = Tensor::random(dtype, tokens, values, 3, 1, gap),
               before = Tensor::random(dtype, tokens, columns.width(), 4, 1, gap);
  both(
      [&](Side& s) {
        const Matrix o = s.put(first), gates = s.put(projected);
        const float* weight = s.put(random_floats(dim, 5));
        const Matrix out = in_place ? s.put(first) : s.put(Tensor(dtype, tokens, values, gap));
        Copies copies(s, DType::e4m3, tokens, values), again(s, DType::e5m2, tokens, values);
        GatedNormArgs forward{.o = in_place ? ConstMatrix(out) : ConstMatrix(o),
                              .projected = gates,
                              .columns = columns,
                              .weight = weight,
                              .out = out,
                              .quantize = copies.into};
        gated_norm(s, forward);
        copies.hold_to(out);
        forward.o = o;
        forward.out = {};
        forward.quantize = again.into;
        gated_norm(s, forward);
        again.hold_to(out);
        s.out("out", out);
        const Matrix d = s.put(d_out), d_projected = s.put(before);
        float* d_weight = s.put(random_floats(dim, 6));
        gated_norm_backward(
            s, {.o = o,
                .projected = gates,
                .columns = columns,
                .weight = weight,
                .d_out = d,
                .d_o = d,
                .d_projected = d_projected,
                .d_weight = d_weight,
                .workspace = s.workspace(gated_norm_workspace(s.device(), columns.heads, tokens))});
        s.out("d_o", d);
        s.out("d_projected", d_projected);
        s.out("d_weight", d_weight, dim, DType::f32);
      },
      {.relative = 1e-5, .absolute = 2e-4, .bf16_steps = 1.01});
}

TEST(GpuGatedNorm, ForwardAndBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const bool in_place : {false, true}) {
      for (const std::int64_t tokens : {1, 5, 130}) {
        for (const std::int64_t gap : {0, 8, 3}) {
          compare(dtype, tokens, {.heads = {1, 1, 8, 8}}, gap, in_place);
          compare(dtype, tokens, {.heads = {2, 6, 16, 72}, .groups = 2}, gap, in_place);
          compare(dtype, tokens, {.heads = {1, 3, 8, 200}}, gap, in_place);
        }
      }
      compare(dtype, 40, {.heads = {16, 32, 128, 128}}, 0, in_place);
      compare(dtype, 2700, {.heads = {1, 2, 8, 256}}, 0, in_place);
    }
  }
}

TEST(GpuGatedNorm, ACopyWithAScalePerRow) {
  for (const bool out_wanted : {false, true}) {
    const DeltaColumns columns{.heads = {2, 10, 16, 72}};
    const std::int64_t rows = 7, values = columns.heads.values();
    both(
        [&](Side& s) {
          const Matrix out = s.put(Tensor::random(DType::bf16, rows, values, 1, 1, 0));
          QuantizeInto into;
          into.format = DType::e4m3;
          into.row = s.put(std::vector<std::uint8_t>(static_cast<std::size_t>(rows * values)));
          into.row_scale_inv = s.put(std::vector<float>(static_cast<std::size_t>(rows)));
          gated_norm(s, {.o = out,
                         .projected = s.put(Tensor::random(DType::bf16, rows, columns.width(), 2, 1, 0)),
                         .columns = columns,
                         .weight = s.put(random_floats(72, 3)),
                         .out = out_wanted ? out : Matrix{},
                         .quantize = into});
          s.out("out", out);
          s.out("scales", into.row_scale_inv, rows, DType::f32);
        },
        {.relative = 1e-5, .absolute = 1e-5, .bf16_steps = 1.01});
  }
}

}  // namespace
}  // namespace octet::ops::gated_norm_test
