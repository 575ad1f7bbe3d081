// Compares GEMMs of the adapters of experts on the GPU with the CPU side.
#include "octet/ops/expert_low_rank.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "gpu/sides.h"

namespace octet::ops::expert_low_rank_test {
namespace {

struct Case {
  std::vector<std::int32_t> loads;
  std::int64_t rank, wide;
};

/// Experts with no row, one row, a part of a tile, and several tiles; one expert has all rows. Ranks that
/// fill a kernel or a part of it. Wide sides that are no multiple of a run, of a tile, or of a block.
const std::vector<Case> kCases = {
    {{130, 0, 1, 127, 128, 129, 300}, 16, 200},
    {{0, 0, 257, 0}, 8, 64},
    {{5}, 24, 320},
    {{1000, 24}, 32, 768},
    {{64, 128, 192}, 32, 2048},
    {{17, 0, 200, 3}, 40, 136},
    {{61, 500}, 64, 1000},
    {{300, 7}, 128, 264},
    {{33, 90}, 16, 16},
    {{70, 12, 0, 31}, 8, 8},
    {std::vector<std::int32_t>(128, 9), 16, 128},
};

std::vector<std::int32_t> begins_of(const std::vector<std::int32_t>& loads) {
  std::vector<std::int32_t> begins(loads.size() + 1);
  std::partial_sum(loads.begin(), loads.end(), begins.begin() + 1);
  return begins;
}

/// Which side of the experts' matrices is the rank: A is [rank, wide], B is [wide, rank].
enum class Of { a, b };
constexpr std::int64_t kGap = 8;      ///< elements between two rows of a bundle, and of outputs
constexpr std::int64_t kUnused = 24;  ///< elements between two matrices

std::string name_of_case(const Case& c, Of of, GemmKind gemm_kind, bool accumulate) {
  return std::to_string(c.loads.size()) + " experts, rank " + std::to_string(c.rank) + ", " +
         std::to_string(c.wide) + (of == Of::a ? ", A" : ", B") + ", GEMM " +
         std::to_string(static_cast<int>(gemm_kind)) + (accumulate ? ", added" : "");
}

/// The matrices of experts as one tensor [count, step], and the first of them.
struct Matrices {
  Matrix all, first;
  std::int64_t step = 0;
};
Matrices put_matrices(Side& s, const Case& c, Of of, DType dtype, unsigned seed) {
  Matrices m;
  const auto count = static_cast<std::int64_t>(c.loads.size());
  m.step = c.rank * c.wide + kUnused;
  m.all = s.put(Tensor::random(dtype, count, m.step, seed, 1, 0));
  m.first = m.all;
  m.first.rows = of == Of::a ? c.rank : c.wide;
  m.first.cols = m.first.ld = of == Of::a ? c.wide : c.rank;
  return m;
}

void compare(const Case& c, Of of, GemmKind gemm_kind, DType dtype, bool accumulate) {
  SCOPED_TRACE(name_of_case(c, of, gemm_kind, accumulate) + ", " + std::string(name_of(dtype)));
  const auto begins = begins_of(c.loads);
  const bool wgrad = gemm_kind == GemmKind::wgrad, forward = gemm_kind == GemmKind::forward;
  const std::int64_t out = of == Of::a ? c.rank : c.wide, in = of == Of::a ? c.wide : c.rank;
  both(
      [&](Side& s) {
        const std::int64_t rows = begins.back();
        ExpertLowRankArgs args{.gemm_kind = gemm_kind,
                               .count = static_cast<std::int64_t>(c.loads.size()),
                               .begins = s.put(begins),
                               .factor = 0.75f,
                               .accumulate = accumulate};
        const auto put_rows = [&](std::int64_t cols, unsigned seed) {
          return s.put(Tensor::random(DType::bf16, rows, cols, seed, 1, kGap));
        };
        const Matrices weight = put_matrices(s, c, of, wgrad ? dtype : DType::bf16, 2);
        const Matrix d_rows = put_rows(forward ? out : in, 3);
        args.a = put_rows(forward ? in : out, 1);
        args.b = wgrad ? ConstMatrix(d_rows) : ConstMatrix(weight.first);
        args.d = wgrad ? weight.first : d_rows;
        args.step = weight.step;
        if (s.gpu()) {
          ASSERT_TRUE(has_expert_low_rank(s.device(), args));
        }
        expert_low_rank(s, args);
        s.out("rows", d_rows);
        s.out("matrices", weight.all);
      },
      // Sums of up to 2,048 terms in different orders. A CPU may round a sum before it adds it to d.
      {.relative = 1e-4,
       .absolute = dtype == DType::bf16 && accumulate ? 5e-2 : 4e-3,
       .bf16_steps = dtype == DType::bf16 ? 1.0 : 0.0});
}

TEST(GpuExpertLowRank, HasTheValuesOfTheCpu) {
  for (const Case& c : kCases) {
    for (const Of of : {Of::a, Of::b}) {
      for (const bool accumulate : {false, true}) {
        compare(c, of, GemmKind::forward, DType::bf16, accumulate);
        compare(c, of, GemmKind::dgrad, DType::bf16, accumulate);
        for (const DType dtype : {DType::f32, DType::bf16})
          compare(c, of, GemmKind::wgrad, dtype, accumulate);
      }
    }
  }
}

// Two modules of a bundle: their columns in the outputs and in A x are neighbours.
TEST(GpuExpertLowRank, WritesOnlyTheColumnsOfAModule) {
  const auto begins = begins_of({40, 0, 150});
  constexpr std::int64_t rank = 16, out = 72;
  const auto part = [](Matrix m, std::int64_t first, std::int64_t cols) {
    m.data = static_cast<std::uint16_t*>(m.data) + first;
    m.cols = cols;
    return m;
  };
  for (const std::int64_t module : {0, 1}) {
    both(
        [&](Side& s) {
          const Matrix inner = s.put(Tensor::random(DType::bf16, begins.back(), 2 * rank, 1, 1, 0));
          const Matrix y = s.put(Tensor::random(DType::bf16, begins.back(), 2 * out, 2, 1, 0));
          const Matrix b = s.put(Tensor::random(DType::bf16, 3 * out, rank, 3, 1, 0));
          const Matrix d_b = s.put(Tensor::random(DType::f32, 3 * out, rank, 4, 1, 0));
          Matrix first = b, d_first = d_b;
          first.rows = d_first.rows = out;
          ExpertLowRankArgs args{.gemm_kind = GemmKind::forward,
                                 .a = part(inner, module * rank, rank),
                                 .b = first,
                                 .step = out * rank,
                                 .count = 3,
                                 .begins = s.put(begins),
                                 .d = part(y, module * out, out),
                                 .accumulate = true};
          expert_low_rank(s, args);
          s.out("y", y);
          args.gemm_kind = GemmKind::wgrad, args.b = args.a, args.a = args.d, args.d = d_first;
          expert_low_rank(s, args);
          s.out("gradient of B", d_b);
          args.gemm_kind = GemmKind::dgrad, args.d = part(inner, module * rank, rank), args.b = first;
          args.factor = 2.0f, args.accumulate = false;
          expert_low_rank(s, args);
          s.out("gradient of A x", inner);
        },
        // The gradients are of y, which was rounded differently.
        {.relative = 2e-3, .absolute = 0.2, .bf16_steps = 2.0});
  }
}

// A tile holds rows of one expert, and the rows after them belong to the next.
TEST(GpuExpertLowRank, GradientsTakeNoRowsOfOthers) {
  constexpr std::int64_t rank = 16, wide = 136, rows = 200;
  for (const int end : {1, 10, 64, 127, 199}) {
    for (const Of of : {Of::a, Of::b}) {
      SCOPED_TRACE(std::to_string(end) + (of == Of::a ? " rows, A" : " rows, B"));
      const auto device = make_cuda_device(0);
      Side s(*device);
      const auto ones = [&](std::int64_t cols) {
        Tensor t(DType::bf16, rows, cols, 0);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < cols; ++c)
            t.set(r, c, r < end ? 1.0 : std::numeric_limits<double>::quiet_NaN());
        }
        return s.put(t);
      };
      const Matrix narrow = ones(rank), x = ones(wide);
      const std::int64_t down = of == Of::a ? rank : wide, across = of == Of::a ? wide : rank;
      const Matrix d = s.put(Tensor::random(DType::f32, 2 * down, across, 1, 1, 0));
      Matrix first = d;
      first.rows = down;
      expert_low_rank(s, {.gemm_kind = GemmKind::wgrad,
                          .a = of == Of::a ? narrow : x,
                          .b = of == Of::a ? x : narrow,
                          .step = down * across,
                          .count = 2,
                          .begins = s.put(std::vector<std::int32_t>{0, end, rows}),
                          .d = first});
      s.out("d", d);
      for (std::int64_t r = 0; r < down; ++r) {
        for (std::int64_t c = 0; c < across; ++c) ASSERT_EQ(s.outputs().back().at(r, c), end);
      }
      EXPECT_TRUE(std::isnan(s.outputs().back().at(down, 0)));
    }
  }
}

TEST(GpuExpertLowRank, HasTheSameBitsAgainAndAgain) {
  const Case c{{700, 3, 0, 1300, 45}, 32, 768};
  const auto begins = begins_of(c.loads);
  const auto device = make_cuda_device(0);
  for (const Of of : {Of::a, Of::b}) {
    for (const GemmKind gemm_kind : {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad}) {
      SCOPED_TRACE(name_of_case(c, of, gemm_kind, false));
      Side s(*device);
      const bool wgrad = gemm_kind == GemmKind::wgrad, forward = gemm_kind == GemmKind::forward;
      const std::int64_t out = of == Of::a ? c.rank : c.wide, in = of == Of::a ? c.wide : c.rank;
      const auto put_rows = [&](std::int64_t cols, unsigned seed) {
        return s.put(Tensor::random(DType::bf16, begins.back(), cols, seed, 1, 0));
      };
      const Matrices weight = put_matrices(s, c, of, wgrad ? DType::f32 : DType::bf16, 2);
      const Matrix a = put_rows(forward ? in : out, 1), rows = put_rows(forward ? out : in, 3);
      const ExpertLowRankArgs args{.gemm_kind = gemm_kind,
                                   .a = a,
                                   .b = wgrad ? ConstMatrix(rows) : ConstMatrix(weight.first),
                                   .step = weight.step,
                                   .count = 5,
                                   .begins = s.put(begins),
                                   .d = wgrad ? weight.first : rows};
      expert_low_rank(s, args);
      s.out("first", wgrad ? weight.all : rows);
      const auto first = s.take().bytes;
      for (int turn = 0; turn < 8; ++turn) {
        for (int i = 0; i < 50; ++i) expert_low_rank(s, args);
        s.out("again", wgrad ? weight.all : rows);
        EXPECT_EQ(s.take().bytes, first) << "turn " << turn;
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::expert_low_rank_test
