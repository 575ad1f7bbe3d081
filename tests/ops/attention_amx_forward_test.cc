// Forward attention for AMX with emulated tiles, against the definition in float64.
#include "ops/attention_problem.h"
#include "ops/emulated_tiles.h"

#if defined(__x86_64__)

// The library contains functions of the same names with real tiles.
#define amx emulated_amx_forward
#define amx_forward emulated_forward
#define amx_forward_scratch_bytes emulated_forward_scratch_bytes
#include "cpu/attention_amx.cc"
#undef amx
#undef amx_forward
#undef amx_forward_scratch_bytes

namespace octet::ops::attention_amx_forward_test {
namespace {

constexpr std::int64_t kQueriesOfATask = 128;

/// Runs the tasks of `p` and compares `out` and `lse`.
void expect_reference(const Shape& shape) {
  const Problem64 p(shape);
  const Heads& heads = shape.heads;
  const std::int64_t tokens = p.tokens(), width = heads.q_heads * heads.head_dim;
  Array out(tokens, width, DType::bf16);
  std::vector<float> lse(static_cast<std::size_t>(heads.q_heads * tokens), 1e9f);
  const AttentionArgs args{
      .qkv = ConstMatrix(p.qkv.bytes.data(), DType::bf16, tokens, heads.qkv_width(), heads.qkv_width()),
      .heads = heads,
      .documents = p.documents(),
      .scale = p.scale(),
      .soft_cap = shape.soft_cap,
      .window = shape.window,
      .out = Matrix{out.bytes.data(), DType::bf16, tokens, width, width},
      .lse = lse.data()};
  const std::size_t bytes = cpu::emulated_forward_scratch_bytes(heads, args.documents.max_length);
  const auto device = make_cpu_device({.threads = 1});
  Arena arena(*device);
  void* scratch = arena.reserve("scratch", bytes);
  for (std::size_t d = 0; d + 1 < p.starts.size(); ++d) {
    const std::int64_t length = p.starts[d + 1] - p.starts[d];
    for (std::int64_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head) {
      for (std::int64_t first = 0; first < length; first += kQueriesOfATask) {
        std::memset(scratch, 0xFF, bytes);  // NaN: no code may rely on zeros
        cpu::emulated_forward(args, {.start = p.starts[d],
                                     .first = first,
                                     .last = std::min(length, first + kQueriesOfATask),
                                     .kv_head = kv_head,
                                     .scratch = scratch});
      }
    }
  }
  const Reference want = reference(p);
  const auto at = [&](std::int64_t i) { return lse[static_cast<std::size_t>(i)]; };
  struct Lse {
    decltype(at)& value;
    double operator[](std::int64_t i) const { return value(i); }
  };
  EXPECT_LT(distance(out, want.out), 1.0 / 256) << words_of(shape);
  EXPECT_LT(distance(Lse{at}, want.lse), 1e-6) << words_of(shape);
}

TEST(AmxAttention, ForwardKeepsWindowsOfEveryWidth) {
  if (!emulated::runs_here()) GTEST_SKIP() << "no AVX-512 with bf16 here";
  for (const std::int64_t window : {0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 129, 1000}) {
    expect_reference({.lengths = {260, 33}, .heads = {2, 1, 16}, .dtype = DType::bf16, .window = window});
  }
}

TEST(AmxAttention, ForwardAgreesForHeadSizesLengthsAndCaps) {
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
}  // namespace octet::ops::attention_amx_forward_test

#endif
