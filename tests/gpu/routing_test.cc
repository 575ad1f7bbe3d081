// Compares routing, expert GEMMs and sums of weighted rows on the GPU with the CPU side.
#include "octet/ops/routing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

#include "gpu/sides.h"
#include "octet/ops/expert_gemm.h"

namespace octet::ops::routing_test {
namespace {

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routed routed(bool gpu, const std::vector<float>& logits, std::int64_t tokens, std::int64_t experts,
              std::int64_t taken, bool normalised) {
  const auto device = gpu ? make_cuda_device(0) : make_cpu_device();
  Side side(*device);
  Routed found{std::vector<std::int32_t>(static_cast<std::size_t>(tokens * taken), -1),
               std::vector<float>(static_cast<std::size_t>(tokens * taken), -1)};
  auto* ids = side.put(found.experts);
  auto* weights = side.put(found.weights);
  route(side, {.logits = ConstMatrix(side.put(logits), DType::f32, tokens, experts, experts + 2),
               .taken = taken,
               .normalised = normalised,
               .experts = ids,
               .weights = weights});
  Stream& stream = side;
  device->copy_to_host(stream, found.experts.data(), ids, found.experts.size() * sizeof(std::int32_t));
  device->copy_to_host(stream, found.weights.data(), weights, found.weights.size() * sizeof(float));
  stream.synchronize();
  return found;
}

TEST(GpuRouting, ExpertsAreThoseOfTheCpu) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (const std::int64_t experts : {1, 6, 31, 33, 128, 1024}) {
    for (const std::int64_t taken : {std::int64_t{1}, std::min<std::int64_t>(experts, 8), experts}) {
      for (const std::int64_t tokens : {1, 3, 130}) {
        std::vector<float> logits(static_cast<std::size_t>(tokens * (experts + 2)), 1e9f);
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t e = 0; e < experts; ++e)
            logits[static_cast<std::size_t>(t * (experts + 2) + e)] = normal(random);
        for (const bool normalised : {false, true}) {
          const Routed here = routed(false, logits, tokens, experts, taken, normalised);
          const Routed there = routed(true, logits, tokens, experts, taken, normalised);
          for (std::size_t i = 0; i < here.weights.size(); ++i)
            EXPECT_NEAR(there.weights[i], here.weights[i], 1e-5f * here.weights[i] + 1e-30f);
          // Among the last of a thousand experts, some have equal bits.
          if (taken <= 8) {
            EXPECT_EQ(there.experts, here.experts) << experts << ", " << taken;
          }
        }
      }
    }
  }
}

// Given experts have the weights of the CPU; the first token chooses.
TEST(GpuRouting, GivenExpertsAreTakenAsOnTheCpu) {
  for (const std::int64_t experts : {6, 64, 1024}) {
    for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
      constexpr std::int64_t tokens = 37, taken = 4;
      std::vector<std::int32_t> given;
      for (std::int64_t i = 0; i < tokens * taken; ++i) {
        const std::int64_t expert = (5 * (i / taken) + i % taken) % experts;
        given.push_back(i < taken ? -1 : static_cast<std::int32_t>(expert));
      }
      both(
          [&](Side& side) {
            std::int32_t* const chosen = side.put(std::vector<std::int32_t>(given.size()));
            float* const weights = side.put(std::vector<float>(given.size()));
            route(side, {.logits = side.put(Tensor::random(DType::f32, tokens, experts, 3)),
                         .taken = taken,
                         .scores = scores,
                         .given = side.put(given),
                         .experts = chosen,
                         .weights = weights});
            std::vector<std::int32_t> found(given.size());
            side.device().copy_to_host(side, found.data(), chosen, found.size() * sizeof(std::int32_t));
            static_cast<Stream&>(side).synchronize();
            EXPECT_TRUE(std::equal(found.begin() + taken, found.end(), given.begin() + taken));
            EXPECT_GE(found.front(), 0);
            side.out("weights", weights, tokens * taken, DType::f32);
          },
          {.relative = 1e-5, .absolute = 1e-7});
    }
  }
}

// Weights have few values, so that many are equal, and one is NaN.
TEST(GpuRouting, LimitedRowsAreThoseOfTheCpu) {
  std::mt19937 random(4);
  for (const std::int64_t experts : {2, 33, 128, 1024}) {
    for (const std::int64_t tokens : {3, 130, 3000}) {
      const std::int64_t taken = std::min<std::int64_t>(experts, 8), choices = tokens * taken;
      std::vector<std::int32_t> all(static_cast<std::size_t>(experts)), chosen;
      std::iota(all.begin(), all.end(), 0);
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::ranges::shuffle(all.begin(), all.begin() + std::min<std::int64_t>(experts, 20), random);
        chosen.insert(chosen.end(), all.begin(), all.begin() + taken);
      }
      std::vector<float> weights(static_cast<std::size_t>(choices));
      for (float& weight : weights) weight = 0.1f * static_cast<float>(random() % 7);
      weights[1] = std::numeric_limits<float>::quiet_NaN();
      for (const std::int64_t capacity : {1, 2, 100, 257, 3000}) {
        SCOPED_TRACE(std::to_string(experts) + " experts, " + std::to_string(tokens) + " tokens, " +
                     std::to_string(capacity));
        std::vector<std::vector<std::int32_t>> found;
        for (const bool gpu : {false, true}) {
          const auto device = gpu ? make_cuda_device(0) : make_cpu_device();
          Side side(*device);
          const std::vector<std::int32_t> none(static_cast<std::size_t>(choices), -7);
          std::int32_t* const own = side.put(chosen);
          const DealArgs args{.experts = own,
                              .weights = side.put(weights),
                              .tokens = tokens,
                              .taken = taken,
                              .count = experts,
                              .begins = side.put(std::vector<std::int32_t>(all.size() + 1)),
                              .row_tokens = side.put(none),
                              .places = side.put(none),
                              .place_weights = side.put(std::vector<float>(weights.size()))};
          deal(side, args);
          limit_rows(side, {.experts = own,
                            .weights = args.weights,
                            .taken = taken,
                            .count = experts,
                            .capacity = capacity,
                            .begins = args.begins,
                            .row_tokens = args.row_tokens});
          deal(side, args);
          std::vector<std::int32_t> numbers(2 * chosen.size() + all.size() + 1);
          const auto fetch = [&](std::size_t at, const std::int32_t* from, std::size_t count) {
            device->copy_to_host(side, numbers.data() + at, from, count * sizeof(std::int32_t));
          };
          fetch(0, own, chosen.size());
          fetch(chosen.size(), args.places, chosen.size());
          fetch(2 * chosen.size(), args.begins, all.size() + 1);
          static_cast<Stream&>(side).synchronize();
          found.push_back(numbers);
        }
        EXPECT_EQ(found[0], found[1]);
      }
    }
  }
}

// Sigmoid scores have the bits of the CPU, so the choices are equal for any load, with ties.
TEST(GpuRouting, SigmoidRoutersChooseAsOnTheCpu) {
  struct Row {
    std::int64_t experts, taken, groups, taken_groups;
    bool biased;
    int group_best = 2;
  };
  std::mt19937 random(6);
  for (const Row row : {Row{1, 1, 1, 1, false},
                        {33, 5, 1, 1, true},
                        {128, 8, 1, 1, true},
                        {256, 8, 8, 4, true},
                        {12, 6, 4, 2, true},
                        {160, 6, 8, 3, true, 1},
                        {1024, 7, 512, 5, true},
                        {1000, 1000, 1, 1, true}}) {
    for (const float deviation : {0.0f, 2.0f, 60.0f}) {
      constexpr std::int64_t tokens = 130;
      std::normal_distribution<float> normal(0, 1);
      std::vector<float> logits, bias;
      for (std::int64_t i = 0; i < tokens * row.experts; ++i) logits.push_back(deviation * normal(random));
      for (std::int64_t e = 0; e < row.experts; ++e)
        bias.push_back(-1.25f + 0.25f * static_cast<float>(e % 5));
      for (const bool normalised : {false, true}) {
        SCOPED_TRACE(std::to_string(row.experts) + " experts, deviation " + std::to_string(deviation));
        both(
            [&](Side& s) {
              const std::vector<float> none(static_cast<std::size_t>(tokens * row.taken), -1.0f);
              auto* const experts = s.put(std::vector<std::int32_t>(none.size(), -1));
              auto* const weights = s.put(none);
              route(s, {.logits = ConstMatrix(s.put(logits), DType::f32, tokens, row.experts, row.experts),
                        .taken = row.taken,
                        .normalised = normalised,
                        .scores = RouterScores::sigmoid,
                        .scale = 2.5f,
                        .bias = row.biased ? s.put(bias) : nullptr,
                        .groups = row.groups,
                        .taken_groups = row.taken_groups,
                        .group_best = row.group_best,
                        .experts = experts,
                        .weights = weights});
              // Numbers of experts as denormal floats: all their bits count.
              s.out("experts", reinterpret_cast<const float*>(experts), tokens * row.taken, DType::f32);
              s.out("weights", weights, tokens * row.taken, DType::f32);
            },
            {.relative = 1e-6});
      }
    }
  }
}

TEST(GpuRouting, EqualsAndNansAreTakenAsOnTheCpu) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {2, 5, 5, 2, 5, 0, 0, 1, nan, 3, 0, 1, 0, 0};
  EXPECT_EQ(routed(true, logits, 2, 5, 4, true).experts, routed(false, logits, 2, 5, 4, true).experts);
}

TEST(GpuRouting, WeightedRowsAreThoseOfTheCpu) {
  std::mt19937 random(9);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {1, 7, 48, 2048}) {
      for (const std::int64_t taken : {1, 2, 8, 11}) {
        constexpr std::int64_t tokens = 21, rows = 50;
        const std::int64_t gap = taken == 2 ? 3 : 0;
        const Tensor x = Tensor::random(dtype, rows, cols, 1, 1, gap),
                     addend = Tensor::random(dtype, tokens, cols, 2, 1, gap);
        const auto weights = random_floats(tokens * taken, 3);
        std::vector<std::int32_t> places(static_cast<std::size_t>(tokens * taken));
        for (std::int32_t& place : places) place = static_cast<std::int32_t>(random() % rows);
        both(
            [&](Side& s) {
              const Matrix out = s.put(addend);
              weighted_rows(s, {.x = s.put(x),
                                .taken = taken,
                                .places = s.put(places),
                                .weights = s.put(weights),
                                .addend = out,
                                .out = out});
              s.out("out", out);
            },
            {.relative = 1e-6, .absolute = 1e-5, .bf16_steps = dtype == DType::bf16 ? 1.0 : 0.0});
      }
    }
  }
}

/// Selected experts of tokens, all different per token, and their weights.
struct Taken {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};
Taken taken_of(std::int64_t tokens, std::int64_t taken, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  Taken t{{}, random_floats(tokens * taken, seed)};
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::ranges::shuffle(all, random);
    t.experts.insert(t.experts.end(), all.begin(), all.begin() + taken);
  }
  return t;
}

/// Runs deal() on a side, with outputs initialized to other values.
DealArgs dealt_on(Side& side, const Taken& t, std::int64_t tokens, std::int64_t taken, std::int64_t count) {
  const std::vector<std::int32_t> rows(t.experts.size(), -1);
  const DealArgs args{.experts = side.put(t.experts),
                      .weights = side.put(t.weights),
                      .tokens = tokens,
                      .taken = taken,
                      .count = count,
                      .begins = side.put(std::vector<std::int32_t>(static_cast<std::size_t>(count + 1), -1)),
                      .row_tokens = side.put(rows),
                      .places = side.put(rows),
                      .place_weights = side.put(std::vector<float>(rows.size(), -1))};
  deal(side, args);
  return args;
}

TEST(GpuRouting, TokensAreDealtAsOnTheCpu) {
  for (const auto& [tokens, taken, count] :
       {std::tuple{1, 1, 1}, {1, 8, 128}, {5, 2, 3}, {64, 8, 128}, {300, 3, 7}, {1000, 8, 1024}}) {
    const Taken t = taken_of(tokens, taken, count, 11);
    std::vector<std::vector<std::int32_t>> found;
    std::vector<std::vector<float>> weights;
    for (const bool gpu : {false, true}) {
      const auto device = gpu ? make_cuda_device(0) : make_cpu_device();
      Side side(*device);
      std::vector<std::int32_t> begins(static_cast<std::size_t>(count + 1));
      std::vector<std::int32_t> row_tokens(t.experts.size()), places = row_tokens;
      std::vector<float> of_places(t.experts.size());
      const DealArgs args = dealt_on(side, t, tokens, taken, count);
      const auto fetch = [&](auto& to, const auto* from) {
        device->copy_to_host(side, to.data(), from, to.size() * sizeof(to[0]));
      };
      fetch(begins, args.begins);
      fetch(row_tokens, args.row_tokens);
      fetch(places, args.places);
      fetch(of_places, args.place_weights);
      Stream& stream = side;
      stream.synchronize();
      for (const auto& one : {begins, row_tokens, places}) found.push_back(one);
      weights.push_back(of_places);
    }
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(found[i], found[i + 3]) << i << ", " << tokens << " tokens";
    EXPECT_EQ(weights[0], weights[1]);
  }
}

/// Returns a dense operand of random values: bf16, or E4M3 with a scale per row.
Operand operand(Side& s, bool fp8, std::int64_t rows, std::int64_t cols, unsigned seed, float scale) {
  if (!fp8) {
    std::vector<std::uint16_t> values;
    for (const float x : random_floats(rows * cols, seed)) values.push_back(to_bf16(scale * x));
    return {s.put(values), nullptr, DType::bf16, rows, cols};
  }
  std::vector<std::uint8_t> codes;
  for (const float x : random_floats(rows * cols, seed)) codes.push_back(to_fp8(64 * x, DType::e4m3));
  std::vector<float> scales;
  for (std::int64_t r = 0; r < rows; ++r) scales.push_back(scale / 64 * (r % 3 == 0 ? 0.5f : 1.0f));
  Operand made{s.put(codes), nullptr, DType::e4m3, rows, cols};
  made.scale_inv = s.put(scales);
  made.scaling = Scaling::whole_rows;
  return made;
}

/// Returns an output matrix with padding after each row.
Matrix outputs(Side& s, std::int64_t rows, std::int64_t cols) {
  std::vector<std::uint16_t> values;
  for (const float x : random_floats(rows * (cols + 2), 4)) values.push_back(to_bf16(x));
  return {s.put(values), DType::bf16, rows, cols, cols + 2};
}

struct GroupedCase {
  std::int64_t tokens, taken, count, out, in;
};

/// Tests all kinds of GEMMs of `c`, with rows selected by `source` or stored in order.
void has_the_values_of_the_cpu(const GroupedCase& c, bool in_order) {
  for (const auto& [fp8, gated, activation] : {std::tuple{false, false, Activation::silu},
                                               {true, false, Activation::silu},
                                               {false, true, Activation::silu},
                                               {true, true, Activation::silu},
                                               {false, true, Activation::gelu_tanh}}) {
    SCOPED_TRACE(std::to_string(c.tokens) + " tokens to " + std::to_string(c.taken) + " of " +
                 std::to_string(c.count) + ", " + std::to_string(c.out) + " x " + std::to_string(c.in) +
                 (gated ? ", gated" : "") + (fp8 ? ", E4M3" : "") + (in_order ? ", in order" : ""));
    const std::int64_t rows = c.tokens * c.taken;
    const Taken t = taken_of(c.tokens, c.taken, c.count, 12);
    both(
        [&, fp8 = fp8, gated = gated, activation = activation](Side& s) {
          const DealArgs dealt = dealt_on(s, t, c.tokens, c.taken, c.count);
          const GroupedGemmArgs args{.weight = operand(s, fp8, c.count * c.out, c.in, 2, 0.05f),
                                     .count = c.count,
                                     .x = operand(s, fp8, in_order ? rows : c.tokens, c.in, 3, 1.0f),
                                     .source = in_order ? nullptr : dealt.row_tokens,
                                     .begins = dealt.begins,
                                     .gated = gated,
                                     .activation = activation,
                                     .d = outputs(s, rows, gated ? c.out / 2 : c.out)};
          if (s.gpu()) {
            ASSERT_TRUE(has_grouped_gemm(s.device(), args));
          }
          grouped_gemm(s, args);
          s.out("d", args.d);
        },
        {.relative = 1e-2, .absolute = 2e-2});
  }
}

TEST(GpuGroupedGemm, HasTheValuesOfTheCpu) {
  for (const GroupedCase c : {GroupedCase{1, 8, 128, 96, 256},
                              {3, 2, 4, 32, 128},
                              {9, 4, 6, 48, 2048},
                              {40, 8, 16, 1536, 768},
                              {130, 4, 33, 64, 576},
                              {64, 1, 2, 16, 64}}) {
    has_the_values_of_the_cpu(c, false);
    has_the_values_of_the_cpu(c, true);
  }
}

// Experts with no row, a part of a tile, a whole tile and several tiles; outputs that do not fill tiles;
// inner dimensions that do not fill runs; more tiles than blocks.
TEST(GpuGroupedGemm, ManyRowsHaveTheValuesOfTheCpu) {
  for (const GroupedCase c : {GroupedCase{700, 2, 5, 96, 192},
                              {300, 3, 9, 272, 64},
                              {64, 1, 1, 128, 320},
                              {1500, 8, 128, 144, 128},
                              {513, 4, 16, 32, 2048},
                              {260, 1, 7, 1536, 448}}) {
    has_the_values_of_the_cpu(c, true);
  }
}

// Data races between blocks show only occasionally.
TEST(GpuGroupedGemm, ManyRowsHaveTheSameBitsAgainAndAgain) {
  constexpr std::int64_t tokens = 1024, taken = 8, count = 16;
  struct Case {
    bool fp8, gated;
    std::int64_t out, in, tokens;
  };
  for (const Case c : {Case{true, true, 1536, 2048, tokens},
                       {true, false, 2048, 768, tokens},
                       {false, true, 1536, 2048, tokens},
                       {true, true, 1536, 2048, 64},
                       {true, false, 2048, 768, 128},
                       {false, false, 2048, 768, 128}}) {
    SCOPED_TRACE(std::to_string(c.tokens) + " tokens" + (c.gated ? ", gated" : "") + (c.fp8 ? ", E4M3" : ""));
    const auto device = make_cuda_device(0);
    Side s(*device);
    const Taken t = taken_of(c.tokens, taken, count, 13);
    const DealArgs dealt = dealt_on(s, t, c.tokens, taken, count);
    const std::int64_t cols = c.gated ? c.out / 2 : c.out;
    GroupedGemmArgs args{.weight = operand(s, c.fp8, count * c.out, c.in, 2, 0.05f),
                         .count = count,
                         .x = operand(s, c.fp8, c.tokens * taken, c.in, 3, 1.0f),
                         .begins = dealt.begins,
                         .gated = c.gated,
                         .d = outputs(s, c.tokens * taken, cols)};
    const auto values = [&] {
      std::vector<std::uint16_t> found(static_cast<std::size_t>(c.tokens * taken * (cols + 2)));
      device->copy_to_host(s, found.data(), args.d.data, found.size() * sizeof(std::uint16_t));
      Stream& stream = s;
      stream.synchronize();
      return found;
    };
    grouped_gemm(s, args);
    const auto first = values();
    for (int turn = 0; turn < 8; ++turn) {
      for (int i = 0; i < 100; ++i) grouped_gemm(s, args);
      EXPECT_EQ(values(), first) << "turn " << turn;
    }
  }
}

}  // namespace
}  // namespace octet::ops::routing_test
