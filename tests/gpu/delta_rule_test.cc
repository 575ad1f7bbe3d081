// The gated delta rule on the GPU, against the CPU side.
#include "octet/ops/delta_rule.h"

#include <algorithm>

#include "gpu/device_arrays.h"

namespace octet::ops::delta_rule_test {
namespace {

struct Shape {
  std::vector<std::int32_t> lengths = {1};
  DeltaHeads heads = {1, 1, 16, 16};
  DType dtype = DType::f32;
  float decay = 0.1f;      ///< size of -log_decay
  std::int64_t after = 0;  ///< tokens without a document at the end
  std::int64_t gap = 0;    ///< elements between rows of matrices
  std::string name() const {
    std::string words = "heads " + std::to_string(heads.key_heads) + "/" + std::to_string(heads.value_heads) +
                        " of " + std::to_string(heads.key_dim) + "/" + std::to_string(heads.value_dim) +
                        ", decay " + std::to_string(decay) + ", gap " + std::to_string(gap) + ", " +
                        std::string(name_of(dtype)) + ", lengths";
    for (std::size_t i = 0; i < std::min<std::size_t>(8, lengths.size()); ++i) {
      words += " " + std::to_string(lengths[i]);
    }
    return words;
  }
};

struct Inputs {
  explicit Inputs(const Shape& s) : shape(s), starts(1, 0), qkv(0, s.dtype), d_out(0, s.dtype) {
    for (const auto length : s.lengths) starts.push_back(starts.back() + length);
    tokens = starts.back() + s.after;
    qkv = HostArray(tokens * qkv_ld(), s.dtype);
    d_out = HostArray(tokens * out_ld(), s.dtype);
    std::mt19937 random(static_cast<unsigned>(tokens * 131 + s.heads.key_dim));
    qkv.fill(random, 1.5f);
    d_out.fill(random, 1.0f);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tokens * s.heads.value_heads; ++i) {
      log_decay.push_back(-s.decay * std::exp(normal(random)));
      beta.push_back(1.0f / (1.0f + std::exp(-normal(random))));
    }
  }
  std::int64_t qkv_ld() const { return shape.heads.qkv_width() + shape.gap; }
  std::int64_t out_ld() const { return shape.heads.values() + shape.gap; }
  Shape shape;
  std::vector<std::int32_t> starts;
  std::int64_t tokens = 0;
  HostArray qkv, d_out;
  std::vector<float> log_decay, beta;
};

struct Outcome {
  HostArray out, d_qkv, d_log_decay, d_beta;
  bool operator==(const Outcome& other) const {
    return out.bytes == other.out.bytes && d_qkv.bytes == other.d_qkv.bytes &&
           d_log_decay.bytes == other.d_log_decay.bytes && d_beta.bytes == other.d_beta.bytes;
  }
};

/// `left_over`: initial byte value of the workspace and of the states.
Outcome run(Bench& bench, const Inputs& in, std::uint8_t left_over = 0xFF) {
  const Shape& s = in.shape;
  const DeltaHeads& heads = s.heads;
  const std::int64_t numbers = in.tokens * heads.value_heads;
  Outcome r{.out = HostArray(in.tokens * in.out_ld(), s.dtype),
            .d_qkv = HostArray(in.tokens * in.qkv_ld(), s.dtype),
            .d_log_decay = HostArray(numbers, DType::f32),
            .d_beta = HostArray(numbers, DType::f32)};
  const auto filled = [&](std::size_t bytes) {
    return bench.put(std::vector<std::uint8_t>(bytes, left_over));
  };
  Workspace workspace;
  workspace.bytes = delta_rule_workspace(bench.device(), heads, s.dtype, in.tokens);
  workspace.data = filled(workspace.bytes);
  void* const states = filled(static_cast<std::size_t>(delta_states(in.tokens) * heads.value_heads *
                                                       heads.key_dim * heads.value_dim) *
                              size_of(s.dtype));
  const Documents documents{.cu_seqlens = bench.put(in.starts),
                            .host_cu_seqlens = in.starts.data(),
                            .count = std::ssize(s.lengths),
                            .max_length = in.tokens,
                            .tokens = in.tokens};
  const ConstMatrix qkv(bench.put(in.qkv), s.dtype, in.tokens, heads.qkv_width(), in.qkv_ld());
  const Matrix out{bench.put(r.out), s.dtype, in.tokens, heads.values(), in.out_ld()};
  const float *log_decay = bench.put(in.log_decay), *beta = bench.put(in.beta);
  delta_rule(bench.stream(), {.qkv = qkv,
                              .log_decay = log_decay,
                              .beta = beta,
                              .heads = heads,
                              .documents = documents,
                              .out = out,
                              .states = states,
                              .workspace = workspace});
  const Matrix d_qkv{bench.put(r.d_qkv), s.dtype, in.tokens, heads.qkv_width(), in.qkv_ld()};
  auto *d_log_decay = static_cast<float*>(bench.put(r.d_log_decay)),
       *d_beta = static_cast<float*>(bench.put(r.d_beta));
  delta_rule_backward(bench.stream(), {.qkv = qkv,
                                       .log_decay = log_decay,
                                       .beta = beta,
                                       .states = states,
                                       .d_out = ConstMatrix(bench.put(in.d_out), s.dtype, in.tokens,
                                                            heads.values(), in.out_ld()),
                                       .heads = heads,
                                       .documents = documents,
                                       .d_qkv = d_qkv,
                                       .d_log_decay = d_log_decay,
                                       .d_beta = d_beta,
                                       .workspace = workspace});
  bench.get(r.out, out.data);
  bench.get(r.d_qkv, d_qkv.data);
  bench.get(r.d_log_decay, d_log_decay);
  bench.get(r.d_beta, d_beta);
  return r;
}

/// Distance of some columns of all rows.
double distance(const HostArray& got, const HostArray& want, std::int64_t ld, std::int64_t first,
                std::int64_t cols) {
  const auto at = [&](const HostArray& x) {
    return [&x, ld, first, cols](std::int64_t i) { return x[i / cols * ld + first + i % cols]; };
  };
  return relative_distance(at(got), at(want), got.count() / ld * cols);
}

void check_shape(const Shape& shape) {
  SCOPED_TRACE(shape.name());
  const Inputs in(shape);
  Bench gpu(make_cuda_device()), cpu(make_cpu_device());
  const Outcome got = run(gpu, in), want = run(cpu, in);
  // Norms over whole arrays. With bf16, the GPU also rounds operands of GEMMs within a chunk, each by at most
  // 2^-9. Sums of a few tokens do not average these errors.
  const bool narrow = shape.dtype == DType::bf16;
  const double most = narrow ? (in.tokens < 32 ? 2.5e-2 : 1e-2) : 1e-5;
  const std::int64_t keys = shape.heads.keys(), values = shape.heads.values(),
                     heads = shape.heads.value_heads;
  EXPECT_LT(distance(got.out, want.out, in.out_ld(), 0, values), most);
  EXPECT_LT(distance(got.d_qkv, want.d_qkv, in.qkv_ld(), 0, keys), most) << "queries";
  EXPECT_LT(distance(got.d_qkv, want.d_qkv, in.qkv_ld(), keys, keys), most) << "keys";
  EXPECT_LT(distance(got.d_qkv, want.d_qkv, in.qkv_ld(), 2 * keys, values), most) << "values";
  EXPECT_LT(distance(got.d_log_decay, want.d_log_decay, heads, 0, heads), most);
  EXPECT_LT(distance(got.d_beta, want.d_beta, heads, 0, heads), most);
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    for (std::int64_t i = 0; i < shape.gap; ++i) {
      ASSERT_TRUE(std::isnan(got.d_qkv[t * in.qkv_ld() + shape.heads.qkv_width() + i])) << "margin of " << t;
      ASSERT_TRUE(std::isnan(got.out[t * in.out_ld() + values + i])) << "margin of " << t;
    }
  }
  for (std::int64_t t = in.starts.back(); t < in.tokens; ++t) {
    for (std::int64_t i = 0; i < values; ++i) ASSERT_EQ(got.out[t * in.out_ld() + i], 0);
    for (std::int64_t i = 0; i < shape.heads.qkv_width(); ++i) ASSERT_EQ(got.d_qkv[t * in.qkv_ld() + i], 0);
    for (std::int64_t i = 0; i < heads; ++i) ASSERT_EQ(got.d_beta[t * heads + i], 0);
  }
  EXPECT_TRUE(run(gpu, in, 0) == got) << "two runs gave different bits";
}

constexpr DType dtypes[] = {DType::f32, DType::bf16};

TEST(GpuDeltaRule, AgreesForEveryHeadSize) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t key_dim : {8, 64, 72, 128, 200, 256}) {
      for (const std::int64_t value_dim : {8, 40, 128, 256}) {
        check_shape({.lengths = {130, 5}, .heads = {1, 2, key_dim, value_dim}, .dtype = dtype});
      }
    }
  }
}

TEST(GpuDeltaRule, AgreesForAnyDocuments) {
  const std::vector<std::vector<std::int32_t>> documents = {
      {}, {1}, {63}, {64}, {65}, {1, 64, 65, 3, 0, 128}, {0, 0, 1, 1, 1, 0}, {500}};
  for (const DType dtype : dtypes) {
    for (const auto& lengths : documents) {
      for (const std::int64_t gap : {0, 3, 8}) {
        check_shape({lengths, {2, 4, 40, 72}, dtype, 0.05f, 5, gap});
        check_shape({lengths, {1, 3, 128, 128}, dtype, 0.05f, 0, gap});
      }
    }
    // Many documents: wide blocks of values, and searches in several rounds.
    std::vector<std::int32_t> many;
    for (int i = 0; i < 1500; ++i) many.push_back(i * 7 % 5 == 4 ? 0 : 1 + i * 13 % 3);
    check_shape({many, {1, 2, 16, 72}, dtype, 0.1f, 3});
    check_shape({std::vector<std::int32_t>(40, 100), {2, 4, 128, 128}, dtype, 0.1f});
  }
}

TEST(GpuDeltaRule, AgreesForEveryDecay) {
  for (const float decay : {0.0f, 1e-4f, 1.0f, 100.0f, 1e30f}) {
    check_shape({.lengths = {200, 70}, .heads = {1, 2, 32, 32}, .decay = decay});
  }
  // In bf16, gradients of decays have errors relative to larger gradients.
  for (const float decay : {0.0f, 1e-4f, 1.0f}) {
    check_shape({.lengths = {200, 70}, .heads = {1, 2, 32, 32}, .dtype = DType::bf16, .decay = decay});
  }
}

/// Copies tokens to the start of another problem.
template <typename Element>
void copy_rows(std::vector<Element>& to, const std::vector<Element>& from, std::int64_t first,
               std::size_t row) {
  std::copy_n(from.begin() + first * static_cast<std::int64_t>(row), to.size(), to.begin());
}

TEST(GpuDeltaRule, ADocumentHasItsBitsAtAnyPlace) {
  for (const DType dtype : dtypes) {
    Shape shape{.lengths = std::vector<std::int32_t>(150, 30), .heads = {1, 2, 64, 72}, .dtype = dtype};
    shape.lengths[3] = 140;
    const Inputs in(shape);
    Bench gpu(make_cuda_device());
    const Outcome all = run(gpu, in);
    shape.lengths = {140};
    Inputs alone(shape);
    const std::int64_t start = in.starts[3];
    const std::size_t size = size_of(dtype), heads = 2;
    copy_rows(alone.qkv.bytes, in.qkv.bytes, start, static_cast<std::size_t>(in.qkv_ld()) * size);
    copy_rows(alone.d_out.bytes, in.d_out.bytes, start, static_cast<std::size_t>(in.out_ld()) * size);
    copy_rows(alone.log_decay, in.log_decay, start, heads);
    copy_rows(alone.beta, in.beta, start, heads);
    const Outcome one = run(gpu, alone);
    Outcome part = one;
    copy_rows(part.out.bytes, all.out.bytes, start, static_cast<std::size_t>(in.out_ld()) * size);
    copy_rows(part.d_qkv.bytes, all.d_qkv.bytes, start, static_cast<std::size_t>(in.qkv_ld()) * size);
    copy_rows(part.d_log_decay.bytes, all.d_log_decay.bytes, start, heads * sizeof(float));
    copy_rows(part.d_beta.bytes, all.d_beta.bytes, start, heads * sizeof(float));
    EXPECT_TRUE(part == one);
  }
}

}  // namespace
}  // namespace octet::ops::delta_rule_test
