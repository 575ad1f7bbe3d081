// Sinks of attention, sums of cached attention and biases of experts on the GPU, against the CPU side.
#include <numeric>

#include "gpu/sides.h"
#include "octet/ops/attention.h"
#include "octet/ops/attention_sinks.h"
#include "octet/ops/expert_bias.h"

namespace octet::ops::sinks_and_biases_test {
namespace {

TEST(AttentionSinks, ForwardAndBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const Heads& heads : {Heads{64, 8, 64}, Heads{4, 2, 33}, Heads{3, 1, 128}, Heads{1, 1, 1}}) {
      for (const std::int64_t tokens : {1, 255, 1030}) {
        SCOPED_TRACE(std::to_string(heads.q_heads) + " heads, " + std::to_string(tokens) + " tokens");
        const std::int64_t width = heads.q_heads * heads.head_dim;
        const Tensor values = Tensor::random(dtype, tokens, width, 1),
                     d_out = Tensor::random(dtype, tokens, width, 2);
        both(
            [&](Side& s) {
              const Matrix out = s.put(values);
              float* lse = s.put(random_floats(heads.q_heads * tokens, 3, 3));
              float* sinks = s.put(random_floats(heads.q_heads, 4, 3));
              float* d_sinks = s.put(random_floats(heads.q_heads, 5));
              attention_sinks(s, {.sinks = sinks, .heads = heads, .out = out, .lse = lse});
              attention_sinks_backward(
                  s, {.sinks = sinks,
                      .heads = heads,
                      .out = out,
                      .lse = lse,
                      .d_out = s.put(d_out),
                      .d_sinks = d_sinks,
                      .workspace = s.workspace(attention_sinks_workspace(s.device(), heads, tokens))});
              s.out("out", out);
              s.out("lse", lse, heads.q_heads * tokens, DType::f32);
              s.out("d_sinks", d_sinks, heads.q_heads, DType::f32);
            },
            {.relative = 2e-5, .absolute = 2e-4, .bf16_steps = 1.01});
      }
    }
  }
}

/// A prompt, then single tokens of sequences of different lengths, which a GPU reads in pieces.
TEST(CachedSums, OfPromptsAndOfTokensInPieces) {
  constexpr std::int64_t capacity = 3000, slots = 3;
  for (const DType dtype : kComputeTypes) {
    for (const Heads& heads : {Heads{16, 2, 64}, Heads{4, 2, 33}, Heads{40, 2, 128}}) {
      for (const std::int64_t window : {0, 128}) {
        for (const bool fixed_order : {false, true}) {
          SCOPED_TRACE(std::to_string(heads.head_dim) + ", window " + std::to_string(window));
          both(
              [&](Side& s) {
                const std::int64_t kv = heads.kv_heads * heads.head_dim;
                const auto cache = [&] { return s.put(Tensor(dtype, slots * capacity, kv, 0)).data; };
                void *keys = cache(), *values = cache();
                std::int32_t next[slots] = {};
                for (const auto& counts : {std::vector<std::int32_t>{70, 2600, 9}, {1, 1, 1}}) {
                  std::vector<std::int32_t> slot_of, position;
                  for (std::int32_t slot = 0; slot < slots; ++slot) {
                    for (std::int32_t i = 0; i < counts[static_cast<std::size_t>(slot)]; ++i) {
                      slot_of.push_back(slot);
                      position.push_back(next[slot]++);
                    }
                  }
                  const std::int64_t tokens = std::ssize(slot_of);
                  const Tensor qkv = Tensor::random(dtype, tokens, heads.qkv_width(), 5, 1.5, 0);
                  const Matrix out = s.put(Tensor(dtype, tokens, heads.q_heads * heads.head_dim, 0));
                  float* lse = s.put(random_floats(heads.q_heads * tokens, 6));
                  cached_attention(s, {.qkv = s.put(qkv),
                                       .heads = heads,
                                       .slots = s.put(slot_of),
                                       .positions = s.put(position),
                                       .k_cache = keys,
                                       .v_cache = values,
                                       .capacity = capacity,
                                       .scale = 0.1f,
                                       .window = window,
                                       .out = out,
                                       .lse = lse,
                                       .alone = tokens == slots ? tokens : 0,
                                       .fixed_order = fixed_order,
                                       .workspace = s.workspace(cached_attention_workspace(
                                           s.device(), heads, tokens, capacity, fixed_order))});
                  s.out("lse", lse, heads.q_heads * tokens, DType::f32);
                }
              },
              // Weights that are rounded to bf16 are summed.
              {.relative = 1e-5, .absolute = dtype == DType::bf16 ? 2e-3 : 2e-5});
        }
      }
    }
  }
}

TEST(ExpertBias, ForwardAndBothGradients) {
  for (const DType dtype : kComputeTypes) {
    for (const std::vector<std::int32_t>& counts :
         {std::vector<std::int32_t>{3}, {0, 5, 0, 700, 1, 0}, {0, 0}, {70, 64, 9, 2000}}) {
      for (const std::int64_t cols : {1, 33, 80, 2880}) {
        SCOPED_TRACE(std::to_string(counts.size()) + " experts, " + std::to_string(cols) + " columns");
        std::vector<std::int32_t> begins{0};
        for (const std::int32_t count : counts) begins.push_back(begins.back() + count);
        const std::int64_t rows = begins.back() + 2, experts = std::ssize(counts), tokens = 50;
        std::vector<std::int32_t> row_tokens;
        for (std::int64_t r = 0; r < rows; ++r)
          row_tokens.push_back(static_cast<std::int32_t>(r * 7 % tokens));
        const Tensor values = Tensor::random(dtype, rows, cols, 1),
                     d = Tensor::random(dtype, tokens, cols, 2);
        both(
            [&](Side& s) {
              const Matrix x = s.put(values);
              const std::int32_t* at = s.put(begins);
              float* bias = s.put(random_floats(experts * cols, 3));
              float* d_bias = s.put(random_floats(experts * cols, 4));
              float* weights = s.put(random_floats(rows, 5));
              expert_bias_backward(s, {.d_y = x, .count = experts, .begins = at, .d_bias = d_bias});
              expert_bias_weights(s, {.d_tokens = s.put(d),
                                      .row_tokens = s.put(row_tokens),
                                      .rows = rows,
                                      .bias = bias,
                                      .count = experts,
                                      .begins = at,
                                      .d_weights = weights});
              expert_bias(s, {.x = x, .bias = bias, .count = experts, .begins = at});
              s.out("x", x);
              s.out("d_bias", d_bias, experts * cols, DType::f32);
              s.out("d_weights", weights, rows, DType::f32);
            },
            {.relative = 1e-5, .absolute = 3e-4, .bf16_steps = 1.01});
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::sinks_and_biases_test
