// Decoding from an E4M3 cache, against float64 attention over the cache's decoded values.
#include "ops/attention_problem.h"

namespace octet::ops::fp8_cache_test {
namespace {

/// Caches of two slots, and their contents after a call.
struct Fp8Cache {
  Fp8Cache(const Heads& h, std::int64_t c)
      : heads(h),
        capacity(c),
        keys(static_cast<std::size_t>(2 * c * h.kv_heads * h.head_dim), 0xEE),
        values(keys),
        key_scales(static_cast<std::size_t>(2 * c * h.kv_heads), -7.0f),
        value_scales(key_scales) {}
  double read(const std::vector<std::uint8_t>& codes, const std::vector<float>& scales, std::int64_t slot,
              std::int64_t position, std::int64_t head, std::int64_t d) const {
    const std::int64_t row = (slot * capacity + position) * heads.kv_heads + head;
    return double{from_fp8(codes[static_cast<std::size_t>(row * heads.head_dim + d)], DType::e4m3)} *
           double{scales[static_cast<std::size_t>(row)]};
  }
  double key(std::int64_t slot, std::int64_t position, std::int64_t head, std::int64_t d) const {
    return read(keys, key_scales, slot, position, head, d);
  }
  double value(std::int64_t slot, std::int64_t position, std::int64_t head, std::int64_t d) const {
    return read(values, value_scales, slot, position, head, d);
  }

  Heads heads;
  std::int64_t capacity;
  std::vector<std::uint8_t> keys, values;
  std::vector<float> key_scales, value_scales;
};

struct Rule {
  float scale = 0.2f, soft_cap = 0.0f;
  std::int64_t window = 0;
};

/// Decodes the tokens [from, to) of both slots in one call.
Array take(Stream& stream, Fp8Cache& cache, const Array& qkv, std::int64_t length, std::int64_t from,
           std::int64_t to, const Rule& rule) {
  const Heads& h = cache.heads;
  const std::int64_t tokens = 2 * (to - from), width = h.qkv_width(), out_width = h.q_heads * h.head_dim;
  Array part(tokens, width, qkv.dtype), out(tokens, out_width, qkv.dtype);
  std::vector<std::int32_t> slots, positions;
  for (std::int64_t slot = 0; slot < 2; ++slot) {
    for (std::int64_t p = from; p < to; ++p) {
      const auto row = static_cast<std::int64_t>(slots.size());
      for (std::int64_t c = 0; c < width; ++c) {
        part.set(row * width + c, static_cast<float>(qkv[(slot * length + p) * width + c]));
      }
      slots.push_back(static_cast<std::int32_t>(slot));
      positions.push_back(static_cast<std::int32_t>(p));
    }
  }
  cached_attention(stream, {.qkv = ConstMatrix(part.bytes.data(), qkv.dtype, tokens, width, width),
                            .heads = h,
                            .slots = slots.data(),
                            .positions = positions.data(),
                            .k_cache = cache.keys.data(),
                            .v_cache = cache.values.data(),
                            .k_scale_inv = cache.key_scales.data(),
                            .v_scale_inv = cache.value_scales.data(),
                            .capacity = cache.capacity,
                            .scale = rule.scale,
                            .soft_cap = rule.soft_cap,
                            .window = rule.window,
                            .out = Matrix{out.bytes.data(), qkv.dtype, tokens, out_width, out_width}});
  stream.synchronize();
  return out;
}

/// Returns the attention of one query head in float64 over the cache's decoded values.
std::vector<double> attended(const Fp8Cache& cache, const Array& qkv, std::int64_t row, std::int64_t slot,
                             std::int64_t position, std::int64_t head, const Rule& rule) {
  const Heads& h = cache.heads;
  const std::int64_t kv = head / (h.q_heads / h.kv_heads);
  const std::int64_t first = rule.window > 0 ? std::max<std::int64_t>(0, position - rule.window + 1) : 0;
  std::vector<double> out(static_cast<std::size_t>(h.head_dim));
  double sum = 0;
  for (std::int64_t j = first; j <= position; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < h.head_dim; ++d) {
      score += qkv[row * h.qkv_width() + head * h.head_dim + d] * cache.key(slot, j, kv, d);
    }
    score *= double{rule.scale};
    if (rule.soft_cap > 0) score = double{rule.soft_cap} * std::tanh(score / double{rule.soft_cap});
    const double weight = std::exp(score);
    sum += weight;
    for (std::int64_t d = 0; d < h.head_dim; ++d) {
      out[static_cast<std::size_t>(d)] += weight * cache.value(slot, j, kv, d);
    }
  }
  for (double& x : out) x /= sum;
  return out;
}

struct Decoding {
  Heads heads;
  DType dtype;
  Rule rule;
};

void expect_reference(const Decoding& c) {
  constexpr std::int64_t length = 70;
  const Heads& h = c.heads;
  const auto device = make_cpu_device({.threads = 2});
  const auto stream = device->make_stream({.name = "compute"});
  Array qkv(2 * length, h.qkv_width(), c.dtype);
  std::mt19937 random(static_cast<unsigned>(h.head_dim));
  qkv.fill(random, 1.5f);
  Fp8Cache cache(h, length + 3);
  const std::int64_t out_width = h.q_heads * h.head_dim;
  for (const auto& [from, to] : {std::pair{0, 40}, {40, 41}, {41, 70}}) {
    const Array out = take(*stream, cache, qkv, length, from, to, c.rule);
    for (std::int64_t slot = 0; slot < 2; ++slot) {
      for (std::int64_t p = from; p < to; ++p) {
        const std::int64_t row = slot * (to - from) + p - from;
        for (std::int64_t head = 0; head < h.q_heads; ++head) {
          const auto want = attended(cache, qkv, slot * length + p, slot, p, head, c.rule);
          for (std::int64_t d = 0; d < h.head_dim; ++d) {
            const double tolerance = c.dtype == DType::bf16 ? 0.02 : 2e-5;
            ASSERT_NEAR(out[row * out_width + head * h.head_dim + d], want[static_cast<std::size_t>(d)],
                        tolerance)
                << h.head_dim << ": slot " << slot << ", position " << p << ", head " << head;
          }
        }
      }
    }
  }
  // The cache contains each key and value, scaled by the smallest power of two and rounded once, and nothing
  // else.
  for (std::int64_t slot = 0; slot < 2; ++slot) {
    for (std::int64_t p = 0; p < length; ++p) {
      for (std::int64_t kv = 0; kv < 2 * h.kv_heads; ++kv) {
        const bool keys = kv < h.kv_heads;
        const std::int64_t head = keys ? kv : kv - h.kv_heads;
        const std::int64_t from = (slot * length + p) * h.qkv_width() + (h.q_heads + kv) * h.head_dim;
        const auto row = static_cast<std::size_t>((slot * cache.capacity + p) * h.kv_heads + head);
        const float scale = (keys ? cache.key_scales : cache.value_scales)[row];
        double most = 0;
        for (std::int64_t d = 0; d < h.head_dim; ++d) most = std::max(most, std::abs(qkv[from + d]));
        ASSERT_LE(most / double{scale}, 448);
        ASSERT_GT(most / double{scale}, 224);
        for (std::int64_t d = 0; d < h.head_dim; ++d) {
          const auto x = static_cast<float>(qkv[from + d]);
          ASSERT_EQ(
              (keys ? cache.keys
                    : cache.values)[row * static_cast<std::size_t>(h.head_dim) + static_cast<std::size_t>(d)],
              to_fp8(x / scale, DType::e4m3));
        }
      }
    }
    EXPECT_EQ(cache.key_scales[static_cast<std::size_t>((slot * cache.capacity + length) * h.kv_heads)],
              -7.0f);
  }
}

TEST(Fp8Cache, AttentionIsThatOverWhatItHolds) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t head_dim : {1, 33, 64, 128, 300}) {
      const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
      expect_reference({{4, 2, head_dim}, dtype, {.scale = scale}});
      expect_reference({{6, 1, head_dim}, dtype, {.scale = scale, .soft_cap = 2.0f, .window = 9}});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Fp8Cache, ANanStaysOne) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  Array qkv(2, 3 * 16, DType::f32);
  std::mt19937 random(3);
  qkv.fill(random, 1.0f);
  qkv.set(20, std::numeric_limits<float>::quiet_NaN());  // a key of the first sequence
  Fp8Cache cache({1, 1, 16}, 2);
  const Array out = take(*stream, cache, qkv, 1, 0, 1, {});
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_FALSE(std::isnan(out[16]));
}

TEST(Fp8Cache, KeysAndValuesHaveOneFormat) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  std::vector<float> qkv(48), cache(16), scales(1), out(16);
  const std::int32_t zero = 0;
  EXPECT_THROW(cached_attention(*stream, {.qkv = ConstMatrix(qkv.data(), DType::f32, 1, 48, 48),
                                          .heads = {1, 1, 16},
                                          .slots = &zero,
                                          .positions = &zero,
                                          .k_cache = cache.data(),
                                          .v_cache = cache.data(),
                                          .k_scale_inv = scales.data(),
                                          .capacity = 1,
                                          .out = Matrix{out.data(), DType::f32, 1, 16, 16}}),
               std::logic_error);
}

}  // namespace
}  // namespace octet::ops::fp8_cache_test
