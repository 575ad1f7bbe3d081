#include "octet/ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::ops {
namespace {

struct Shape {
  std::vector<std::int32_t> lengths = {1};
  Heads heads = {1, 1, 64};
  DType dtype = DType::f32;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  int threads = 2;
  std::int64_t after = 0;  ///< tokens of no document at the end
};

/// An array of T with its values as they are stored.
struct Array {
  Array(std::int64_t rows, std::int64_t cols, DType d)
      : dtype(d), bytes(static_cast<std::size_t>(rows * cols) * size_of(d), 0xFF) {}
  double operator[](std::int64_t at) const {
    const auto i = static_cast<std::size_t>(at);
    if (dtype == DType::bf16) return from_bf16(reinterpret_cast<const std::uint16_t*>(bytes.data())[i]);
    return reinterpret_cast<const float*>(bytes.data())[i];
  }
  void set(std::int64_t at, float value) {
    const auto i = static_cast<std::size_t>(at);
    if (dtype == DType::bf16) {
      reinterpret_cast<std::uint16_t*>(bytes.data())[i] = to_bf16(value);
    } else {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    }
  }
  void fill(std::mt19937& random, float scale) {
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < bytes.size() / size_of(dtype); ++i) {
      set(static_cast<std::int64_t>(i), scale * normal(random));
    }
  }
  DType dtype;
  std::vector<std::uint8_t> bytes;
};

struct Result {
  Array out, d_qkv;
  std::vector<float> lse;
};

struct Problem64 {
  explicit Problem64(const Shape& s)
      : shape(s),
        starts(1, 0),
        qkv(count(s), s.heads.qkv_width(), s.dtype),
        d_out(count(s), s.heads.q_heads * s.heads.head_dim, s.dtype) {
    for (const auto length : s.lengths) starts.push_back(starts.back() + length);
    std::mt19937 random(static_cast<unsigned>(tokens() * 131 + s.heads.head_dim));
    qkv.fill(random, 1.5f);
    d_out.fill(random, 1.0f);
  }
  static std::int64_t count(const Shape& s) {
    std::int64_t sum = s.after;
    for (const auto length : s.lengths) sum += length;
    return sum;
  }
  std::int64_t tokens() const { return count(shape); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.heads.head_dim)); }
  Documents documents() const {
    return {.cu_seqlens = starts.data(),
            .host_cu_seqlens = nullptr,
            .count = static_cast<std::int64_t>(shape.lengths.size()),
            .max_length = *std::max_element(shape.lengths.begin(), shape.lengths.end()),
            .tokens = tokens()};
  }
  Shape shape;
  std::vector<std::int32_t> starts;
  Array qkv, d_out;
};

Result run(const Problem64& p) {
  const Heads& heads = p.shape.heads;
  const std::int64_t tokens = p.tokens(), width = heads.q_heads * heads.head_dim;
  const auto device = make_cpu_device({.threads = p.shape.threads});
  const auto stream = device->make_stream({.name = "compute"});
  Arena arena(*device);
  Workspace workspace;
  workspace.bytes = attention_workspace(*device, heads, p.shape.dtype, tokens, p.documents().max_length);
  workspace.data = arena.reserve("workspace", workspace.bytes);
  std::memset(workspace.data, 0xFF, workspace.bytes);  // NaN: nothing may rely on zeros
  Result r{.out = Array(tokens, width, p.shape.dtype),
           .d_qkv = Array(tokens, heads.qkv_width(), p.shape.dtype),
           .lse = std::vector<float>(static_cast<std::size_t>(heads.q_heads * tokens),
                                     std::numeric_limits<float>::quiet_NaN())};
  const ConstMatrix qkv(p.qkv.bytes.data(), p.shape.dtype, tokens, heads.qkv_width(), heads.qkv_width());
  const Matrix out{r.out.bytes.data(), p.shape.dtype, tokens, width, width};
  attention(*stream, {.qkv = qkv,
                      .heads = heads,
                      .documents = p.documents(),
                      .scale = p.scale(),
                      .soft_cap = p.shape.soft_cap,
                      .window = p.shape.window,
                      .out = out,
                      .lse = r.lse.data(),
                      .workspace = workspace});
  attention_backward(
      *stream,
      {.qkv = qkv,
       .out = out,
       .d_out = ConstMatrix(p.d_out.bytes.data(), p.shape.dtype, tokens, width, width),
       .lse = r.lse.data(),
       .heads = heads,
       .documents = p.documents(),
       .scale = p.scale(),
       .soft_cap = p.shape.soft_cap,
       .window = p.shape.window,
       .d_qkv = Matrix{r.d_qkv.bytes.data(), p.shape.dtype, tokens, heads.qkv_width(), heads.qkv_width()},
       .workspace = workspace});
  stream->synchronize();
  return r;
}

/// The definition in float64.
struct Reference {
  std::vector<double> out, lse, d_qkv;
};

Reference reference(const Problem64& p) {
  const Heads& h = p.shape.heads;
  const std::int64_t tokens = p.tokens(), d = h.head_dim, width = h.q_heads * d, ld = h.qkv_width();
  Reference r{.out = std::vector<double>(static_cast<std::size_t>(tokens * width)),
              .lse = std::vector<double>(static_cast<std::size_t>(h.q_heads * tokens)),
              .d_qkv = std::vector<double>(static_cast<std::size_t>(tokens * ld))};
  const auto grad = [&](std::int64_t at) -> double& { return r.d_qkv[static_cast<std::size_t>(at)]; };
  for (std::size_t doc = 0; doc + 1 < p.starts.size(); ++doc) {
    for (std::int64_t head = 0; head < h.q_heads; ++head) {
      const std::int64_t kv = head / (h.q_heads / h.kv_heads);
      const std::int64_t k_at = (h.q_heads + kv) * d, v_at = k_at + h.kv_heads * d;
      for (std::int64_t i = p.starts[doc]; i < p.starts[doc + 1]; ++i) {
        const std::int64_t first = p.shape.window > 0
                                       ? std::max<std::int64_t>(p.starts[doc], i - p.shape.window + 1)
                                       : p.starts[doc];
        std::vector<double> score, slope;
        for (std::int64_t j = first; j <= i; ++j) {
          double s = 0, c = 1;
          for (std::int64_t l = 0; l < d; ++l) s += p.qkv[i * ld + head * d + l] * p.qkv[j * ld + k_at + l];
          s *= p.scale();
          if (p.shape.soft_cap > 0) {
            const double t = std::tanh(s / p.shape.soft_cap);
            s = p.shape.soft_cap * t;
            c = 1 - t * t;
          }
          score.push_back(s);
          slope.push_back(c);
        }
        double sum = 0;
        const double highest = *std::max_element(score.begin(), score.end());
        for (const double s : score) sum += std::exp(s - highest);
        const double lse = highest + std::log(sum);
        r.lse[static_cast<std::size_t>(head * tokens + i)] = lse;
        double delta = 0;
        std::vector<double> weight, d_weight;
        for (std::int64_t j = first; j <= i; ++j) {
          const double w = std::exp(score[static_cast<std::size_t>(j - first)] - lse);
          double dw = 0;
          for (std::int64_t l = 0; l < d; ++l) {
            const double v = p.qkv[j * ld + v_at + l], g = p.d_out[i * width + head * d + l];
            r.out[static_cast<std::size_t>(i * width + head * d + l)] += w * v;
            dw += g * v;
            grad(j * ld + v_at + l) += w * g;
          }
          weight.push_back(w);
          d_weight.push_back(dw);
          delta += w * dw;
        }
        for (std::int64_t j = first; j <= i; ++j) {
          const auto at = static_cast<std::size_t>(j - first);
          const double ds = weight[at] * (d_weight[at] - delta) * slope[at] * p.scale();
          for (std::int64_t l = 0; l < d; ++l) {
            grad(i * ld + head * d + l) += ds * p.qkv[j * ld + k_at + l];
            grad(j * ld + k_at + l) += ds * p.qkv[i * ld + head * d + l];
          }
        }
      }
    }
  }
  return r;
}

/// Largest |got - want| relative to the largest |want|.
template <typename Got>
double distance(const Got& got, const std::vector<double>& want) {
  double worst = 0, size = 1e-30;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[static_cast<std::int64_t>(i)]) - want[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    size = std::max(size, std::abs(want[i]));
  }
  return worst / size;
}

void expect_reference(const Shape& shape) {
  const Problem64 problem(shape);
  const Result got = run(problem);
  const Reference want = reference(problem);
  const double rounding = shape.dtype == DType::bf16 ? 1.0 / 256 : 0;
  const auto lse = [&](std::int64_t i) { return got.lse[static_cast<std::size_t>(i)]; };
  struct Lse {
    decltype(lse)& at;
    double operator[](std::int64_t i) const { return at(i); }
  };
  std::string name = "heads " + std::to_string(shape.heads.q_heads) + "/" +
                     std::to_string(shape.heads.kv_heads) + " of " + std::to_string(shape.heads.head_dim) +
                     ", first length " + std::to_string(shape.lengths[0]) + ", window " +
                     std::to_string(shape.window) + ", cap " + std::to_string(shape.soft_cap) + ", " +
                     std::string(name_of(shape.dtype));
  EXPECT_LT(distance(got.out, want.out), 2e-6 + rounding) << name;
  EXPECT_LT(distance(Lse{lse}, want.lse), 1e-6) << name;
  // In bf16 delta is taken from the rounded output, and weights and score gradients may be rounded before
  // they are multiplied.
  EXPECT_LT(distance(got.d_qkv, want.d_qkv), 5e-6 + 3 * rounding) << name;
}

TEST(Attention, AgreesWithFloat64ForEveryHeadSize) {
  for (const std::int64_t head_dim : {1, 8, 32, 64, 80, 96, 128, 256}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      expect_reference({.lengths = {70}, .heads = {2, 1, head_dim}, .dtype = dtype});
    }
  }
}

TEST(Attention, AgreesWithFloat64ForEveryLength) {
  for (const std::int32_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    expect_reference({.lengths = {length}, .heads = {1, 1, 32}});
  }
  expect_reference({.lengths = {600}, .heads = {1, 1, 16}});
}

TEST(Attention, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    expect_reference({.lengths = {3, 127, 1, 0, 64, 129}, .heads = {4, 2, 48}, .dtype = dtype});
  }
}

TEST(Attention, QueryHeadsShareKeyHeads) {
  expect_reference({.lengths = {90, 40}, .heads = {8, 8, 32}});
  expect_reference({.lengths = {90, 40}, .heads = {8, 4, 32}});
  expect_reference({.lengths = {90, 40}, .heads = {6, 2, 32}});
  expect_reference({.lengths = {90, 40}, .heads = {7, 1, 32}});
}

TEST(Attention, WindowsOfEveryWidthAreKept) {
  for (const std::int64_t window : {1, 2, 7, 63, 64, 65, 100, 129, 1000}) {
    expect_reference({.lengths = {260, 33}, .heads = {2, 1, 16}, .window = window});
  }
}

TEST(Attention, SoftCapsAndTheirDerivative) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    expect_reference({.lengths = {150}, .heads = {2, 2, 64}, .dtype = dtype, .soft_cap = 2.0f});
    expect_reference(
        {.lengths = {150}, .heads = {2, 2, 64}, .dtype = dtype, .soft_cap = 30.0f, .window = 50});
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  Problem64 problem({.lengths = {100}, .heads = {1, 1, 32}});
  for (std::int64_t i = 0; i < 100 * 96; ++i) {
    problem.qkv.set(i, static_cast<float>(problem.qkv[i]) * (i % 96 < 64 ? 60.0f : 1.0f));
  }
  const Result got = run(problem);
  EXPECT_LT(distance(got.out, reference(problem).out), 2e-2);  // scores near 1e4 lose digits
}

TEST(Attention, TokensOfNoDocumentGetZeros) {
  const Shape shape{.lengths = {20}, .heads = {2, 1, 32}, .after = 5};
  expect_reference(shape);
}

TEST(Attention, BitsDoNotDependOnThreadsOrOnNeighbours) {
  const Shape shape{.lengths = {300, 5, 130}, .heads = {4, 2, 32}, .dtype = DType::bf16};
  Shape alone = shape;
  alone.threads = 1;
  const Result two = run(Problem64(shape)), one = run(Problem64(alone));
  EXPECT_EQ(two.out.bytes, one.out.bytes);
  EXPECT_EQ(two.d_qkv.bytes, one.d_qkv.bytes);
  EXPECT_EQ(two.lse, one.lse);
}

TEST(Attention, ANaNReachesTheOutputOfThoseWhoSeeIt) {
  Problem64 problem({.lengths = {100}, .heads = {1, 1, 32}});
  problem.qkv.set(70 * 96 + 40, std::numeric_limits<float>::quiet_NaN());  // a key of token 70
  const Result got = run(problem);
  EXPECT_FALSE(std::isnan(got.out[69 * 32]));
  EXPECT_TRUE(std::isnan(got.out[70 * 32]));
  EXPECT_TRUE(std::isnan(got.out[99 * 32]));
}

TEST(Attention, RefusesDocumentsThatLeaveTheTokens) {
  Problem64 problem({.lengths = {10, 10}, .heads = {1, 1, 32}});
  problem.starts = {0, 10, 21};
  EXPECT_THROW(run(problem), std::logic_error);
  problem.starts = {0, 12, 11};
  EXPECT_THROW(run(problem), std::logic_error);
}

TEST(CachedAttention, TokenByTokenAndInPiecesItEqualsAttentionOverTheSequence) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t window : {0, 9}) {
      const Shape shape{.lengths = {90, 75},
                        .heads = {4, 2, 80},
                        .dtype = dtype,
                        .soft_cap = window > 0 ? 5.0f : 0.0f,
                        .window = window};
      const Problem64 problem(shape);
      const Reference want = reference(problem);
      const Heads& heads = shape.heads;
      const std::int64_t capacity = 100, slots = 3, width = heads.q_heads * heads.head_dim;
      Array k_cache(slots * capacity, heads.kv_heads * heads.head_dim, dtype), v_cache = k_cache;
      Array out(problem.tokens(), width, dtype);
      const auto device = make_cpu_device({.threads = 2});
      const auto stream = device->make_stream({.name = "compute"});
      // Documents live in slots 2 and 0; each call takes one piece of each.
      const std::int32_t slot_of[] = {2, 0};
      std::int32_t done[] = {0, 0};
      for (const std::int32_t piece : {40, 1, 1, 33, 15}) {
        std::vector<std::int32_t> slot, position;
        std::vector<std::int64_t> row;
        for (int doc = 0; doc < 2; ++doc) {
          const std::int32_t length = shape.lengths[static_cast<std::size_t>(doc)];
          for (std::int32_t i = 0; i < piece && done[doc] < length; ++i, ++done[doc]) {
            slot.push_back(slot_of[doc]);
            position.push_back(done[doc]);
            row.push_back(problem.starts[static_cast<std::size_t>(doc)] + done[doc]);
          }
        }
        const auto tokens = static_cast<std::int64_t>(row.size());
        Array qkv(tokens, heads.qkv_width(), dtype), part(tokens, width, dtype);
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t c = 0; c < heads.qkv_width(); ++c) {
            qkv.set(
                t * heads.qkv_width() + c,
                static_cast<float>(problem.qkv[row[static_cast<std::size_t>(t)] * heads.qkv_width() + c]));
          }
        }
        cached_attention(*stream, {.qkv = ConstMatrix(qkv.bytes.data(), dtype, tokens, heads.qkv_width(),
                                                      heads.qkv_width()),
                                   .heads = heads,
                                   .slots = slot.data(),
                                   .positions = position.data(),
                                   .k_cache = k_cache.bytes.data(),
                                   .v_cache = v_cache.bytes.data(),
                                   .capacity = capacity,
                                   .scale = problem.scale(),
                                   .soft_cap = shape.soft_cap,
                                   .window = window,
                                   .out = Matrix{part.bytes.data(), dtype, tokens, width, width}});
        stream->synchronize();
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t c = 0; c < width; ++c) {
            out.set(row[static_cast<std::size_t>(t)] * width + c, static_cast<float>(part[t * width + c]));
          }
        }
      }
      EXPECT_LT(distance(out, want.out), 2e-6 + (dtype == DType::bf16 ? 1.0 / 256 : 0));
    }
  }
}

TEST(CachedAttention, RefusesAPlaceOutsideTheCache) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  std::vector<float> qkv(48), cache(64), out(16);
  const std::int32_t slot = 0, position = 4;
  cached_attention(*stream, {.qkv = ConstMatrix(qkv.data(), DType::f32, 1, 48, 48),
                             .heads = {1, 1, 16},
                             .slots = &slot,
                             .positions = &position,
                             .k_cache = cache.data(),
                             .v_cache = cache.data(),
                             .capacity = 4,
                             .out = Matrix{out.data(), DType::f32, 1, 16, 16}});
  EXPECT_THROW(stream->synchronize(), std::logic_error);
}

TEST(Attention, OnADryDeviceItPlansAndDoesNothing) {
  const auto device = make_dry_device();
  const auto stream = device->make_stream({.name = "compute"});
  const Heads heads{8, 4, 32};
  EXPECT_GT(attention_workspace(*device, heads, DType::bf16, 1024, 256), 0u);
  void* nowhere = device->allocate(1);
  attention(*stream, {.qkv = ConstMatrix(nowhere, DType::bf16, 1024, heads.qkv_width(), heads.qkv_width()),
                      .heads = heads,
                      .documents = {.cu_seqlens = static_cast<const std::int32_t*>(nowhere),
                                    .count = 4,
                                    .max_length = 256,
                                    .tokens = 1024},
                      .out = Matrix{nowhere, DType::bf16, 1024, 256, 256}});
  stream->synchronize();
}

}  // namespace
}  // namespace octet::ops
