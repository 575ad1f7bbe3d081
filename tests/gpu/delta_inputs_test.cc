// Inputs of a gated delta rule on the GPU, against the CPU side: packs of channels and single channels, any
// documents, groups of heads, and decoding.
#include "octet/ops/delta_inputs.h"

#include <numeric>

#include "gpu/copies.h"

namespace octet::ops::delta_inputs_test {
namespace {

struct Shape {
  std::vector<std::int32_t> lengths;
  DeltaColumns columns;
  std::int64_t gap = 0;    ///< elements between rows
  std::int64_t after = 0;  ///< tokens without a document at the end
  std::int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), after); }
};

// The sigmoid of the GPU is accurate to a few units of fp32. A bf16 result may be the neighbouring value.
constexpr Within kWithin{.relative = 1e-5, .absolute = 1e-5, .bf16_steps = 1.01};

void compare(DType dtype, const Shape& shape) {
  const DeltaColumns& columns = shape.columns;
  const std::int64_t tokens = shape.tokens(), width = columns.heads.qkv_width(),
                     heads = columns.heads.value_heads;
  SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(shape.lengths.size()) + " documents, " +
               std::to_string(width) + " channels, gap " + std::to_string(shape.gap) + ", " +
               std::string(name_of(dtype)));
  std::vector<std::int32_t> starts(1, 0);
  for (const auto length : shape.lengths) starts.push_back(starts.back() + length);
  const Tensor projected = Tensor::random(dtype, tokens, columns.width(), 1, 1, shape.gap),
               d_qkv = Tensor::random(dtype, tokens, width, 2, 1, shape.gap),
               before = Tensor::random(dtype, tokens, columns.width(), 3, 1, shape.gap);
  const auto taps = random_floats(width * kDeltaTaps, 4), a_log = random_floats(heads, 5),
             dt_bias = random_floats(heads, 6), d_decay = random_floats(tokens * heads, 7),
             d_beta = random_floats(tokens * heads, 8);
  both(
      [&](Side& s) {
        const Documents documents{.cu_seqlens = s.put(starts),
                                  .count = std::ssize(shape.lengths),
                                  .max_length = tokens,
                                  .tokens = tokens};
        const Matrix x = s.put(projected), qkv = s.put(Tensor(dtype, tokens, width, shape.gap));
        const float *w = s.put(taps), *log = s.put(a_log), *bias = s.put(dt_bias);
        const std::vector<float> nothing(static_cast<std::size_t>(tokens * heads), NAN);
        float *decay = s.put(nothing), *beta = s.put(nothing);
        delta_inputs(s, {.projected = x,
                         .columns = columns,
                         .documents = documents,
                         .taps = w,
                         .a_log = log,
                         .dt_bias = bias,
                         .qkv = qkv,
                         .log_decay = decay,
                         .beta = beta});
        s.out("qkv", qkv);
        s.out("log_decay", decay, tokens * heads, DType::f32);
        s.out("beta", beta, tokens * heads, DType::f32);
        const Matrix d = s.put(before);
        delta_inputs_backward(
            s, {.projected = x,
                .columns = columns,
                .documents = documents,
                .taps = w,
                .a_log = log,
                .dt_bias = bias,
                .d_qkv = s.put(d_qkv),
                .d_log_decay = s.put(d_decay),
                .d_beta = s.put(d_beta),
                .d_projected = d,
                .workspace = s.workspace(delta_inputs_workspace(s.device(), columns, tokens))});
        s.out("d_projected", d);
      },
      kWithin);
}

/// Sums over all tokens. Their terms are about 1, and their order differs between CPU and GPU.
void compare_sums(DType dtype, std::int64_t tokens) {
  const DeltaColumns columns{.heads = {2, 4, 16, 24}, .groups = 2};
  const std::int64_t width = columns.heads.qkv_width(), heads = columns.heads.value_heads;
  both(
      [&](Side& s) {
        float *d_taps = s.put(random_floats(width * kDeltaTaps, 1)),
              *d_a_log = s.put(random_floats(heads, 2)), *d_bias = s.put(random_floats(heads, 3));
        const std::vector<std::int32_t> starts{0, static_cast<std::int32_t>(tokens / 3),
                                               static_cast<std::int32_t>(tokens)};
        delta_inputs_backward(
            s,
            {.projected = s.put(Tensor::random(dtype, tokens, columns.width(), 4, 1, 0)),
             .columns = columns,
             .documents = {.cu_seqlens = s.put(starts), .count = 2, .max_length = tokens, .tokens = tokens},
             .taps = s.put(random_floats(width * kDeltaTaps, 5)),
             .a_log = s.put(random_floats(heads, 6)),
             .dt_bias = s.put(random_floats(heads, 7)),
             .d_qkv = s.put(Tensor::random(dtype, tokens, width, 8, 1, 0)),
             .d_log_decay = s.put(random_floats(tokens * heads, 9)),
             .d_beta = s.put(random_floats(tokens * heads, 10)),
             .d_projected = s.put(Tensor(dtype, tokens, columns.width(), 0)),
             .d_taps = d_taps,
             .d_a_log = d_a_log,
             .d_dt_bias = d_bias,
             .workspace = s.workspace(delta_inputs_workspace(s.device(), columns, tokens))});
        s.out("d_taps", d_taps, width * kDeltaTaps, DType::f32);
        s.out("d_a_log", d_a_log, heads, DType::f32);
        s.out("d_dt_bias", d_bias, heads, DType::f32);
      },
      {.relative = 1e-5, .absolute = 1e-5 * std::sqrt(static_cast<double>(tokens)) + 1e-5});
}

TEST(GpuDeltaInputs, ForwardAndBackwardOfAnyDocuments) {
  // The GPU takes four tokens at a time. Documents begin at each of the four.
  const std::vector<std::vector<std::int32_t>> documents = {
      {}, {1}, {5, 1, 0, 2, 3}, {31, 1, 32, 33}, {200}, {1, 1, 1, 1, 70}, {6, 9, 30, 7, 20}};
  for (const DType dtype : kComputeTypes) {
    for (const auto& lengths : documents) {
      for (const std::int64_t gap : {0, 8, 3}) {
        compare(dtype, {lengths, {.heads = {1, 2, 8, 16}}, gap, 2});
        compare(dtype, {lengths, {.heads = {4, 8, 24, 40}, .groups = 4}, gap});
      }
    }
    compare(dtype, {{300, 100}, {.heads = {2, 34, 128, 128}}, 0, 1});
  }
}

TEST(GpuDeltaInputs, SumsOfGradients) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t tokens : {1, 33, 1000, 5000}) compare_sums(dtype, tokens);
  }
}

TEST(GpuDeltaInputs, DecodingKeepsInputs) {
  const DeltaColumns columns{.heads = {1, 2, 16, 24}};
  const std::int64_t width = columns.heads.qkv_width(), heads = columns.heads.value_heads, slots = 4;
  // Calls: prompts, single tokens, several tokens, and copies of token 0.
  const std::vector<std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>> calls = {
      {{2, 2, 2, 2, 2, 0, 3, 3}, {0, 1, 2, 3, 4, 0, 0, 1}},
      {{3, 0, 2}, {2, 1, 5}},
      {{0, 0, 0, 3, 3, 3, 3, 2}, {2, 3, 4, 3, 4, 5, 6, 6}},
      {{2, 3, 2, 2}, {7, 7, 7, 7}}};
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t gap : {0, 3}) {
      both(
          [&](Side& s) {
            float* past = s.put(random_floats(slots * kDeltaTaps * width, 1));
            const float *taps = s.put(random_floats(width * kDeltaTaps, 2)),
                        *a_log = s.put(random_floats(heads, 3)), *dt_bias = s.put(random_floats(heads, 4));
            for (std::size_t i = 0; i < calls.size(); ++i) {
              const auto tokens = std::ssize(calls[i].first);
              const Matrix qkv = s.put(Tensor(dtype, tokens, width, gap));
              Tensor projected = Tensor::random(dtype, tokens, columns.width(), 10 + i, 1, gap);
              for (std::int64_t t = 1; t < tokens; ++t) {
                const auto at = static_cast<std::size_t>(t);
                if (calls[i].first[at] != calls[i].first[0] || calls[i].second[at] != calls[i].second[0])
                  continue;
                for (std::int64_t c = 0; c < columns.width(); ++c) projected.set(t, c, projected.at(0, c));
              }
              float *decay = s.put(random_floats(tokens * heads, 5)),
                    *beta = s.put(random_floats(tokens * heads, 6));
              cached_delta_inputs(s, {.projected = s.put(projected),
                                      .columns = columns,
                                      .slots = s.put(calls[i].first),
                                      .positions = s.put(calls[i].second),
                                      .past = past,
                                      .taps = taps,
                                      .a_log = a_log,
                                      .dt_bias = dt_bias,
                                      .qkv = qkv,
                                      .log_decay = decay,
                                      .beta = beta});
              s.out("qkv of call " + std::to_string(i), qkv);
              s.out("log_decay", decay, tokens * heads, DType::f32);
              s.out("beta", beta, tokens * heads, DType::f32);
              s.out("past", past, slots * (kDeltaTaps - 1) * width, DType::f32);
            }
          },
          kWithin);
    }
  }
}

}  // namespace
}  // namespace octet::ops::delta_inputs_test
