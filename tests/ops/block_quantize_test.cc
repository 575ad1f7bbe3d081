// FP8 copies with block scales, and GEMMs of them, against float64.
#include "octet/ops/block_quantize.h"

#include <limits>

#include "octet/ops/gemm.h"
#include "ops/tensor.h"

namespace octet::ops::block_quantize_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The FP8 copies of a matrix and their exact values.
struct Blocks {
  Blocks(Stream& stream, const Tensor& x, Scaling s)
      : scaling(s),
        rows(x.rows()),
        cols(x.cols()),
        row(static_cast<std::size_t>(rows * cols), 0xEE),
        transposed(row.size(), 0xEE),
        scales(static_cast<std::size_t>(scale_count(s, rows, cols)), kNaN),
        transposed_scales(static_cast<std::size_t>(scale_count(s, cols, rows)), kNaN) {
    block_quantize(stream, {.x = x.matrix(),
                            .scaling = s,
                            .row = row.data(),
                            .scale_inv = scales.data(),
                            .transposed = transposed.data(),
                            .transposed_scale_inv = transposed_scales.data()});
  }
  std::uint8_t code(std::int64_t r, std::int64_t c) const {
    return row[static_cast<std::size_t>(r * cols + c)];
  }
  std::uint8_t transposed_code(std::int64_t r, std::int64_t c) const {
    return transposed[static_cast<std::size_t>(c * rows + r)];
  }
  float scale(std::int64_t r, std::int64_t c) const {
    return scales[static_cast<std::size_t>(scale_index(scaling, rows, cols, r, c))];
  }
  float transposed_scale(std::int64_t r, std::int64_t c) const {
    return transposed_scales[static_cast<std::size_t>(scale_index(scaling, cols, rows, c, r))];
  }
  double value(std::int64_t r, std::int64_t c) const {
    return double{from_fp8(code(r, c), DType::e4m3)} * double{scale(r, c)};
  }
  double transposed_value(std::int64_t r, std::int64_t c) const {
    return double{from_fp8(transposed_code(r, c), DType::e4m3)} * double{transposed_scale(r, c)};
  }
  Operand operand() const {
    return {.data = row.data(),
            .transposed = transposed.data(),
            .dtype = DType::e4m3,
            .rows = rows,
            .cols = cols,
            .scale_inv = scales.data(),
            .scaling = scaling,
            .transposed_scale_inv = transposed_scales.data()};
  }

  Scaling scaling;
  std::int64_t rows, cols;
  std::vector<std::uint8_t> row, transposed;
  std::vector<float> scales, transposed_scales;
};

/// Returns the largest magnitude in a part of a matrix.
double most_of(const Tensor& x, std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols) {
  double most = 0;
  for (std::int64_t r = row0; r < std::min(row0 + rows, x.rows()); ++r) {
    for (std::int64_t c = col0; c < std::min(col0 + cols, x.cols()); ++c) {
      most = std::max(most, std::abs(x.at(r, c)));
    }
  }
  return most;
}

void expect_smallest_power(float scale, double most) {
  int exponent = 0;
  ASSERT_EQ(std::frexp(scale, &exponent), 0.5f) << "a power of two";
  EXPECT_LE(most / scale, 448);
  EXPECT_GT(most / scale, 224);
}

constexpr std::int64_t kShapes[][2] = {{1, 1},     {1, 300},   {127, 129}, {128, 128},
                                       {129, 127}, {260, 384}, {16, 640}};

/// Returns the counts of the cast into the row copy.
Fp8Seen seen_by(Stream& stream, const Tensor& x, Scaling scaling) {
  std::vector<std::uint8_t> row(static_cast<std::size_t>(x.rows() * x.cols())), flipped(row.size());
  std::vector<float> scales(static_cast<std::size_t>(scale_count(scaling, x.rows(), x.cols())));
  std::vector<float> transposed_scales(static_cast<std::size_t>(scale_count(scaling, x.cols(), x.rows())));
  Fp8Seen seen{};
  block_quantize(stream, {.x = x.matrix(),
                          .scaling = scaling,
                          .row = row.data(),
                          .scale_inv = scales.data(),
                          .transposed = flipped.data(),
                          .transposed_scale_inv = transposed_scales.data(),
                          .seen = &seen});
  return seen;
}

TEST(BlockQuantize, SeesWhatTheCastLoses) {
  for (const Scaling scaling : {Scaling::rows, Scaling::squares}) {
    for (const auto& [rows, cols] : {std::pair{1, 1}, {127, 200}, {256, 384}}) {
      Tensor x = Tensor::random(DType::f32, rows, cols, 5, 5);
      CpuStream stream(3);
      for (int step = 0; step < 3; ++step) {
        // Small values next to large ones are lost. A block with an infinity has the scale 1, which saturates
        // large values.
        if (step == 1) x.set(rows - 1, cols - 1, 1e9);
        if (step == 2) x.set(rows / 2, 0, static_cast<double>(kInfinity));
        const Blocks blocks(stream, x, scaling);
        const Fp8Seen want = seen_of(
            rows, cols, DType::e4m3, [&](auto r, auto c) { return x.at(r, c); },
            [&](auto r, auto c) { return 1 / blocks.scale(r, c); });
        expect_seen(seen_by(stream, x, scaling), want);
        if (step == 1 && cols > 1) {
          EXPECT_GT(want.lost, 0u);
        }
      }
    }
  }
  EXPECT_EQ(block_scale(448), 1.0f);
  EXPECT_EQ(block_scale(449), 0.5f);
  EXPECT_EQ(block_scale(7), 64.0f);
  EXPECT_EQ(block_scale(0), 1.0f);
  EXPECT_EQ(block_scale(kNaN), 1.0f);
}

TEST(BlockQuantize, ScalesAreTheSmallestPowersAndCodesAreRoundedOnce) {
  CpuStream stream;
  for (const auto& shape : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = Tensor::uneven(dtype, shape[0], shape[1], 3);
      for (const Scaling scaling : {Scaling::rows, Scaling::squares}) {
        const Blocks b(stream, x, scaling);
        const bool squares = scaling == Scaling::squares;
        for (std::int64_t r = 0; r < b.rows; ++r) {
          for (std::int64_t c = 0; c < b.cols; ++c) {
            const std::int64_t row0 = r / 128 * 128, col0 = c / 128 * 128;
            const auto value = static_cast<float>(x.at(r, c));
            expect_smallest_power(b.scale(r, c),
                                  squares ? most_of(x, row0, 128, col0, 128) : most_of(x, r, 1, col0, 128));
            expect_smallest_power(b.transposed_scale(r, c),
                                  squares ? most_of(x, row0, 128, col0, 128) : most_of(x, row0, 128, c, 1));
            ASSERT_EQ(b.code(r, c), to_fp8(value / b.scale(r, c), DType::e4m3)) << r << " " << c;
            ASSERT_EQ(b.transposed_code(r, c), to_fp8(value / b.transposed_scale(r, c), DType::e4m3))
                << r << " " << c;
            if (c % 37 != 0 && r % 41 != 0) c += 5;  // for large matrices a sample is enough
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(BlockQuantize, ABlockOfZerosOrWithoutALargestValueIsNotScaled) {
  CpuStream stream;
  Tensor x = Tensor::zeros(DType::f32, 256, 256);
  x.set(3, 4, kInfinity);
  x.set(200, 5, kNaN);
  x.set(200, 6, 2000);
  x.set(130, 200, 1e-40);
  const Blocks b(stream, x, Scaling::rows);
  EXPECT_EQ(b.scale(0, 0), 1.0f);
  EXPECT_EQ(b.code(0, 0), 0);
  EXPECT_EQ(b.scale(3, 4), 1.0f);
  EXPECT_EQ(b.value(3, 4), 448.0);
  EXPECT_EQ(b.scale(200, 5), 1.0f);
  EXPECT_TRUE(std::isnan(b.value(200, 5)));
  EXPECT_EQ(b.value(200, 6), 448.0);
  EXPECT_EQ(b.scale(130, 200), 0x1p-100f) << "what bf16 cannot hold exactly is not tried";
  const Blocks s(stream, x, Scaling::squares);
  EXPECT_EQ(s.scale(0, 0), 1.0f);
  EXPECT_EQ(s.scale(200, 200), 0x1p-100f);
  // Every scale has a value, including the padding for rounded-up rows of scales.
  for (const float scale : s.scales) EXPECT_FALSE(std::isnan(scale));
}

/// Checks each element of D for block operands against a float64 GEMM of the copies' values.
void expect_gemm(GemmKind gemm_kind, const Blocks& a, const Blocks& b, DType dtype, bool accumulate) {
  const bool wgrad = gemm_kind == GemmKind::wgrad, forward = gemm_kind == GemmKind::forward;
  const std::int64_t m = wgrad ? a.cols : a.rows, n = forward ? b.rows : b.cols, k = wgrad ? a.rows : a.cols;
  CpuStream stream;
  Tensor d = Tensor::random(dtype, m, n, 9);
  const Tensor before = d;
  GemmArgs args{
      .gemm_kind = gemm_kind, .a = a.operand(), .b = b.operand(), .d = d.matrix(), .accumulate = accumulate};
  Arena arena(stream.device());
  args.workspace.bytes = gemm_workspace(stream.device(), args);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  gemm(stream, args);
  EXPECT_TRUE(d.margin_untouched());
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; j += 3) {
      double want = accumulate ? before.at(i, j) : 0, size = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double x = wgrad ? a.transposed_value(l, i) : a.value(i, l);
        const double y = wgrad ? b.transposed_value(l, j) : (forward ? b.value(j, l) : b.value(l, j));
        want += x * y;
        size += std::abs(x * y);
      }
      const double tolerance = size * 0.6e-7 * (4 + std::sqrt(static_cast<double>(k))) +
                               std::abs(want) * (dtype == DType::bf16 ? 0x1p-8 : 0x1p-22);
      ASSERT_NEAR(d.at(i, j), want, tolerance) << static_cast<int>(gemm_kind) << " at " << i << "," << j;
    }
  }
}

TEST(BlockQuantize, GemmsReadTheCopiesWithTheirScales) {
  CpuStream stream;
  for (const auto& [tokens, in, out] :
       {std::array<std::int64_t, 3>{1, 128, 256}, {130, 300, 129}, {64, 256, 200}}) {
    const Blocks x(stream, Tensor::uneven(DType::bf16, tokens, in, 1), Scaling::rows);
    const Blocks w(stream, Tensor::uneven(DType::bf16, out, in, 2), Scaling::squares);
    const Blocks dy(stream, Tensor::uneven(DType::bf16, tokens, out, 3), Scaling::rows);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool accumulate : {false, true}) {
        expect_gemm(GemmKind::forward, x, w, dtype, accumulate);
        expect_gemm(GemmKind::dgrad, dy, w, dtype, accumulate);
        expect_gemm(GemmKind::wgrad, dy, x, dtype, accumulate);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The reason for blocks: an outlier affects only its block, not the whole tensor.
TEST(BlockQuantize, AnOutlierDoesNotReachOtherBlocks) {
  CpuStream stream;
  Tensor x = Tensor::random(DType::f32, 8, 512, 5, 1e-3);
  x.set(0, 0, 3e5);
  const Blocks b(stream, x, Scaling::rows);
  double worst = 0;
  for (std::int64_t c = 128; c < 512; ++c) {
    worst = std::max(worst, std::abs(b.value(0, c) - x.at(0, c)) / most_of(x, 0, 1, c / 128 * 128, 128));
  }
  EXPECT_LT(worst, 0x1p-4);
  EXPECT_EQ(b.value(0, 1), 0) << "too small beside the outlier";
}

}  // namespace
}  // namespace octet::ops::block_quantize_test
