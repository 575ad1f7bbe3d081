#include "octet/ops/delta_rule.h"

#include "ops/delta_problem.h"

namespace octet::ops::delta_rule_test {
namespace {

TEST(DeltaRule, TheReferenceGradientIsTheDerivativeOfTheReference) {
  DeltaProblem p({.lengths = {5, 3}, .heads = {1, 2, 8, 8}, .decay = 0.5});
  const DeltaReference want(p);
  const auto loss = [&] {
    const DeltaReference r(p);
    double sum = 0;
    for (std::int64_t t = 0; t < p.tokens(); ++t) {
      for (std::int64_t c = 0; c < p.d_out.cols(); ++c)
        sum += p.d_out.at(t, c) * r.out[static_cast<std::size_t>(t * p.d_out.cols() + c)];
    }
    return sum;
  };
  constexpr double step = 0x1p-10;
  for (std::int64_t t = 0; t < p.tokens(); ++t) {
    for (std::int64_t c = 0; c < p.qkv.cols(); c += 3) {
      const double x = p.qkv.at(t, c);
      p.qkv.set(t, c, x + step);
      const double more_x = p.qkv.at(t, c), more = loss();
      p.qkv.set(t, c, x - step);
      const double slope = (more - loss()) / (more_x - p.qkv.at(t, c));
      p.qkv.set(t, c, x);
      EXPECT_NEAR(want.d_qkv[static_cast<std::size_t>(t * p.qkv.cols() + c)], slope, 2e-5) << t << " " << c;
    }
  }
  for (std::size_t i = 0; i < p.beta.size(); ++i) {
    for (auto* values : {&p.beta, &p.log_decay}) {
      float& value = (*values)[i];
      const float x = value;
      value = x + static_cast<float>(step);
      const double more_x = static_cast<double>(value), more = loss();
      value = x - static_cast<float>(step);
      const double slope = (more - loss()) / (more_x - static_cast<double>(value));
      value = x;
      EXPECT_NEAR((values == &p.beta ? want.d_beta : want.d_log_decay)[i], slope, 2e-5) << i;
    }
  }
}

/// Compares each document, and queries, keys and values, with float64. `own`: the error of one rounding of a
/// result. `more`: of fp32 sums and, for gradients in bf16, of rounded states.
void expect_float64(const DeltaShape& shape, double forward, double backward) {
  SCOPED_TRACE(words_of(shape));
  const DeltaProblem p(shape);
  const DeltaResult found = run_delta(p);
  const DeltaReference want(p);
  const std::int64_t keys = shape.heads.keys(), width = shape.heads.qkv_width(),
                     value_heads = shape.heads.value_heads;
  for (std::size_t d = 0; d + 1 < p.starts.size(); ++d) {
    SCOPED_TRACE("document " + std::to_string(d));
    const std::int64_t start = p.starts[d], end = p.starts[d + 1];
    EXPECT_LT(delta_distance(found.out, want.out, start, end, 0, shape.heads.values()), forward);
    EXPECT_LT(delta_distance(found.d_qkv, want.d_qkv, start, end, 0, keys), backward) << "queries";
    EXPECT_LT(delta_distance(found.d_qkv, want.d_qkv, start, end, keys, 2 * keys), backward) << "keys";
    EXPECT_LT(delta_distance(found.d_qkv, want.d_qkv, start, end, 2 * keys, width), backward) << "values";
    EXPECT_LT(delta_distance(found.d_beta, want.d_beta, start * value_heads, end * value_heads), backward);
    EXPECT_LT(delta_distance(found.d_log_decay, want.d_log_decay, start * value_heads, end * value_heads),
              backward);
  }
  // Tokens outside of all documents give zeros.
  EXPECT_EQ(delta_distance(found.out, want.out, p.starts.back(), p.tokens(), 0, shape.heads.values()), 0);
  EXPECT_EQ(delta_distance(found.d_qkv, want.d_qkv, p.starts.back(), p.tokens(), 0, width), 0);
  for (auto i = static_cast<std::size_t>(p.starts.back() * value_heads); i < found.d_beta.size(); ++i) {
    EXPECT_EQ(found.d_beta[i], 0.0f);
    EXPECT_EQ(found.d_log_decay[i], 0.0f);
  }
  EXPECT_TRUE(found.out.margin_untouched() && found.d_qkv.margin_untouched());
}

// Borders of documents inside of chunks, at chunks, and empty documents.
const std::vector<std::vector<std::int32_t>> kLengths = {
    {1}, {16, 1, 0, 17}, {63, 64, 65}, {129, 0, 7}, {200}};

TEST(DeltaRule, ForwardAndBackwardAreTheFloat64Ones) {
  const DeltaHeads heads[] = {
      {1, 1, 16, 24}, {2, 2, 64, 64}, {1, 4, 32, 40}, {2, 6, 48, 128}, {1, 2, 128, 128}};
  for (std::size_t i = 0; i < std::size(heads); ++i) {
    const DeltaHeads& h = heads[i];
    const std::vector<std::int32_t>& lengths = kLengths[i];
    expect_float64({.lengths = lengths, .heads = h, .decay = 0.05, .after = 3}, 3e-6, 6e-6);
    expect_float64({.lengths = lengths, .heads = h, .dtype = DType::bf16, .decay = 0.05}, 0x1.1p-8, 0x1p-6);
  }
}

TEST(DeltaRule, EveryHeadSizeIsRight) {
  for (const std::int64_t key_dim : {8, 16, 72, 256}) {
    for (const std::int64_t value_dim : {8, 32, 104, 256}) {
      expect_float64({.lengths = {66, 5}, .heads = {1, 2, key_dim, value_dim}}, 3e-6, 6e-6);
    }
  }
}

// Decays from none at all to complete: no exponential overflows, and small decays keep their digits.
TEST(DeltaRule, DecaysOfEverySizeAreRight) {
  for (const double decay : {0.0, 1e-4, 1.0, 5.0, 100.0, 1e4, 1e30}) {
    expect_float64({.lengths = {70, 130}, .heads = {1, 2, 32, 32}, .decay = decay}, 3e-6, 1e-5);
  }
  DeltaProblem p({.lengths = {150}, .heads = {1, 1, 32, 32}, .decay = 1e-3});
  p.log_decay[40] = -1e4f;
  p.log_decay[100] = -std::numeric_limits<float>::infinity();
  const DeltaResult found = run_delta(p);
  const DeltaReference want(p);
  EXPECT_LT(delta_distance(found.out, want.out, 0, 150, 0, 32), 3e-6);
  EXPECT_LT(delta_distance(found.d_qkv, want.d_qkv, 0, 150, 0, 96), 6e-6);
  EXPECT_LT(delta_distance(found.d_log_decay, want.d_log_decay, 0, 150), 6e-6);
}

// Zero queries and keys have a direction of zero, and a finite gradient.
TEST(DeltaRule, ZeroQueriesAndKeysAreAllowed) {
  DeltaProblem p({.lengths = {70}, .heads = {1, 1, 16, 16}});
  for (const std::int64_t t : {0, 3, 64, 69}) {
    for (std::int64_t c = 0; c < 32; ++c) p.qkv.set(t, c, 0);
  }
  for (std::int64_t c = 0; c < 48; ++c) p.qkv.set(20, c, 0);
  const DeltaResult found = run_delta(p);
  const DeltaReference want(p);
  EXPECT_LT(delta_distance(found.out, want.out, 0, 70, 0, 16), 3e-6);
  EXPECT_LT(delta_distance(found.d_qkv, want.d_qkv, 0, 70, 32, 48), 6e-6);
  // Gradients of these keys are a thousand times larger than others, because eps is the square of 0.001.
  EXPECT_LT(delta_distance(found.d_qkv, want.d_qkv, 0, 70, 0, 32), 6e-6);
}

// With equal keys, beta of 1 and no decay, each value replaces the previous one.
TEST(DeltaRule, AnEqualKeyReplacesTheValue) {
  DeltaProblem p({.lengths = {130}, .heads = {1, 1, 16, 16}, .decay = 0});
  std::fill(p.beta.begin(), p.beta.end(), 1.0f);
  for (std::int64_t t = 0; t < 130; ++t) {
    for (std::int64_t c = 0; c < 32; ++c) p.qkv.set(t, c, c % 16 == 2 ? 1000 : 0);
  }
  const DeltaResult found = run_delta(p, 1, false);
  for (std::int64_t t = 0; t < 130; ++t) {
    for (std::int64_t c = 0; c < 16; ++c)
      ASSERT_NEAR(found.out.at(t, c), p.qkv.at(t, 32 + c) / 4, 2e-6 * (1 + std::abs(p.qkv.at(t, 32 + c))));
  }
}

/// Returns the problem of one document of `p`.
DeltaProblem document_of(const DeltaProblem& p, std::size_t d) {
  DeltaShape shape = p.shape;
  shape.lengths = {p.shape.lengths[d]};
  shape.after = 0;
  DeltaProblem one(shape);
  const std::int64_t value_heads = shape.heads.value_heads;
  for (std::int64_t t = 0; t < one.tokens(); ++t) {
    const std::int64_t from = p.starts[d] + t;
    for (std::int64_t c = 0; c < one.qkv.cols(); ++c) one.qkv.set(t, c, p.qkv.at(from, c));
    for (std::int64_t c = 0; c < one.d_out.cols(); ++c) one.d_out.set(t, c, p.d_out.at(from, c));
    for (std::int64_t h = 0; h < value_heads; ++h) {
      const auto to = static_cast<std::size_t>(t * value_heads + h),
                 at = static_cast<std::size_t>(from * value_heads + h);
      one.beta[to] = p.beta[at];
      one.log_decay[to] = p.log_decay[at];
    }
  }
  return one;
}

TEST(DeltaRule, ADocumentHasItsBitsAtAnyPlace) {
  for (const DType dtype : kComputeTypes) {
    const DeltaProblem p({.lengths = {1, 70, 0, 64, 131, 40}, .heads = {2, 4, 32, 40}, .dtype = dtype});
    const DeltaResult packed = run_delta(p);
    for (std::size_t d = 0; d < p.shape.lengths.size(); ++d) {
      if (p.shape.lengths[d] == 0) continue;
      const DeltaProblem one = document_of(p, d);
      const DeltaResult alone = run_delta(one);
      for (std::int64_t t = 0; t < one.tokens(); ++t) {
        const std::int64_t from = p.starts[d] + t;
        for (std::int64_t c = 0; c < one.qkv.cols(); ++c)
          ASSERT_EQ(alone.d_qkv.at(t, c), packed.d_qkv.at(from, c)) << d << " " << t << " " << c;
        for (std::int64_t c = 0; c < one.d_out.cols(); ++c)
          ASSERT_EQ(alone.out.at(t, c), packed.out.at(from, c)) << d << " " << t << " " << c;
        for (std::int64_t h = 0; h < 4; ++h) {
          ASSERT_EQ(alone.d_beta[static_cast<std::size_t>(t * 4 + h)],
                    packed.d_beta[static_cast<std::size_t>(from * 4 + h)]);
          ASSERT_EQ(alone.d_log_decay[static_cast<std::size_t>(t * 4 + h)],
                    packed.d_log_decay[static_cast<std::size_t>(from * 4 + h)]);
        }
      }
    }
  }
}

TEST(DeltaRule, BitsDoNotDependOnThreads) {
  const DeltaProblem p({.lengths = {90, 30}, .heads = {2, 4, 16, 24}});
  const DeltaResult one = run_delta(p, 1);
  for (const int threads : {2, 5, 16}) {
    const DeltaResult more = run_delta(p, threads);
    EXPECT_TRUE(more.out == one.out && more.d_qkv == one.d_qkv);
    EXPECT_EQ(more.d_beta, one.d_beta);
    EXPECT_EQ(more.d_log_decay, one.d_log_decay);
  }
}

TEST(DeltaRule, OutputsWithoutStatesHaveTheSameBits) {
  const DeltaProblem p({.lengths = {150}, .heads = {1, 2, 32, 32}, .dtype = DType::bf16});
  EXPECT_TRUE(run_delta(p, 2, true).out == run_delta(p, 2, false).out);
}

TEST(DeltaRule, NoTokensAndNoDocumentsAreAllowed) {
  const DeltaResult nothing = run_delta(DeltaProblem({.lengths = {}}));
  EXPECT_EQ(nothing.out.rows(), 0);
  const DeltaResult outside = run_delta(DeltaProblem({.lengths = {}, .after = 2}));
  for (std::int64_t c = 0; c < 16; ++c) EXPECT_EQ(outside.out.at(1, c), 0);
}

TEST(DeltaRule, WrongArgumentsAreRefused) {
  CpuStream stream;
  const DeltaProblem p({.lengths = {4}, .heads = {1, 2, 16, 16}});
  const DeltaHeads& heads = p.shape.heads;
  Tensor out(DType::f32, 4, 32), d_qkv(DType::f32, 4, 64);
  std::vector<float> d_log_decay(8), d_beta(8);
  const DeltaWorkspace workspace(stream.device(),
                                 delta_rule_workspace(stream.device(), heads, DType::f32, 4));
  const DeltaRuleArgs good{.qkv = p.qkv.matrix(),
                           .log_decay = p.log_decay.data(),
                           .beta = p.beta.data(),
                           .heads = heads,
                           .documents = p.documents(),
                           .out = out.matrix(),
                           .workspace = workspace};
  const auto refused = [&](auto change) {
    DeltaRuleArgs args = good;
    change(args);
    EXPECT_TRUE(is_refused([&](Stream& s) { delta_rule(s, args); }));
  };
  delta_rule(stream, good);
  refused([](auto& a) { a.heads.value_heads = 3; });
  refused([](auto& a) { a.heads.key_dim = 12; });
  refused([](auto& a) { a.heads.value_dim = 264; });
  refused([](auto& a) { a.qkv.cols = 63; });
  refused([](auto& a) { a.out.dtype = DType::bf16; });
  refused([](auto& a) { a.out.rows = 3; });
  refused([](auto& a) { a.beta = nullptr; });
  refused([](auto& a) { a.documents.tokens = 5; });
  refused([](auto& a) { a.documents.cu_seqlens = nullptr; });
  refused([](auto& a) { a.workspace.bytes -= 4; });
  const std::int32_t late[] = {1, 4}, beyond[] = {0, 5}, backwards[] = {0, 3, 2};
  refused([&](auto& a) { a.documents.cu_seqlens = late; });
  refused([&](auto& a) { a.documents.cu_seqlens = beyond; });
  refused([&](auto& a) { a.documents.cu_seqlens = backwards, a.documents.count = 2; });

  const DeltaRuleBackwardArgs back{.qkv = p.qkv.matrix(),
                                   .log_decay = p.log_decay.data(),
                                   .beta = p.beta.data(),
                                   .d_out = p.d_out.matrix(),
                                   .heads = heads,
                                   .documents = p.documents(),
                                   .d_qkv = d_qkv.matrix(),
                                   .d_log_decay = d_log_decay.data(),
                                   .d_beta = d_beta.data(),
                                   .workspace = workspace};
  delta_rule_backward(stream, back);
  const auto refused_back = [&](auto change) {
    DeltaRuleBackwardArgs args = back;
    change(args);
    EXPECT_TRUE(is_refused([&](Stream& s) { delta_rule_backward(s, args); }));
  };
  refused_back([](auto& a) { a.d_qkv.cols = 32; });
  refused_back([](auto& a) { a.d_out.rows = 3; });
  refused_back([](auto& a) { a.d_beta = nullptr; });
  refused_back([](auto& a) { a.workspace = {}; });
  const DeltaProblem chunk({.lengths = {64}, .heads = heads});
  Tensor d_chunk(DType::f32, 64, 64);
  refused_back([&](auto& a) {
    a.qkv = chunk.qkv.matrix(), a.d_out = chunk.d_out.matrix(), a.d_qkv = d_chunk.matrix();
    a.documents = chunk.documents();
  });
}

}  // namespace
}  // namespace octet::ops::delta_rule_test
