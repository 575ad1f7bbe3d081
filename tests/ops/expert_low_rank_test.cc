// GEMMs of the adapters of experts, against sums in double.
#include "octet/ops/expert_low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ops/tensor.h"

namespace octet::ops::expert_low_rank_test {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Rows per expert: none, one, several; all rows at one expert.
const std::vector<std::vector<std::int32_t>> kLoads = {
    {3, 0, 1, 37}, {0, 0, 40}, {1}, {5, 5, 5, 5, 5}, {0, 0}};

struct Shape {
  std::int64_t out, in;
};
/// A and B of several ranks, with wide sides that are no multiple of a tile.
const std::vector<Shape> kShapes = {{8, 72},   {16, 200}, {24, 40},  {32, 136}, {64, 264},
                                    {3, 13},   {72, 8},   {200, 16}, {40, 24},  {136, 32},
                                    {264, 64}, {13, 3},   {16, 16},  {128, 160}};

struct Case {
  Case(const std::vector<std::int32_t>& loads, const Shape& s)
      : shape(s), count(static_cast<std::int64_t>(loads.size())), begins(loads.size() + 1) {
    std::partial_sum(loads.begin(), loads.end(), begins.begin() + 1);
  }
  std::int64_t rows() const { return begins.back(); }
  std::int64_t expert_of(std::int64_t row) const {
    std::int64_t e = 0;
    while (begins[index(e + 1)] <= row) ++e;
    return e;
  }
  std::string name() const {
    return std::to_string(count) + " experts, " + std::to_string(shape.out) + " x " +
           std::to_string(shape.in);
  }
  Shape shape;
  std::int64_t count;
  std::vector<std::int32_t> begins;
};

/// The matrices of experts in one tensor [count, step], with unused elements after each matrix.
constexpr std::int64_t kUnused = 24;
std::int64_t step_of(const Shape& s) {
  return s.out * s.in + kUnused;
}
Matrix first_of(Tensor& all, const Shape& s) {
  Matrix m = all.matrix();
  m.rows = s.out, m.cols = m.ld = s.in;
  return m;
}

void multiply(const ExpertLowRankArgs& args) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  expert_low_rank(*stream, args);
  stream->synchronize();
}

/// Rounding of the result, and of sums in fp32.
double tolerance(DType dtype) {
  return dtype == DType::bf16 ? 1.0 / 128 : 1e-6;
}

class ExpertLowRank : public ::testing::TestWithParam<DType> {};

TEST_P(ExpertLowRank, RowsMeetTheMatrixOfTheirExpert) {
  const DType dtype = GetParam();
  for (const auto& loads : kLoads) {
    for (const Shape& shape : kShapes) {
      for (const bool forward : {true, false}) {
        for (const bool accumulate : {false, true}) {
          const Case c(loads, shape);
          SCOPED_TRACE(c.name() + (forward ? ", forward" : ", dgrad") + (accumulate ? ", added" : ""));
          const std::int64_t inner = forward ? shape.in : shape.out, cols = forward ? shape.out : shape.in;
          Tensor weight = Tensor::random(dtype, c.count, step_of(shape), 1, 1, 0);
          // Rows of a and d are parts of wider rows.
          Tensor a = Tensor::random(dtype, c.rows(), inner, 2);
          Tensor d = Tensor::random(dtype, c.rows(), cols, 3);
          const Tensor before = d;
          multiply({.gemm_kind = forward ? GemmKind::forward : GemmKind::dgrad,
                    .a = a.matrix(),
                    .b = first_of(weight, shape),
                    .step = step_of(shape),
                    .count = c.count,
                    .begins = c.begins.data(),
                    .d = d.matrix(),
                    .factor = 0.75f,
                    .accumulate = accumulate});
          for (std::int64_t r = 0; r < c.rows(); ++r) {
            const std::int64_t e = c.expert_of(r);
            for (std::int64_t o = 0; o < cols; ++o) {
              double sum = accumulate ? before.at(r, o) : 0, size = std::abs(sum);
              for (std::int64_t i = 0; i < inner; ++i) {
                const std::int64_t at = forward ? o * shape.in + i : i * shape.in + o;
                const double term = 0.75 * a.at(r, i) * weight.at(e, at);
                sum += term;
                size += std::abs(term);
              }
              ASSERT_NEAR(d.at(r, o), sum, size * tolerance(dtype)) << r << ", " << o;
            }
          }
          EXPECT_TRUE(d.margin_untouched());
        }
      }
    }
  }
}

TEST_P(ExpertLowRank, GradientsAreSumsOverTheRowsOfEachExpert) {
  const DType dtype = GetParam();
  for (const auto& loads : kLoads) {
    for (const Shape& shape : kShapes) {
      for (const DType result : {DType::f32, dtype}) {
        for (const bool accumulate : {false, true}) {
          const Case c(loads, shape);
          SCOPED_TRACE(c.name() + (accumulate ? ", added" : ""));
          Tensor d_y = Tensor::random(dtype, c.rows(), shape.out, 2);
          Tensor x = Tensor::random(dtype, c.rows(), shape.in, 3);
          Tensor d = Tensor::random(result, c.count, step_of(shape), 4, 1, 0);
          const Tensor before = d;
          multiply({.gemm_kind = GemmKind::wgrad,
                    .a = d_y.matrix(),
                    .b = x.matrix(),
                    .step = step_of(shape),
                    .count = c.count,
                    .begins = c.begins.data(),
                    .d = first_of(d, shape),
                    .factor = 0.5f,
                    .accumulate = accumulate});
          for (std::int64_t e = 0; e < c.count; ++e) {
            for (std::int64_t o = 0; o < shape.out; ++o) {
              for (std::int64_t i = 0; i < shape.in; ++i) {
                const std::int64_t at = o * shape.in + i;
                double sum = accumulate ? before.at(e, at) : 0, size = std::abs(sum);
                for (std::int64_t r = c.begins[index(e)]; r < c.begins[index(e + 1)]; ++r) {
                  const double term = 0.5 * d_y.at(r, o) * x.at(r, i);
                  sum += term;
                  size += std::abs(term);
                }
                ASSERT_NEAR(d.at(e, at), sum, size * tolerance(result)) << e << ", " << o << ", " << i;
              }
            }
            for (std::int64_t i = shape.out * shape.in; i < step_of(shape); ++i)
              ASSERT_EQ(d.at(e, i), before.at(e, i)) << "an element between two matrices";
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ExpertLowRank, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(ExpertLowRankShapes, TheGpuNeedsARankAndWholeCopies) {
  const auto gpu = make_dry_device({.stands_for = DeviceKind::cuda});
  alignas(16) static const std::uint16_t data[16] = {};
  const auto rows = [&](std::int64_t cols, DType dtype = DType::bf16) {
    return Matrix{nullptr, dtype, 100, cols, cols};
  };
  const auto has = [&](const std::function<void(ExpertLowRankArgs&)>& change) {
    ExpertLowRankArgs args{.a = rows(2048),
                           .b = Matrix{nullptr, DType::bf16, 32, 2048, 2048},
                           .step = 32 * 2048,
                           .count = 128,
                           .d = rows(32)};
    change(args);
    return has_expert_low_rank(*gpu, args);
  };
  EXPECT_TRUE(has([](auto&) {}));
  EXPECT_TRUE(has([&](auto& x) { x.b.data = data; }));
  EXPECT_TRUE(has([&](auto& x) { x.b.rows = 128, x.d = rows(128); }));
  EXPECT_FALSE(has([&](auto& x) { x.b.rows = 136, x.d = rows(136); })) << "no rank";
  EXPECT_FALSE(has([&](auto& x) { x.b.rows = 12, x.d = rows(12); })) << "a copy has 8 elements";
  EXPECT_FALSE(has([&](auto& x) { x.a.ld = 2052; }));
  EXPECT_FALSE(has([&](auto& x) { x.d.ld = 36; }));
  EXPECT_FALSE(has([&](auto& x) { x.step += 4; }));
  EXPECT_FALSE(has([&](auto& x) { x.b.data = data + 1; })) << "it begins outside of a boundary of 16 bytes";
  EXPECT_FALSE(has([&](auto& x) { x.a.dtype = x.b.dtype = x.d.dtype = DType::f32; }));
  const auto has_wgrad = [&](DType dtype, std::int64_t out) {
    return has_expert_low_rank(*gpu, {.gemm_kind = GemmKind::wgrad,
                                      .a = rows(out),
                                      .b = rows(2048),
                                      .step = out * 2048,
                                      .count = 128,
                                      .d = {nullptr, dtype, out, 2048, 2048}});
  };
  EXPECT_TRUE(has_wgrad(DType::f32, 16));
  EXPECT_TRUE(has_wgrad(DType::bf16, 16));
  EXPECT_FALSE(has_wgrad(DType::f32, 768));
  const auto cpu = make_cpu_device();
  EXPECT_FALSE(has_expert_low_rank(*cpu, {.a = rows(2048), .count = 1}));
  ::setenv("OCTETRUN_GROUPED_GEMM", "always", 1);
  EXPECT_TRUE(has_expert_low_rank(*cpu, {.a = rows(2048), .count = 1}));
  ::setenv("OCTETRUN_GROUPED_GEMM", "never", 1);
  EXPECT_FALSE(has([](auto&) {}));
  ::unsetenv("OCTETRUN_GROUPED_GEMM");
}

TEST(ExpertLowRankShapes, RefusesWhatDoesNotFit) {
  const Case c({2, 1}, {4, 6});
  Tensor x = Tensor::random(DType::bf16, 3, 6, 1), weight = Tensor::random(DType::bf16, 2, 48, 2, 1, 0);
  Tensor d(DType::bf16, 3, 4);
  const ExpertLowRankArgs args{.a = x.matrix(),
                               .b = first_of(weight, c.shape),
                               .step = 48,
                               .count = 2,
                               .begins = c.begins.data(),
                               .d = d.matrix()};
  EXPECT_NO_THROW(multiply(args));
  for (const auto& spoil : std::vector<void (*)(ExpertLowRankArgs&)>{
           [](ExpertLowRankArgs& a) { a.count = 0; }, [](ExpertLowRankArgs& a) { a.count = 1025; },
           [](ExpertLowRankArgs& a) { a.begins = nullptr; },
           [](ExpertLowRankArgs& a) { a.step = 23; },  // matrices would overlap
           [](ExpertLowRankArgs& a) { a.d.cols = 3; }, [](ExpertLowRankArgs& a) { a.d.rows = 2; },
           [](ExpertLowRankArgs& a) { a.b.ld = 8; }, [](ExpertLowRankArgs& a) { a.b.dtype = DType::f32; },
           [](ExpertLowRankArgs& a) { a.d.dtype = DType::f32; },
           [](ExpertLowRankArgs& a) { a.gemm_kind = GemmKind::dgrad; },
           [](ExpertLowRankArgs& a) { a.gemm_kind = GemmKind::wgrad; }}) {
    ExpertLowRankArgs wrong = args;
    spoil(wrong);
    EXPECT_THROW(multiply(wrong), std::logic_error);
  }
}

}  // namespace
}  // namespace octet::ops::expert_low_rank_test
