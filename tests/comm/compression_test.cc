// Errors of compressed reductions for typical kinds of gradients, at 8 and 64 ranks. Rajbhandari et al. 2020
// and Wang et al. 2023 ("ZeRO++") also quantise by blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "octet/comm/thread_ranks.h"

namespace octet::comm::compression_test {
namespace {

enum class Shape { gaussian, heavy_tailed, coherent };
constexpr std::int64_t kElements = 1 << 16;  // elements of all slices together

// Returns rank r's gradient: noise; noise with block sizes that vary by factors of e^2; or a gradient shared
// by all ranks with little noise.
std::vector<float> gradient_of(int rank, Shape shape) {
  std::mt19937_64 own(1000 + static_cast<unsigned>(rank)), shared(7);
  std::normal_distribution<float> normal;
  std::vector<float> g(kElements);
  float size = 1;
  for (std::int64_t i = 0; i < kElements; ++i) {
    if (i % 128 == 0 && shape == Shape::heavy_tailed) size = std::exp(2.0f * normal(shared));
    const float mine = normal(own);
    g[static_cast<std::size_t>(i)] = shape == Shape::coherent ? normal(shared) + 0.1f * mine : size * mine;
  }
  return g;
}

struct Errors {
  double reduced = 0;   ///< after the reduce-scatter
  double gathered = 0;  ///< after the gather of the sums in the same format
};

Errors errors_of(int ranks, Shape shape, Wire wire, int ranks_of_a_node = 0) {
  const bool hierarchical = ranks_of_a_node > 0;
  std::vector<int> node_of;
  for (int r = 0; hierarchical && r < ranks; ++r) node_of.push_back(r / ranks_of_a_node);
  Errors errors;
  std::vector<double> exact(kElements);
  for (int r = 0; r < ranks; ++r) {
    const auto g = gradient_of(r, shape);
    for (std::size_t i = 0; i < g.size(); ++i) exact[i] += g[i];
  }
  run_ranks_as_threads({.ranks = ranks, .node_of = node_of}, [&](Job&, Collectives& c, Device&) {
    const std::int64_t count = kElements / c.size();
    auto g = gradient_of(c.rank(), shape);
    c.reduce_scatter(c.reduce_stream(), {.name = "test",
                                         .from = g.data(),
                                         .to = g.data() + c.rank() * count,
                                         .count = count,
                                         .wire = wire,
                                         .hierarchical = hierarchical});
    // Gather the exact sums of all slices, to measure the reduction alone.
    c.reduce_stream().synchronize();
    auto sums = g;
    c.all_gather_values(c.reduce_stream(), {.name = "sums", .buffer = sums.data(), .count = count});
    c.all_gather_values(
        c.reduce_stream(),
        {.name = "test", .buffer = g.data(), .count = count, .wire = wire, .hierarchical = hierarchical});
    c.reduce_stream().synchronize();
    if (c.rank() != 0) return;
    double norm = 0, reduced = 0, gathered = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      norm += exact[i] * exact[i];
      reduced += (sums[i] - exact[i]) * (sums[i] - exact[i]);
      gathered += (g[i] - exact[i]) * (g[i] - exact[i]);
    }
    errors = {std::sqrt(reduced / norm), std::sqrt(gathered / norm)};
  });
  return errors;
}

TEST(Compression, ErrorsStaySmallAndDoNotGrowWithTheRanks) {
  for (const Shape shape : {Shape::gaussian, Shape::heavy_tailed, Shape::coherent}) {
    for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
      const Errors few = errors_of(8, shape, wire), many = errors_of(64, shape, wire);
      const std::string what = "shape " + std::to_string(static_cast<int>(shape)) + " wire " +
                               std::to_string(static_cast<int>(wire));
      std::printf("%s: reduce-scatter %.4f (8 ranks) %.4f (64), with gather %.4f %.4f\n", what.c_str(),
                  few.reduced, many.reduced, few.gathered, many.gathered);
      const double bound = wire == Wire::bf16 ? 0.003 : wire == Wire::fp8 ? 0.03 : 0.015;
      EXPECT_LE(few.reduced, bound) << what;
      EXPECT_LE(many.reduced, bound) << what;
      // In bf16, the few large elements of a heavy tail dominate the error, so it depends on their rounding.
      EXPECT_LE(many.reduced, few.reduced * (wire == Wire::bf16 ? 1.3 : 1.1)) << what;
      EXPECT_LE(many.gathered, 1.5 * bound) << what;
      EXPECT_GT(few.reduced, 1e-4) << what << ": nothing was rounded";
    }
  }
}

TEST(Compression, SumsByNodesAreNoLessExact) {
  for (const Shape shape : {Shape::gaussian, Shape::heavy_tailed, Shape::coherent}) {
    for (const Wire wire : {Wire::fp8, Wire::int8}) {
      const Errors few = errors_of(8, shape, wire, 4), many = errors_of(64, shape, wire, 8);
      const std::string what = "shape " + std::to_string(static_cast<int>(shape)) + " wire " +
                               std::to_string(static_cast<int>(wire));
      std::printf(
          "%s by nodes: reduce-scatter %.4f (2 nodes of 4 ranks) %.4f (8 of 8), with gather %.4f %.4f\n",
          what.c_str(), few.reduced, many.reduced, few.gathered, many.gathered);
      const double bound = wire == Wire::fp8 ? 0.03 : 0.015;
      EXPECT_LE(few.reduced, bound) << what;
      EXPECT_LE(many.reduced, bound) << what;
      EXPECT_LE(many.gathered, 1.5 * bound) << what;
      EXPECT_GT(few.reduced, 1e-4) << what << ": nothing was rounded";
    }
  }
}

TEST(Compression, BytesOnTheWireAreHalfOfThoseOfBf16) {
  constexpr std::int64_t count = std::int64_t{1}
                                 << 19;  // elements of one slice; with two ranks, 1 Mi elements
  run_ranks_as_threads({.ranks = 2}, [&](Job&, Collectives& c, Device&) {
    std::vector<float> g(2 * count, 1.0f);
    const auto sent = [&](Wire wire) {
      c.take_traffic();
      c.reduce_scatter(c.reduce_stream(), {.name = "test",
                                           .from = g.data(),
                                           .to = g.data() + c.rank() * count,
                                           .count = count,
                                           .wire = wire});
      c.all_gather_values(c.reduce_stream(),
                          {.name = "test", .buffer = g.data(), .count = count, .wire = wire});
      c.reduce_stream().synchronize();
      std::int64_t bytes = 0;
      for (const Traffic& t : c.take_traffic()) bytes += t.bytes_sent;
      return static_cast<double>(bytes);
    };
    const double bf16 = sent(Wire::bf16);
    EXPECT_EQ(bf16, 2.0 * 2 * count);
    EXPECT_LE(sent(Wire::fp8), 0.52 * bf16);
    EXPECT_LE(sent(Wire::int8), 0.52 * bf16);
  });
}

}  // namespace
}  // namespace octet::comm::compression_test
