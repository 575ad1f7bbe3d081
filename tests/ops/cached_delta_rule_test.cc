#include <numeric>

#include "ops/delta_problem.h"

namespace octet::ops::cached_delta_rule_test {
namespace {

/// Outputs of the documents of a problem as sequences, `piece` tokens of each per call. Slot of a document:
/// its number, from the end. States are NaN before.
struct Decoded {
  Tensor out;
  std::vector<float> states;
};

Decoded decode(const DeltaProblem& p, std::int64_t piece, int threads = 2) {
  const DeltaHeads& heads = p.shape.heads;
  const std::int64_t documents = std::ssize(p.shape.lengths), value_heads = heads.value_heads;
  Decoded r{.out = Tensor(p.shape.dtype, p.tokens(), heads.values()),
            .states = std::vector<float>(
                static_cast<std::size_t>(documents * value_heads * heads.key_dim * heads.value_dim),
                std::nanf(""))};
  CpuStream stream(threads);
  for (std::int64_t begin = 0; begin < p.documents().max_length; begin += piece) {
    std::vector<std::int32_t> slots, positions;
    std::vector<std::int64_t> rows;
    for (std::int64_t d = 0; d < documents; ++d) {
      const auto at = static_cast<std::size_t>(d);
      for (std::int64_t i = begin; i < std::min<std::int64_t>(begin + piece, p.shape.lengths[at]); ++i) {
        slots.push_back(static_cast<std::int32_t>(documents - 1 - d));
        positions.push_back(static_cast<std::int32_t>(i));
        rows.push_back(p.starts[at] + i);
      }
    }
    const std::int64_t count = std::ssize(rows);
    Tensor qkv(p.shape.dtype, count, heads.qkv_width()), out(p.shape.dtype, count, heads.values());
    std::vector<float> log_decay, beta;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t from = rows[static_cast<std::size_t>(t)];
      for (std::int64_t c = 0; c < qkv.cols(); ++c) qkv.set(t, c, p.qkv.at(from, c));
      for (std::int64_t h = 0; h < value_heads; ++h) {
        log_decay.push_back(p.log_decay[static_cast<std::size_t>(from * value_heads + h)]);
        beta.push_back(p.beta[static_cast<std::size_t>(from * value_heads + h)]);
      }
    }
    cached_delta_rule(stream, {.qkv = qkv.matrix(),
                               .log_decay = log_decay.data(),
                               .beta = beta.data(),
                               .heads = heads,
                               .slots = slots.data(),
                               .positions = positions.data(),
                               .states = r.states.data(),
                               .out = out.matrix()});
    EXPECT_TRUE(out.margin_untouched());
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t c = 0; c < out.cols(); ++c)
        r.out.set(rows[static_cast<std::size_t>(t)], c, out.at(t, c));
    }
  }
  return r;
}

TEST(CachedDeltaRule, DecodingIsTheFloat64Recurrence) {
  for (const DType dtype : kComputeTypes) {
    for (const DeltaHeads& heads : {DeltaHeads{1, 1, 16, 24}, {2, 4, 40, 72}, {1, 3, 128, 128}}) {
      const DeltaProblem p({.lengths = {70, 1, 20}, .heads = heads, .dtype = dtype});
      SCOPED_TRACE(words_of(p.shape));
      const DeltaReference want(p);
      const Decoded found = decode(p, 66);
      const double bound = dtype == DType::f32 ? 3e-6 : 0x1.1p-8;
      for (std::size_t d = 0; d < 3; ++d) {
        EXPECT_LT(delta_distance(found.out, want.out, p.starts[d], p.starts[d + 1], 0, heads.values()),
                  bound);
      }
      const DeltaResult chunks = run_delta(p, 2, false);
      EXPECT_LT(delta_distance(chunks.out, want.out, 0, p.tokens(), 0, heads.values()), bound);
    }
  }
}

// Neither the split into calls nor threads nor other sequences change a bit.
TEST(CachedDeltaRule, BitsDoNotDependOnCalls) {
  for (const DType dtype : kComputeTypes) {
    const DeltaProblem p({.lengths = {90, 3, 65}, .heads = {2, 4, 32, 40}, .dtype = dtype});
    const Decoded whole = decode(p, 1000);
    for (const std::int64_t piece : {1, 7, 64, 65}) {
      const Decoded parts = decode(p, piece, piece == 7 ? 1 : 3);
      EXPECT_TRUE(parts.out == whole.out) << piece;
      EXPECT_EQ(parts.states, whole.states) << piece;
    }
    DeltaProblem alone({.lengths = {90}, .heads = p.shape.heads, .dtype = dtype});
    for (std::int64_t t = 0; t < 90; ++t) {
      for (std::int64_t c = 0; c < p.qkv.cols(); ++c) alone.qkv.set(t, c, p.qkv.at(t, c));
    }
    std::copy_n(p.beta.begin(), alone.beta.size(), alone.beta.begin());
    std::copy_n(p.log_decay.begin(), alone.log_decay.size(), alone.log_decay.begin());
    const Decoded one = decode(alone, 1);
    for (std::int64_t t = 0; t < 90; ++t) {
      for (std::int64_t c = 0; c < one.out.cols(); ++c) ASSERT_EQ(one.out.at(t, c), whole.out.at(t, c));
    }
  }
}

/// Arguments of a call with one head of 8 x 8 per token.
struct Call {
  Call(std::vector<std::int32_t> s, std::vector<std::int32_t> p)
      : slots(std::move(s)),
        positions(std::move(p)),
        qkv(Tensor::random(DType::f32, std::ssize(slots), 24, 5)),
        out(DType::f32, std::ssize(slots), 8),
        log_decay(slots.size(), -0.5f),
        beta(slots.size(), 0.5f),
        states(std::size_t{4} * 64, 1.0f) {}
  CachedDeltaRuleArgs args() {
    return {.qkv = qkv.matrix(),
            .log_decay = log_decay.data(),
            .beta = beta.data(),
            .heads = {1, 1, 8, 8},
            .slots = slots.data(),
            .positions = positions.data(),
            .states = states.data(),
            .out = out.matrix()};
  }
  std::vector<std::int32_t> slots, positions;
  Tensor qkv, out;
  std::vector<float> log_decay, beta, states;
};

// A repeated pass is filled with copies of its first token.
TEST(CachedDeltaRule, CopiesOfTheFirstTokenChangeTheStateOnce) {
  CpuStream stream;
  Call once({2, 1}, {7, 3}), padded({2, 1, 2, 2}, {7, 3, 7, 7});
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t c = 0; c < 24; ++c) padded.qkv.set(t, c, once.qkv.at(t == 1 ? 1 : 0, c));
  }
  cached_delta_rule(stream, once.args());
  cached_delta_rule(stream, padded.args());
  EXPECT_EQ(padded.states, once.states);
  for (std::int64_t c = 0; c < 8; ++c) {
    EXPECT_EQ(padded.out.at(0, c), once.out.at(0, c));
    EXPECT_EQ(padded.out.at(1, c), once.out.at(1, c));
    EXPECT_EQ(padded.out.at(2, c), once.out.at(0, c));
    EXPECT_EQ(padded.out.at(3, c), once.out.at(0, c));
  }
  // Other slots keep their states.
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(once.states[i], 1.0f);
    EXPECT_EQ(once.states[3 * 64 + i], 1.0f);
  }
}

TEST(CachedDeltaRule, WrongTokensAreRefused) {
  CpuStream stream;
  const auto refused = [](std::vector<std::int32_t> slots, std::vector<std::int32_t> positions) {
    Call call(std::move(slots), std::move(positions));
    EXPECT_TRUE(is_refused([&](Stream& s) { cached_delta_rule(s, call.args()); }));
  };
  refused({0, 1, 0}, {0, 0, 1});  // not adjacent
  refused({0, 0}, {1, 0});        // not in order
  refused({1, 0, 0}, {0, 1, 3});  // a gap
  refused({-1}, {0});
  refused({0}, {-1});
  refused({0, 0, 0}, {0, 1, 0});  // a copy of a token with a successor
  Call call({0}, {0});
  CachedDeltaRuleArgs args = call.args();
  args.states = nullptr;
  EXPECT_THROW(cached_delta_rule(stream, args), std::logic_error);
  args = call.args();
  args.heads.value_dim = 12;
  EXPECT_THROW(cached_delta_rule(stream, args), std::logic_error);
  args = call.args();
  args.out.cols = 7;
  EXPECT_THROW(cached_delta_rule(stream, args), std::logic_error);
  Call none({}, {});
  cached_delta_rule(stream, none.args());
}

}  // namespace
}  // namespace octet::ops::cached_delta_rule_test
