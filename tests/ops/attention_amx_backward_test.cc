// Backward attention for AMX with emulated tiles, against the definition in float64.
#include "ops/attention_problem.h"
#include "ops/emulated_tiles.h"

#if defined(__x86_64__)

// The library contains functions of the same names with real tiles.
#define amx emulated_amx_backward
#define amx_backward emulated_backward
#define amx_backward_scratch_bytes emulated_backward_scratch_bytes
#include "cpu/attention_backward_amx.cc"
#undef amx
#undef amx_backward
#undef amx_backward_scratch_bytes

namespace octet::ops::attention_amx_backward_test {
namespace {

/// Runs the tasks of `p` on the outputs of forward and compares the gradient.
void expect_reference(const Shape& shape) {
  const Problem64 p(shape);
  const Heads& heads = shape.heads;
  const std::int64_t tokens = p.tokens(), width = heads.q_heads * heads.head_dim;
  const Result forward = run(p);
  Array d_qkv(tokens, heads.qkv_width(), DType::bf16);
  const AttentionBackwardArgs args{
      .qkv = ConstMatrix(p.qkv.bytes.data(), DType::bf16, tokens, heads.qkv_width(), heads.qkv_width()),
      .out = ConstMatrix(forward.out.bytes.data(), DType::bf16, tokens, width, width),
      .d_out = ConstMatrix(p.d_out.bytes.data(), DType::bf16, tokens, width, width),
      .lse = forward.lse.data(),
      .heads = heads,
      .documents = p.documents(),
      .scale = p.scale(),
      .soft_cap = shape.soft_cap,
      .window = shape.window,
      .d_qkv = Matrix{d_qkv.bytes.data(), DType::bf16, tokens, heads.qkv_width(), heads.qkv_width()}};
  const std::size_t bytes = cpu::emulated_backward_scratch_bytes(heads, args.documents.max_length);
  const auto device = make_cpu_device({.threads = 1});
  Arena arena(*device);
  void* scratch = arena.reserve("scratch", bytes);
  for (std::size_t d = 0; d + 1 < p.starts.size(); ++d) {
    for (std::int64_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head) {
      std::memset(scratch, 0xFF, bytes);  // NaN: no code may rely on zeros
      cpu::emulated_backward(args, {.start = p.starts[d],
                                    .first = 0,
                                    .last = p.starts[d + 1] - p.starts[d],
                                    .kv_head = kv_head,
                                    .scratch = scratch});
    }
  }
  EXPECT_LT(distance(d_qkv, reference(p).d_qkv), 3.0 / 256) << words_of(shape);
}

TEST(AmxAttention, BackwardKeepsWindowsOfEveryWidth) {
  if (!emulated::runs_here()) GTEST_SKIP() << "no AVX-512 with bf16 here";
  for (const std::int64_t window : {0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 129, 1000}) {
    expect_reference({.lengths = {260, 33}, .heads = {2, 1, 16}, .dtype = DType::bf16, .window = window});
  }
}

TEST(AmxAttention, BackwardAgreesForHeadSizesLengthsAndCaps) {
  if (!emulated::runs_here()) GTEST_SKIP() << "no AVX-512 with bf16 here";
  for (const std::int64_t head_dim : {8, 32, 48, 80, 128}) {
    expect_reference({.lengths = {70}, .heads = {2, 1, head_dim}, .dtype = DType::bf16});
  }
  for (const std::int32_t length : {1, 2, 63, 64, 65, 128, 129}) {
    expect_reference({.lengths = {length, 5}, .heads = {4, 2, 32}, .dtype = DType::bf16});
  }
  expect_reference({.lengths = {150}, .heads = {2, 2, 64}, .dtype = DType::bf16, .soft_cap = 2.0f});
  expect_reference(
      {.lengths = {150}, .heads = {2, 2, 64}, .dtype = DType::bf16, .soft_cap = 30.0f, .window = 50});
}

}  // namespace
}  // namespace octet::ops::attention_amx_backward_test

#endif
