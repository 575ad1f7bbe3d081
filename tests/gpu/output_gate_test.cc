// Gates of attention's outputs on the GPU, against the CPU side.
#include "octet/ops/output_gate.h"

#include "gpu/copies.h"

namespace octet::ops::output_gate_test {
namespace {

void compare(DType dtype, std::int64_t tokens, const Heads& heads, std::int64_t gap) {
  const std::int64_t width = heads.q_heads * heads.head_dim, all = heads.qkv_width() + width;
  SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(heads.q_heads) + " heads of " +
               std::to_string(heads.head_dim) + ", gap " + std::to_string(gap) + ", " +
               std::string(name_of(dtype)));
  const Tensor projected = Tensor::random(dtype, tokens, all, 1, 3, gap),
               attended = Tensor::random(dtype, tokens, width, 2, 1, gap),
               d_out = Tensor::random(dtype, tokens, width, 3, 1, gap),
               before = Tensor::random(dtype, tokens, all, 4, 1, gap),
               d_qkv = Tensor::random(dtype, tokens, heads.qkv_width(), 5, 1, gap);
  both(
      [&](Side& s) {
        const Matrix x = s.put(projected), qkv = s.put(Tensor(dtype, tokens, heads.qkv_width(), gap));
        take_output_gates(s, {.projected = x, .heads = heads, .qkv = qkv});
        s.out("qkv", qkv);
        const Matrix back = s.put(before);
        put_output_gates(s, {.d_qkv = s.put(d_qkv), .heads = heads, .d_projected = back});
        s.out("d_projected with d_qkv", back);
      },
      {});
  both(
      [&](Side& s) {
        const Matrix x = s.put(projected), in = s.put(attended), out = s.put(attended);
        Copies copies(s, DType::e4m3, tokens, width), again(s, DType::e5m2, tokens, width);
        output_gate(s,
                    {.attended = out, .projected = x, .heads = heads, .out = out, .quantize = copies.into});
        copies.hold_to(out);
        output_gate(s, {.attended = in, .projected = x, .heads = heads, .out = {}, .quantize = again.into});
        again.hold_to(out);
        s.out("out", out);
        const Matrix d = s.put(d_out), d_projected = s.put(before);
        output_gate_backward(s, {.attended = in,
                                 .projected = x,
                                 .d_out = d,
                                 .heads = heads,
                                 .d_attended = d,
                                 .d_projected = d_projected});
        s.out("d_attended", d);
        s.out("d_projected", d_projected);
      },
      {.relative = 3e-6, .absolute = 3e-6, .bf16_steps = 1.01});
}

TEST(GpuOutputGate, ForwardAndBackwardInPlace) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t gap : {0, 8, 3}) {
      for (const std::int64_t tokens : {1, 7, 129}) {
        compare(dtype, tokens, {.q_heads = 3, .kv_heads = 1, .head_dim = 5}, gap);
        compare(dtype, tokens, {.q_heads = 4, .kv_heads = 2, .head_dim = 24}, gap);
      }
      compare(dtype, 128, {.q_heads = 2, .kv_heads = 1, .head_dim = 64}, gap);
      compare(dtype, 144, {.q_heads = 16, .kv_heads = 2, .head_dim = 256}, gap);
    }
  }
}

// Rows longer than the registers of a block, too.
TEST(GpuOutputGate, ACopyWithAScalePerRow) {
  for (const std::int64_t q_heads : {3, 80}) {
    for (const bool out_wanted : {false, true}) {
      const Heads heads{.q_heads = q_heads, .kv_heads = 1, .head_dim = 256};
      const std::int64_t rows = 3, width = heads.q_heads * heads.head_dim;
      both(
          [&](Side& s) {
            const Matrix out = s.put(Tensor::random(DType::bf16, rows, width, 1, 1, 0));
            QuantizeInto into;
            into.format = DType::e4m3;
            into.row = s.put(std::vector<std::uint8_t>(static_cast<std::size_t>(rows * width)));
            into.row_scale_inv = s.put(std::vector<float>(static_cast<std::size_t>(rows)));
            output_gate(
                s, {.attended = out,
                    .projected = s.put(Tensor::random(DType::bf16, rows, heads.qkv_width() + width, 2, 1, 0)),
                    .heads = heads,
                    .out = out_wanted ? out : Matrix{},
                    .quantize = into});
            s.out("out", out);
            s.out("scales", into.row_scale_inv, rows, DType::f32);
          },
          {.relative = 1e-5, .absolute = 1e-5, .bf16_steps = 1.01});
    }
  }
}

}  // namespace
}  // namespace octet::ops::output_gate_test
