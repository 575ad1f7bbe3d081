// The gated delta rule for decoding on the GPU, against the CPU side.
#include "gpu/sides.h"
#include "octet/ops/delta_rule.h"

namespace octet::ops::cached_delta_rule_test {
namespace {

/// Tokens of a call: the sequence and the position of each.
struct Call {
  std::vector<std::int32_t> slots, positions;
};
constexpr std::int64_t kSlots = 5;

/// Inputs of a token follow from its sequence and position, so copies are equal.
Tensor inputs_of(const Call& call, DType dtype, std::int64_t width, std::int64_t gap) {
  Tensor x(dtype, std::ssize(call.slots), width, gap);
  for (std::size_t t = 0; t < call.slots.size(); ++t) {
    const auto seed = static_cast<std::uint64_t>(call.slots[t] * 1000 + call.positions[t]);
    const Tensor row = Tensor::random(dtype, 1, width, seed, 1, 0);
    for (std::int64_t c = 0; c < width; ++c) x.set(static_cast<std::int64_t>(t), c, row.at(0, c));
  }
  return x;
}
std::vector<float> gates_of(const Call& call, std::int64_t heads, float sign) {
  std::vector<float> all;
  for (std::size_t t = 0; t < call.slots.size(); ++t) {
    const auto seed = static_cast<std::uint64_t>(call.slots[t] * 1000 + call.positions[t]);
    for (const float x : random_floats(heads, seed + (sign > 0 ? 77 : 0))) {
      all.push_back(sign / (1.0f + std::exp(-x)));
    }
  }
  return all;
}

Matrix run_call(Side& s, const Call& call, const DeltaHeads& heads, DType dtype, std::int64_t gap,
                float* states) {
  const auto tokens = std::ssize(call.slots);
  const Matrix out = s.put(Tensor(dtype, tokens, heads.values(), gap));
  cached_delta_rule(s, {.qkv = s.put(inputs_of(call, dtype, heads.qkv_width(), gap)),
                        .log_decay = s.put(gates_of(call, heads.value_heads, -1.0f)),
                        .beta = s.put(gates_of(call, heads.value_heads, 1.0f)),
                        .heads = heads,
                        .slots = s.put(call.slots),
                        .positions = s.put(call.positions),
                        .states = states,
                        .out = out});
  return out;
}
std::int64_t state_count(const DeltaHeads& heads) {
  return kSlots * heads.value_heads * heads.key_dim * heads.value_dim;
}

TEST(GpuCachedDeltaRule, AgreesForAnyCalls) {
  const std::vector<Call> calls = {{{2, 2, 2, 0, 3, 3}, {0, 1, 2, 0, 0, 1}},
                                   {{3, 0, 2}, {2, 1, 3}},
                                   {{0, 0, 0, 3, 2}, {2, 3, 4, 3, 4}},
                                   {{2, 3, 2, 2}, {5, 4, 5, 5}},
                                   {{0}, {0}}};
  for (const DType dtype : kComputeTypes) {
    for (const DeltaHeads& heads :
         {DeltaHeads{1, 1, 8, 8}, DeltaHeads{2, 4, 40, 72}, DeltaHeads{1, 2, 128, 128},
          DeltaHeads{1, 3, 256, 40}, DeltaHeads{16, 32, 128, 128}}) {
      for (const std::int64_t gap : {0, 3}) {
        both(
            [&](Side& s) {
              float* states = s.put(random_floats(state_count(heads), 1));
              for (const Call& call : calls) {
                s.out("out", run_call(s, call, heads, dtype, gap, states));
                s.out("states", states, state_count(heads), DType::f32);
              }
            },
            // Sums over key_dim elements in another order.
            {.relative = 2e-5, .absolute = 2e-5, .bf16_steps = 1.01});
      }
    }
  }
}

TEST(GpuCachedDeltaRule, BitsDoNotDependOnTheSplitIntoCalls) {
  const DeltaHeads heads{1, 2, 64, 40};
  both(
      [&](Side& s) {
        float *whole = s.put(random_floats(state_count(heads), 1)),
              *split = s.put(random_floats(state_count(heads), 2));
        run_call(s, {{1, 1, 1, 1, 4, 4}, {0, 1, 2, 3, 0, 1}}, heads, DType::bf16, 0, whole);
        for (const Call& call : {Call{{4, 1, 1}, {0, 0, 1}}, Call{{1}, {2}}, Call{{1, 4}, {3, 1}}}) {
          run_call(s, call, heads, DType::bf16, 0, split);
        }
        const std::int64_t each = state_count(heads) / kSlots;
        for (const std::int64_t slot : {1, 4}) {
          s.out("", whole + slot * each, each, DType::f32);
          const Side::Output one = s.take();
          s.out("split states", split + slot * each, each, DType::f32);
          EXPECT_EQ(one.bytes, s.outputs().back().bytes);
        }
      },
      {.relative = 2e-5, .absolute = 2e-5});
}

}  // namespace
}  // namespace octet::ops::cached_delta_rule_test
