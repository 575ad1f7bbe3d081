// Error feedback: the error of a reduction is added to the next reduction, so errors do not accumulate. See
// Karimireddy et al. 2019, "Error feedback fixes SignSGD and other gradient compression schemes".
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/ranks.h"
#include "octet/base/dtype.h"
#include "octet/comm/thread_ranks.h"

namespace octet::comm::feedback_test {
namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kSlice = 3000;  // not a whole number of blocks
constexpr std::int64_t kAll = kRanks * kSlice;

// A rank's gradient changes little from step to step, and so do its rounding errors.
Values<float> gradient_of(int rank, int step) {
  auto g = input_of(rank, kAll, 5);
  const auto change = input_of(rank, kAll, 100 + static_cast<std::uint64_t>(step));
  for (std::size_t i = 0; i < g.size(); ++i) g[i] += 1e-3f * change[i];
  return g;
}

struct Way {
  Wire wire = Wire::fp8;
  bool feedback = true;
  bool gather = false;  ///< the sums are also gathered in the narrow format
  std::vector<int> node_of = {};
};

/// Returns the relative error of the received values summed over steps, after the first and after the last
/// step.
std::pair<double, double> errors_of(const Way& way, int steps) {
  std::pair<double, double> errors;
  run_ranks_as_threads({.ranks = kRanks, .node_of = way.node_of}, [&](Job&, Collectives& c, Device&) {
    Values<double> exact(kAll), arrived(kAll);
    Values<std::uint16_t> residual(kAll);
    std::uint16_t* losses = way.feedback ? residual.data() : nullptr;
    Stream& stream = c.reduce_stream();
    const bool hierarchical = !way.node_of.empty();
    for (int step = 0; step < steps; ++step) {
      auto g = gradient_of(c.rank(), step);
      c.reduce_scatter(stream, {.name = "test",
                                .from = g.data(),
                                .to = g.data() + c.rank() * kSlice,
                                .count = kSlice,
                                .wire = way.wire,
                                .hierarchical = hierarchical,
                                .residual = losses});
      c.all_gather_values(stream, {.name = "test",
                                   .buffer = g.data(),
                                   .count = kSlice,
                                   .wire = way.gather ? way.wire : Wire::f32,
                                   .hierarchical = hierarchical,
                                   .residual = losses == nullptr ? nullptr : losses + c.rank() * kSlice});
      stream.synchronize();
      double norm = 0, error = 0;
      for (std::size_t i = 0; i < g.size(); ++i) arrived[i] += static_cast<double>(g[i]);
      for (int r = 0; r < kRanks; ++r) {
        const auto own = gradient_of(r, step);
        for (std::size_t i = 0; i < own.size(); ++i) exact[i] += static_cast<double>(own[i]);
      }
      for (std::size_t i = 0; i < exact.size(); ++i) {
        norm += exact[i] * exact[i];
        error += (arrived[i] - exact[i]) * (arrived[i] - exact[i]);
      }
      if (c.rank() != 0) continue;
      (step == 0 ? errors.first : errors.second) = std::sqrt(error / norm);
    }
  });
  return errors;
}

TEST(ErrorFeedback, TheErrorOfASumOverStepsFallsWithTheirNumber) {
  constexpr int kSteps = 40;
  for (const bool gather : {false, true}) {
    for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
      for (const std::vector<int>& nodes : {std::vector<int>{}, {0, 0, 1, 1}}) {
        const auto [first, last] = errors_of({wire, true, gather, nodes}, kSteps);
        const auto [plain_first, plain_last] = errors_of({wire, false, gather, nodes}, kSteps);
        const std::string what = "wire " + std::to_string(static_cast<int>(wire)) +
                                 (gather ? ", gathered" : "") + (nodes.empty() ? "" : ", by nodes");
        std::printf("%s: after one step %.5f, after %d with feedback %.5f, without %.5f\n", what.c_str(),
                    first, kSteps, last, plain_last);
        EXPECT_EQ(first, plain_first) << what << ": the first step loses the same";
        // The error of the sum is the error of the last step. Its relative size falls as 1 / steps.
        EXPECT_LT(last, 2.0 * first / kSteps) << what;
        EXPECT_GT(plain_last, 0.3 * first) << what << ": these errors add up without feedback";
      }
    }
  }
}

TEST(ErrorFeedback, ValuesAndWhatIsKeptMakeUpWhatWasThere) {
  // With a single addend, the sum is the sent value.
  run_ranks_as_threads({.ranks = 2}, [](Job&, Collectives& c, Device&) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto values = input_of(7, 2 * kSlice, 3);
      Values<float> from(values.size());
      Values<std::uint16_t> narrow(values.size()), residual(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        narrow[i] = c.rank() == 0 ? to_bf16(values[i]) : 0;
        from[i] = c.rank() != 0 ? 0.0f : dtype == DType::bf16 ? from_bf16(narrow[i]) : values[i];
      }
      Values<float> sum(kSlice);
      c.reduce_scatter(c.reduce_stream(),
                       {.from = dtype == DType::bf16 ? static_cast<void*>(narrow.data()) : from.data(),
                        .from_dtype = dtype,
                        .to = sum.data(),
                        .count = kSlice,
                        .wire = Wire::int8,
                        .residual = residual.data()});
      c.reduce_stream().synchronize();
      std::string losses(reinterpret_cast<const char*>(residual.data()), 2 * residual.size());
      losses = c.channel().all_gather_bytes(losses).front();
      std::memcpy(residual.data(), losses.data(), losses.size());
      int rounded = 0;
      for (std::int64_t i = 0; i < kSlice; ++i) {
        const auto at = static_cast<std::size_t>(c.rank() * kSlice + i);
        const float was = dtype == DType::bf16 ? from_bf16(to_bf16(values[at])) : values[at];
        const float lost = from_bf16(residual[at]);
        EXPECT_NEAR(sum[static_cast<std::size_t>(i)] + lost, was, 0x1p-8f * std::abs(lost));
        rounded += lost != 0.0f;
      }
      EXPECT_GT(rounded, kSlice / 2);
    }
  });
}

TEST(ErrorFeedback, NothingThatIsNotFiniteIsKept) {
  run_ranks_as_threads({.ranks = 2}, [](Job&, Collectives& c, Device&) {
    for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
      auto g = input_of(c.rank(), 2 * kSlice, 9);
      g[3] = std::numeric_limits<float>::infinity();
      g[700] = std::numeric_limits<float>::quiet_NaN();
      g[1000] = std::numeric_limits<float>::max();
      Values<float> sum(kSlice);
      Values<std::uint16_t> residual(g.size());
      c.reduce_scatter(
          c.reduce_stream(),
          {.from = g.data(), .to = sum.data(), .count = kSlice, .wire = wire, .residual = residual.data()});
      c.reduce_stream().synchronize();
      for (const std::uint16_t lost : residual) EXPECT_TRUE(std::isfinite(from_bf16(lost)));
      if (c.rank() == 0) {
        EXPECT_FALSE(std::isfinite(sum[3]));
      }
    }
  });
}

TEST(ErrorFeedback, AWideWireLeavesTheResidualAlone) {
  run_ranks_as_threads({.ranks = 3, .node_of = {0, 0, 1}}, [](Job&, Collectives& c, Device&) {
    const std::int64_t count = 1000;
    for (const bool hierarchical : {false, true}) {
      const auto g = input_of(c.rank(), 3 * count, 11);
      Values<float> sum(count), expected(count);
      Values<std::uint16_t> residual(g.size(), to_bf16(2.0f));
      ReduceScatterArgs args{
          .from = g.data(), .to = expected.data(), .count = count, .hierarchical = hierarchical};
      c.reduce_scatter(c.reduce_stream(), args);
      args.to = sum.data(), args.residual = residual.data();
      c.reduce_scatter(c.reduce_stream(), args);
      c.reduce_stream().synchronize();
      EXPECT_TRUE(same_bits(sum, expected));
      for (const std::uint16_t lost : residual) EXPECT_EQ(lost, to_bf16(2.0f));
    }
  });
}

}  // namespace
}  // namespace octet::comm::feedback_test
