#include <numeric>

#include "ops/attention_problem.h"

namespace octet::ops::attention_test {
namespace {

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
  const std::string name = words_of(shape);
  EXPECT_LT(distance(got.out, want.out), 2e-6 + rounding) << name;
  EXPECT_LT(distance(Lse{lse}, want.lse), 1e-6) << name;
  // In bf16, delta is computed from the rounded output. Weights and score gradients may be rounded before
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
    for (const auto& [window, heads_of] : {std::pair{0, Heads{4, 2, 80}},
                                           {9, Heads{4, 2, 80}},
                                           {0, Heads{6, 3, 64}},
                                           {9, Heads{3, 3, 32}},
                                           {0, Heads{4, 1, 288}},
                                           {9, Heads{2, 1, 7}}}) {
      const Shape shape{.lengths = {90, 75},
                        .heads = heads_of,
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
      // Documents use slots 2 and 0. Each call takes one piece of each.
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

// For any number of threads, and for both ways of sharing the heads of a few tokens.
TEST(CachedAttention, BitsDoNotDependOnThreads) {
  const Heads heads{6, 3, 64};
  constexpr std::int64_t length = 200;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto answer = [&](int threads, bool claims) {
      const auto device = make_cpu_device({.threads = threads});
      const auto stream = device->make_stream({.name = "compute"});
      stream->set_claims(claims);
      const std::int64_t width = heads.q_heads * heads.head_dim;
      Array qkv(length, heads.qkv_width(), dtype), out(length, width, dtype);
      std::mt19937 random(4);
      qkv.fill(random, 1.0f);
      Array k_cache(length, heads.kv_heads * heads.head_dim, dtype), v_cache = k_cache;
      std::vector<std::int32_t> slots(length, 0), positions(length);
      std::iota(positions.begin(), positions.end(), 0);
      for (const auto& [from, count] : {std::pair{0, 198}, {198, 1}, {199, 1}}) {
        const std::size_t row = static_cast<std::size_t>(from) * size_of(dtype);
        cached_attention(
            *stream, {.qkv = ConstMatrix(qkv.bytes.data() + row * static_cast<std::size_t>(heads.qkv_width()),
                                         dtype, count, heads.qkv_width(), heads.qkv_width()),
                      .heads = heads,
                      .slots = slots.data(),
                      .positions = positions.data() + from,
                      .k_cache = k_cache.bytes.data(),
                      .v_cache = v_cache.bytes.data(),
                      .capacity = length,
                      .scale = 0.2f,
                      .out = Matrix{out.bytes.data() + row * static_cast<std::size_t>(width), dtype, count,
                                    width, width}});
      }
      stream->synchronize();
      return out.bytes;
    };
    const auto alone = answer(1, false);
    for (const int threads : {2, 3}) {
      EXPECT_EQ(answer(threads, false), alone);
      EXPECT_EQ(answer(threads, true), alone);
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

/// Returns whether the op accepts `count` tokens at the given places, with the first `alone` of them as
/// single-token sequences.
bool may_be_alone(std::vector<std::int32_t> slots, std::vector<std::int32_t> positions, std::int64_t alone) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  const auto tokens = static_cast<std::int64_t>(slots.size());
  std::vector<float> qkv(static_cast<std::size_t>(48 * tokens)), cache(3 * 8 * 16), out(qkv.size());
  cached_attention(*stream, {.qkv = ConstMatrix(qkv.data(), DType::f32, tokens, 48, 48),
                             .heads = {1, 1, 16},
                             .slots = slots.data(),
                             .positions = positions.data(),
                             .k_cache = cache.data(),
                             .v_cache = cache.data(),
                             .capacity = 8,
                             .out = Matrix{out.data(), DType::f32, tokens, 16, 16},
                             .alone = alone});
  try {
    stream->synchronize();
  } catch (const std::logic_error&) {
    return false;
  }
  return true;
}

TEST(CachedAttention, LoneTokensAreTheOnlyOnesOfTheirSequences) {
  EXPECT_TRUE(may_be_alone({2, 0, 1, 1}, {4, 0, 5, 6}, 2));
  EXPECT_FALSE(may_be_alone({2, 0, 1, 1}, {4, 0, 5, 6}, 3)) << "another one comes behind";
  EXPECT_FALSE(may_be_alone({2, 0, 1, 1}, {4, 0, 5, 6}, 4));
  EXPECT_FALSE(may_be_alone({2, 1, 0, 2}, {4, 0, 5, 5}, 3));
  EXPECT_TRUE(may_be_alone({2, 0, 2}, {4, 0, 4}, 3)) << "the same token twice";
  EXPECT_THROW(may_be_alone({0}, {0}, 2), std::logic_error);
  EXPECT_THROW(may_be_alone({0}, {0}, -1), std::logic_error);
}

TEST(CachedAttention, AGpuNeedsRoomForThePiecesOfLongCaches) {
  const auto gpu = make_dry_device({.stands_for = DeviceKind::cuda}), cpu = make_dry_device();
  const Heads heads{32, 8, 128};
  const auto bytes = [&](std::int64_t tokens, std::int64_t capacity) {
    return cached_attention_workspace(*gpu, heads, tokens, capacity);
  };
  EXPECT_EQ(bytes(64, 256), 0u) << "one piece";
  // For each head and piece of 256 keys: a sum of values and two numbers, in fp32.
  EXPECT_EQ(bytes(1, 257), 2u * 32 * 130 * 4);
  EXPECT_EQ(bytes(3, 1024), 3u * 4 * 32 * 130 * 4);
  EXPECT_EQ(bytes(0, 1024), 0u);
  // At most 64 pieces and 64 MiB; a single token is exempt from the latter.
  EXPECT_EQ(bytes(1, 1 << 20), 64u * 32 * 130 * 4);
  EXPECT_EQ(bytes(4096, 4096), std::size_t{64} << 20);
  EXPECT_EQ(cached_attention_workspace(*cpu, heads, 64, 4096), 0u);
}

TEST(Attention, APlanForAGpuRefusesHeadsThatNoKernelHas) {
  const auto gpu = make_dry_device({.stands_for = DeviceKind::cuda}), cpu = make_dry_device();
  const Heads widest{4, 2, 256}, wider{4, 2, 264};
  EXPECT_GT(attention_workspace(*gpu, widest, DType::bf16, 64, 64), 0u);
  EXPECT_GT(attention_workspace(*cpu, wider, DType::bf16, 64, 64), 0u);
  EXPECT_EQ(cached_attention_workspace(*gpu, widest, 1, 64), 0u);
  const auto expect_refused = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(error.problem().found, "264");
    }
  };
  expect_refused([&] { attention_workspace(*gpu, wider, DType::bf16, 64, 64); });
  expect_refused([&] { cached_attention_workspace(*gpu, wider, 1, 64); });
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
}  // namespace octet::ops::attention_test
