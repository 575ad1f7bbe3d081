// Compares GEMMs of experts in training on the GPU with the CPU side.
#include "octet/ops/expert_gemm.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "gpu/sides.h"

namespace octet::ops::expert_gemm_test {
namespace {

struct Case {
  std::vector<std::int32_t> loads;
  std::int64_t out, in;
};

/// Experts with no row, one row, a part of a run or tile, and several tiles; one expert has all rows.
const std::vector<Case> kCases = {
    {{130, 0, 1, 63, 64, 65, 300}, 128, 192},
    {{0, 0, 257, 0}, 64, 64},
    {{5}, 192, 320},
    {{1000, 24}, 1536, 256},
    {{64, 128, 192}, 256, 1024},
    {std::vector<std::int32_t>(128, 9), 64, 128},
};

std::vector<std::int32_t> begins_of(const std::vector<std::int32_t>& loads) {
  std::vector<std::int32_t> begins(loads.size() + 1);
  std::partial_sum(loads.begin(), loads.end(), begins.begin() + 1);
  return begins;
}

Matrix dense(Side& s, DType dtype, std::int64_t rows, std::int64_t cols, unsigned seed) {
  if (dtype == DType::f32) return {s.put(random_floats(rows * cols, seed)), dtype, rows, cols, cols};
  std::vector<std::uint16_t> values;
  for (const float x : random_floats(rows * cols, seed)) values.push_back(to_bf16(x));
  return {s.put(values), dtype, rows, cols, cols};
}

Operand operand_of(const Matrix& m) {
  return {.data = m.data, .dtype = m.dtype, .rows = m.rows, .cols = m.cols};
}

void compare(const Case& c, GemmKind gemm_kind, DType dtype, bool accumulate) {
  SCOPED_TRACE(std::to_string(c.loads.size()) + " experts, " + std::to_string(c.out) + " x " +
               std::to_string(c.in) + ", product " + std::to_string(static_cast<int>(gemm_kind)) + ", " +
               std::string(name_of(dtype)) + (accumulate ? ", added" : ""));
  const auto begins = begins_of(c.loads);
  const auto count = static_cast<std::int64_t>(c.loads.size());
  const bool rounded_twice = dtype == DType::bf16 && accumulate;
  both(
      [&](Side& s) {
        const std::int64_t rows = begins.back();
        const bool wgrad = gemm_kind == GemmKind::wgrad, forward = gemm_kind == GemmKind::forward;
        const Matrix a = dense(s, DType::bf16, rows, forward ? c.in : c.out, 1);
        const Matrix b =
            wgrad ? dense(s, DType::bf16, rows, c.in, 2) : dense(s, DType::bf16, count * c.out, c.in, 2);
        const Matrix d = wgrad ? dense(s, dtype, count * c.out, c.in, 3)
                               : dense(s, dtype, rows, forward ? c.out : c.in, 3);
        const ExpertGemmArgs args{.gemm_kind = gemm_kind,
                                  .a = operand_of(a),
                                  .b = operand_of(b),
                                  .count = count,
                                  .begins = s.put(begins),
                                  .d = d,
                                  .accumulate = accumulate};
        if (s.gpu()) {
          ASSERT_TRUE(has_expert_gemm(s.device(), args));
        }
        expert_gemm(s, args);
        s.out("d", d);
      },
      {.relative = 1e-4,
       .absolute = rounded_twice ? 2e-2 : 2e-3,
       .bf16_steps = dtype == DType::bf16 ? 1.0 : 0.0});
}

TEST(GpuExpertGemm, HasTheValuesOfTheCpu) {
  for (const Case& c : kCases) {
    compare(c, GemmKind::forward, DType::bf16, false);
    compare(c, GemmKind::dgrad, DType::bf16, false);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool accumulate : {false, true}) compare(c, GemmKind::wgrad, dtype, accumulate);
    }
  }
}

/// FP8 values of small magnitude with a transposed copy of each of `count` matrices [rows / count, cols].
Operand fp8(Side& s, DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t count,
            const float* scale, unsigned seed) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::vector<std::uint8_t> values, flipped(at(rows * cols));
  for (const float x : random_floats(rows * cols, seed)) values.push_back(to_fp8(x, dtype));
  const std::int64_t each = rows / count;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c)
      flipped[at(r / each * each * cols + c * each + r % each)] = values[at(r * cols + c)];
  }
  return {.data = s.put(values),
          .transposed = s.put(flipped),
          .dtype = dtype,
          .rows = rows,
          .cols = cols,
          .scale_inv = scale};
}

void compare_fp8(const Case& c, GemmKind gemm_kind, DType gradient, DType dtype, bool accumulate, bool fast) {
  SCOPED_TRACE(std::to_string(c.loads.size()) + " experts, " + std::to_string(c.out) + " x " +
               std::to_string(c.in) + ", product " + std::to_string(static_cast<int>(gemm_kind)) +
               ", gradient " + std::string(name_of(gradient)) + " to " + std::string(name_of(dtype)) +
               (accumulate ? ", added" : "") + (fast ? ", fast" : ""));
  const bool wgrad = gemm_kind == GemmKind::wgrad, forward = gemm_kind == GemmKind::forward;
  auto loads = c.loads;
  // The pitch of the transposed copies is the number of rows.
  loads.back() += (16 - std::accumulate(loads.begin(), loads.end(), 0) % 16) % 16;
  const auto begins = begins_of(loads);
  const auto count = static_cast<std::int64_t>(loads.size());
  constexpr std::int64_t step = 4;
  both(
      [&](Side& s) {
        const std::int64_t rows = begins.back();
        std::vector<float> scales(static_cast<std::size_t>(count * step), 1e9f);
        for (std::int64_t e = 0; e < count; ++e)
          scales[static_cast<std::size_t>(e * step)] = 0.11f * static_cast<float>(1 + e % 3);
        const Operand a = fp8(s, forward ? DType::e4m3 : gradient, rows, forward ? c.in : c.out, 1,
                              s.put(std::vector<float>{0.37f}), 1);
        const Operand b = wgrad ? fp8(s, DType::e4m3, rows, c.in, 1, s.put(std::vector<float>{0.7f}), 2)
                                : fp8(s, DType::e4m3, count * c.out, c.in, count, s.put(scales), 2);
        const Matrix d = wgrad ? dense(s, dtype, count * c.out, c.in, 3)
                               : dense(s, dtype, rows, forward ? c.out : c.in, 3);
        const ExpertGemmArgs args{.gemm_kind = gemm_kind,
                                  .a = a,
                                  .b = b,
                                  .weight_scale_step = step,
                                  .count = count,
                                  .begins = s.put(begins),
                                  .d = d,
                                  .accumulate = accumulate,
                                  .fast_accumulation = fast};
        if (s.gpu()) {
          ASSERT_TRUE(has_expert_gemm(s.device(), args));
        }
        expert_gemm(s, args);
        s.out("d", d);
      },
      // Sums of up to 1,000 terms: with 14 bits, or rounded to bf16 before d is added.
      {.relative = 1e-3,
       .absolute = accumulate && dtype == DType::bf16 ? 0.13
                   : fast                             ? 0.1
                                                      : 6e-3,
       .bf16_steps = dtype == DType::bf16 ? 2.0 : 0.0});
}

TEST(GpuExpertGemm, HasTheValuesOfTheCpuInFp8) {
  for (const Case& c : kCases) {
    for (const bool fast : {false, true}) {
      compare_fp8(c, GemmKind::forward, DType::e4m3, DType::bf16, false, fast);
      for (const DType gradient : {DType::e4m3, DType::e5m2}) {
        compare_fp8(c, GemmKind::dgrad, gradient, DType::bf16, false, fast);
        for (const DType dtype : {DType::f32, DType::bf16}) {
          for (const bool accumulate : {false, true})
            compare_fp8(c, GemmKind::wgrad, gradient, dtype, accumulate, fast);
        }
      }
    }
  }
}

/// Operand of wgrad with 64 columns: `end` rows of ones, then `others`.
Operand rows_and_others(Side& s, DType dtype, std::int64_t rows, std::int64_t end, float others) {
  const auto put = [&](auto one, auto other) {
    std::vector<decltype(one)> values(static_cast<std::size_t>(rows * 64), one), flipped = values;
    std::fill(values.begin() + end * 64, values.end(), other);
    for (std::size_t c = 0; c < 64; ++c) {
      for (std::size_t r = static_cast<std::size_t>(end); r < static_cast<std::size_t>(rows); ++r)
        flipped[c * static_cast<std::size_t>(rows) + r] = other;
    }
    return Operand{
        .data = s.put(values), .transposed = s.put(flipped), .dtype = dtype, .rows = rows, .cols = 64};
  };
  return dtype == DType::bf16 ? put(to_bf16(1.0f), to_bf16(others))
                              : put(to_fp8(1.0f, dtype), to_fp8(others, dtype));
}

// Rows of the next expert are in the same run, and in the same piece of transposed copies. Rows after the
// last expert belong to nobody, and may have any values.
TEST(GpuExpertGemm, WeightGradientsTakeNoRowsOfOthers) {
  constexpr std::int64_t out = 64, in = 64, rows = 32;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    for (const int end : {1, 10, 16, 31}) {
      for (const bool last : {false, true}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(end) +
                     (last ? " rows, last" : " rows"));
        const std::vector<std::int32_t> begins =
            last ? std::vector<std::int32_t>{0, end} : std::vector<std::int32_t>{0, end, rows};
        const auto device = make_cuda_device(0);
        Side s(*device);
        const Operand x = rows_and_others(s, dtype, rows, end, last ? nan : 448.0f);
        const auto count = static_cast<std::int64_t>(begins.size()) - 1;
        const Matrix d = dense(s, DType::f32, count * out, in, 3);
        expert_gemm(
            s,
            {.gemm_kind = GemmKind::wgrad, .a = x, .b = x, .count = count, .begins = s.put(begins), .d = d});
        s.out("d", d);
        for (std::int64_t r = 0; r < out; ++r) {
          for (std::int64_t c = 0; c < in; ++c) EXPECT_EQ(s.outputs().back().at(r, c), end);
        }
      }
    }
  }
}

TEST(GpuExpertGemm, HasTheSameBitsAgainAndAgain) {
  const Case c{{700, 3, 0, 1300, 45}, 768, 512};
  const auto begins = begins_of(c.loads);
  const auto device = make_cuda_device(0);
  for (const GemmKind gemm_kind : {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad}) {
    Side s(*device);
    const bool wgrad = gemm_kind == GemmKind::wgrad, forward = gemm_kind == GemmKind::forward;
    const Matrix a = dense(s, DType::bf16, begins.back(), forward ? c.in : c.out, 1);
    const Matrix b =
        wgrad ? dense(s, DType::bf16, begins.back(), c.in, 2) : dense(s, DType::bf16, 5 * c.out, c.in, 2);
    const Matrix d = wgrad ? dense(s, DType::f32, 5 * c.out, c.in, 3)
                           : dense(s, DType::bf16, begins.back(), forward ? c.out : c.in, 3);
    const ExpertGemmArgs args{.gemm_kind = gemm_kind,
                              .a = operand_of(a),
                              .b = operand_of(b),
                              .count = 5,
                              .begins = s.put(begins),
                              .d = d};
    expert_gemm(s, args);
    s.out("first", d);
    const auto first = s.take().bytes;
    for (int turn = 0; turn < 8; ++turn) {
      for (int i = 0; i < 50; ++i) expert_gemm(s, args);
      s.out("again", d);
      EXPECT_EQ(s.take().bytes, first) << "product " << static_cast<int>(gemm_kind) << ", turn " << turn;
    }
  }
}

}  // namespace
}  // namespace octet::ops::expert_gemm_test
