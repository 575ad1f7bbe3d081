#include "octet/ops/attention_sinks.h"

#include <limits>

#include "ops/attention_problem.h"
#include "ops/tensor.h"

namespace octet::ops::attention_sinks_test {
namespace {

constexpr float kFar = 200.0f;

struct Case {
  std::int64_t tokens;
  Heads heads;
  DType dtype;
};

class Sinks : public testing::TestWithParam<Case> {
 protected:
  std::vector<float> sinks() const {
    std::vector<float> values = random_floats(GetParam().heads.q_heads, 3, 2);
    if (values.size() > 2) values[0] = -kFar, values[1] = kFar;
    return values;
  }
};

// Each result by its formula in float64.
TEST_P(Sinks, OutputsSumsAndGradientsAreTheFloat64Ones) {
  const auto [tokens, heads, dtype] = GetParam();
  const std::int64_t width = heads.q_heads * heads.head_dim;
  Tensor out = Tensor::random(dtype, tokens, width, 1);
  const Tensor before = out, d_out = Tensor::random(dtype, tokens, width, 2);
  const std::vector<float> sinks = this->sinks();
  std::vector<float> lse = random_floats(heads.q_heads * tokens, 4, 3);
  const std::vector<float> lse_before = lse;
  std::vector<float> d_sinks = random_floats(heads.q_heads, 5);
  const std::vector<float> d_before = d_sinks;
  CpuStream stream;
  attention_sinks(stream, {.sinks = sinks.data(), .heads = heads, .out = out.matrix(), .lse = lse.data()});
  attention_sinks_backward(stream, {.sinks = sinks.data(),
                                    .heads = heads,
                                    .out = out.matrix(),
                                    .lse = lse.data(),
                                    .d_out = d_out.matrix(),
                                    .d_sinks = d_sinks.data()});
  for (std::int64_t h = 0; h < heads.q_heads; ++h) {
    const auto at = static_cast<std::size_t>(h);
    const double sink = static_cast<double>(sinks[at]);
    double gradient = static_cast<double>(d_before[at]), size = std::abs(gradient);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto row = static_cast<std::size_t>(h * tokens + t);
      const double old = static_cast<double>(lse_before[row]), most = std::max(old, sink);
      const double sum = most + std::log(std::exp(old - most) + std::exp(sink - most));
      ASSERT_NEAR(static_cast<double>(lse[row]), sum, 1e-6 * (1 + std::abs(sum)));
      double both = 0;
      for (std::int64_t d = h * heads.head_dim; d < (h + 1) * heads.head_dim; ++d) {
        const double want = before.at(t, d) * std::exp(old - sum);
        ASSERT_NEAR(out.at(t, d), want, std::abs(want) * out.rounding() + 1e-30) << t << " " << d;
        both += out.at(t, d) * d_out.at(t, d);
      }
      gradient -= std::exp(sink - sum) * both;
      size += std::abs(both);
    }
    EXPECT_NEAR(static_cast<double>(d_sinks[at]), gradient, 1e-6 * size + 1e-7) << "head " << h;
  }
  EXPECT_TRUE(out.margin_untouched());
}

INSTANTIATE_TEST_SUITE_P(Cases, Sinks,
                         testing::Values(Case{1, {1, 1, 1}, DType::f32}, Case{7, {4, 2, 33}, DType::f32},
                                         Case{300, {3, 1, 64}, DType::f32},
                                         Case{129, {4, 2, 80}, DType::bf16}, Case{0, {2, 1, 8}, DType::f32}),
                         [](const auto& c) {
                           return std::to_string(c.param.tokens) + std::string(name_of(c.param.dtype));
                         });

/// Attention with a sink for each head, by its definition in float64.
struct WithSinks {
  explicit WithSinks(const Problem64& p, const std::vector<float>& sinks)
      : out(static_cast<std::size_t>(p.tokens() * p.shape.heads.q_heads * p.shape.heads.head_dim)),
        d_qkv(static_cast<std::size_t>(p.tokens() * p.shape.heads.qkv_width())) {
    const Heads& heads = p.shape.heads;
    const std::int64_t ld = heads.qkv_width(), dim = heads.head_dim, group = heads.q_heads / heads.kv_heads;
    for (std::size_t n = 0; n + 1 < p.starts.size(); ++n) {
      for (std::int64_t h = 0; h < heads.q_heads; ++h) {
        const std::int64_t k = (heads.q_heads + h / group) * dim, v = k + heads.kv_heads * dim;
        for (std::int64_t i = p.starts[n]; i < p.starts[n + 1]; ++i) {
          const std::int64_t first =
              p.shape.window > 0 ? std::max<std::int64_t>(p.starts[n], i - p.shape.window + 1) : p.starts[n];
          std::vector<double> weights;
          double sum = std::exp(static_cast<double>(sinks[static_cast<std::size_t>(h)])), delta = 0;
          for (std::int64_t j = first; j <= i; ++j) {
            double score = 0;
            for (std::int64_t d = 0; d < dim; ++d)
              score += p.qkv[i * ld + h * dim + d] * p.qkv[j * ld + k + d];
            weights.push_back(std::exp(score * static_cast<double>(p.scale())));
            sum += weights.back();
          }
          std::vector<double> d_weights;
          for (std::int64_t j = first; j <= i; ++j) {
            double& weight = weights[static_cast<std::size_t>(j - first)];
            weight /= sum;
            double of_weight = 0;
            for (std::int64_t d = 0; d < dim; ++d) {
              const double g = p.d_out[(i * heads.q_heads + h) * dim + d];
              out[static_cast<std::size_t>((i * heads.q_heads + h) * dim + d)] +=
                  weight * p.qkv[j * ld + v + d];
              d_qkv[static_cast<std::size_t>(j * ld + v + d)] += weight * g;
              of_weight += g * p.qkv[j * ld + v + d];
            }
            d_weights.push_back(of_weight);
            delta += weight * of_weight;
          }
          for (std::int64_t j = first; j <= i; ++j) {
            const auto at = static_cast<std::size_t>(j - first);
            const double d_score = weights[at] * (d_weights[at] - delta) * static_cast<double>(p.scale());
            for (std::int64_t d = 0; d < dim; ++d) {
              d_qkv[static_cast<std::size_t>(i * ld + h * dim + d)] += d_score * p.qkv[j * ld + k + d];
              d_qkv[static_cast<std::size_t>(j * ld + k + d)] += d_score * p.qkv[i * ld + h * dim + d];
            }
          }
        }
      }
    }
  }
  std::vector<double> out, d_qkv;
};

// The backward of attention is right with the changed output and sum, also with a window.
TEST(SinksOfAttention, GradientsOfQueriesKeysAndValuesAreTheFloat64Ones) {
  for (const std::int64_t window : {0, 5}) {
    const Problem64 p({.lengths = {17, 70}, .heads = {4, 2, 16}, .window = window});
    const Heads& heads = p.shape.heads;
    const std::int64_t tokens = p.tokens(), width = heads.q_heads * heads.head_dim;
    const std::vector<float> sinks{-1.0f, 0.5f, 2.0f, 4.0f};
    CpuStream stream;
    Arena arena(stream.device());
    Workspace workspace;
    workspace.bytes =
        attention_workspace(stream.device(), heads, DType::f32, tokens, p.documents().max_length);
    workspace.data = arena.reserve("workspace", workspace.bytes);
    Array out(tokens, width, DType::f32), d_qkv(tokens, heads.qkv_width(), DType::f32);
    std::vector<float> lse(static_cast<std::size_t>(heads.q_heads * tokens));
    const ConstMatrix qkv(p.qkv.bytes.data(), DType::f32, tokens, heads.qkv_width(), heads.qkv_width());
    const Matrix to{out.bytes.data(), DType::f32, tokens, width, width};
    attention(stream, {.qkv = qkv,
                       .heads = heads,
                       .documents = p.documents(),
                       .scale = p.scale(),
                       .window = window,
                       .out = to,
                       .lse = lse.data(),
                       .workspace = workspace});
    attention_sinks(stream, {.sinks = sinks.data(), .heads = heads, .out = to, .lse = lse.data()});
    attention_backward(
        stream, {.qkv = qkv,
                 .out = to,
                 .d_out = ConstMatrix(p.d_out.bytes.data(), DType::f32, tokens, width, width),
                 .lse = lse.data(),
                 .heads = heads,
                 .documents = p.documents(),
                 .scale = p.scale(),
                 .window = window,
                 .d_qkv = {d_qkv.bytes.data(), DType::f32, tokens, heads.qkv_width(), heads.qkv_width()},
                 .workspace = workspace});
    const WithSinks want(p, sinks);
    EXPECT_LT(distance(out, want.out), 1e-6) << "window " << window;
    EXPECT_LT(distance(d_qkv, want.d_qkv), 2e-6) << "window " << window;
  }
}

/// Attention through a cache, `piece` tokens at a time: outputs and sums in the order of tokens.
struct Cached {
  std::vector<float> lse;
  Array out;
};

Cached through_cache(const Problem64& p, std::int64_t piece, bool fixed_order) {
  const Heads& heads = p.shape.heads;
  const std::int64_t tokens = p.tokens(), width = heads.q_heads * heads.head_dim;
  const std::int64_t kv = heads.kv_heads * heads.head_dim, ld = heads.qkv_width();
  const DType dtype = p.shape.dtype;
  CpuStream stream;
  Array keys(tokens, kv, dtype), values(tokens, kv, dtype);
  Cached all{.lse = std::vector<float>(static_cast<std::size_t>(heads.q_heads * tokens)),
             .out = Array(tokens, width, dtype)};
  Arena arena(stream.device());
  Workspace workspace;
  workspace.bytes = cached_attention_workspace(stream.device(), heads, piece, tokens, fixed_order);
  workspace.data = arena.reserve("workspace", workspace.bytes);
  for (std::int64_t begin = 0; begin < tokens; begin += piece) {
    const std::int64_t count = std::min(piece, tokens - begin);
    const std::vector<std::int32_t> slots(static_cast<std::size_t>(count), 0);
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < count; ++i) positions.push_back(static_cast<std::int32_t>(begin + i));
    std::vector<float> lse(static_cast<std::size_t>(heads.q_heads * count));
    const std::size_t element = size_of(dtype);
    cached_attention(stream,
                     {.qkv = ConstMatrix(p.qkv.bytes.data() + static_cast<std::size_t>(begin * ld) * element,
                                         dtype, count, ld, ld),
                      .heads = heads,
                      .slots = slots.data(),
                      .positions = positions.data(),
                      .k_cache = keys.bytes.data(),
                      .v_cache = values.bytes.data(),
                      .capacity = tokens,
                      .scale = p.scale(),
                      .window = p.shape.window,
                      .out = Matrix{all.out.bytes.data() + static_cast<std::size_t>(begin * width) * element,
                                    dtype, count, width, width},
                      .lse = lse.data(),
                      .fixed_order = fixed_order,
                      .workspace = workspace});
    for (std::int64_t h = 0; h < heads.q_heads; ++h) {
      for (std::int64_t i = 0; i < count; ++i)
        all.lse[static_cast<std::size_t>(h * tokens + begin + i)] =
            lse[static_cast<std::size_t>(h * count + i)];
    }
  }
  return all;
}

// Decoding has the sums of the whole sequence. In a fixed order, it has their bits.
TEST(SinksOfAttention, DecodingGivesTheSumsOfTheSequence) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t window : {0, 20}) {
      const Problem64 p({.lengths = {90}, .heads = {4, 2, 64}, .dtype = dtype, .window = window});
      const Reference want = reference(p);
      for (const std::int64_t piece : {1, 33, 90}) {
        for (const bool fixed : {false, true}) {
          SCOPED_TRACE(words_of(p.shape) + ", pieces of " + std::to_string(piece));
          const Cached found = through_cache(p, piece, fixed);
          const auto lse_of = [&](std::int64_t i) { return found.lse[static_cast<std::size_t>(i)]; };
          for (std::int64_t i = 0; i < std::ssize(found.lse); ++i)
            ASSERT_NEAR(static_cast<double>(lse_of(i)), want.lse[static_cast<std::size_t>(i)], 2e-5);
        }
      }
    }
  }
}

TEST(SinksOfAttention, MissingArraysAreRefused) {
  CpuStream stream;
  std::vector<float> out(16), one(2);
  const Matrix m{out.data(), DType::f32, 1, 16, 16};
  const Heads heads{2, 1, 8};
  EXPECT_THROW(attention_sinks(stream, {.heads = heads, .out = m, .lse = one.data()}), std::logic_error);
  EXPECT_THROW(attention_sinks(stream, {.sinks = one.data(), .heads = heads, .out = m}), std::logic_error);
  EXPECT_THROW(
      attention_sinks(stream, {.sinks = one.data(), .heads = {3, 1, 8}, .out = m, .lse = one.data()}),
      std::logic_error);
}

}  // namespace
}  // namespace octet::ops::attention_sinks_test
