// Heads of multi-head latent attention on the GPU, against the CPU side.
#include "octet/ops/latent_heads.h"

#include "gpu/copies.h"

namespace octet::ops::latent_heads_test {
namespace {

void compare(DType dtype, std::int64_t tokens, const LatentHeads& h, std::int64_t gap) {
  SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(h.heads) + " heads of " +
               std::to_string(h.key_dim()) + ", gap " + std::to_string(gap) + ", " +
               std::string(name_of(dtype)));
  const std::int64_t width = h.padded().qkv_width();
  both(
      [&](Side& s) {
        const Matrix qkv = s.put(Tensor(dtype, tokens, width, gap));
        join_latent_heads(s, {.queries = s.put(Tensor::random(dtype, tokens, h.keys(), 1, 1, gap)),
                              .expanded = s.put(Tensor::random(dtype, tokens, h.expanded(), 2, 1, gap)),
                              .rope_key = s.put(Tensor::random(dtype, tokens, h.rope_dim, 3, 1, gap)),
                              .heads = h,
                              .qkv = qkv});
        s.out("qkv", qkv);
        const Matrix d_queries = s.put(Tensor(dtype, tokens, h.keys(), gap)),
                     d_expanded = s.put(Tensor(dtype, tokens, h.expanded(), gap)),
                     d_rope_key = s.put(Tensor(dtype, tokens, h.rope_dim, gap));
        split_latent_heads(s, {.d_qkv = s.put(Tensor::random(dtype, tokens, width, 4, 1, gap)),
                               .heads = h,
                               .d_queries = d_queries,
                               .d_expanded = d_expanded,
                               .d_rope_key = d_rope_key});
        s.out("d_queries", d_queries);
        s.out("d_expanded", d_expanded);
        s.out("d_rope_key", d_rope_key);
        const Matrix padded = s.put(Tensor(dtype, tokens, h.keys(), gap));
        pad_head_values(s, {.d_out = s.put(Tensor::random(dtype, tokens, h.values(), 5, 1, gap)),
                            .heads = h,
                            .d_padded = padded});
        s.out("d_padded", padded);
      },
      {});
  both(
      [&](Side& s) {
        const Matrix padded = s.put(Tensor::random(dtype, tokens, h.keys(), 6, 1, gap));
        const Matrix out = s.put(Tensor(dtype, tokens, h.values(), gap));
        Copies copies(s, DType::e4m3, tokens, h.values()), again(s, DType::e5m2, tokens, h.values());
        cut_head_values(s, {.padded = padded, .heads = h, .out = out, .quantize = copies.into});
        copies.hold_to(out);
        cut_head_values(s, {.padded = padded, .heads = h, .quantize = again.into});
        again.hold_to(out);
        s.out("out", out);
      },
      {});
}

TEST(GpuLatentHeads, HaveTheBitsOfTheCpu) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t gap : {0, 8, 3}) {
      for (const std::int64_t tokens : {1, 7, 129}) {
        compare(dtype, tokens, {3, 12, 8, 10}, gap);
        compare(dtype, tokens, {2, 8, 8, 16}, gap);
      }
      compare(dtype, 128, {16, 128, 64, 128}, gap);
      compare(dtype, 144, {20, 192, 64, 256}, gap);
    }
  }
}

// Rows longer than the registers of a block, too.
TEST(GpuLatentHeads, ACopyWithAScalePerRow) {
  for (const std::int64_t heads : {3, 160}) {
    const LatentHeads h{heads, 128, 64, 128};
    constexpr std::int64_t rows = 3;
    both(
        [&](Side& s) {
          const Matrix out = s.put(Tensor(DType::bf16, rows, h.values(), 0));
          QuantizeInto into;
          into.format = DType::e4m3;
          into.row = s.put(std::vector<std::uint8_t>(static_cast<std::size_t>(rows * h.values())));
          into.row_scale_inv = s.put(std::vector<float>(static_cast<std::size_t>(rows)));
          cut_head_values(s, {.padded = s.put(Tensor::random(DType::bf16, rows, h.keys(), 1, 1, 0)),
                              .heads = h,
                              .out = out,
                              .quantize = into});
          s.out("out", out);
          s.out("scales", into.row_scale_inv, rows, DType::f32);
        },
        {});
  }
}

}  // namespace
}  // namespace octet::ops::latent_heads_test
