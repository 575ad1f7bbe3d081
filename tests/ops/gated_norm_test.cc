#include "octet/ops/gated_norm.h"

#include "ops/delta_problem.h"

namespace octet::ops::gated_norm_test {
namespace {

struct Problem {
  Problem(DType dtype, std::int64_t rows, const DeltaColumns& c)
      : columns(c),
        o(Tensor::random(dtype, rows, c.heads.values(), 1, 3)),
        projected(Tensor::random(dtype, rows, c.width(), 2)),
        d_out(Tensor::random(dtype, rows, c.heads.values(), 3)),
        weight(random_floats(c.heads.value_dim, 4)) {}
  DeltaColumns columns;
  Tensor o, projected, d_out;
  std::vector<float> weight;
};

const DeltaColumns kColumns[] = {
    {{1, 1, 8, 8}, 1}, {{2, 4, 16, 24}, 2}, {{2, 6, 8, 128}, 1}, {{1, 2, 8, 256}, 1}};
constexpr float kEps = 1e-3f;

double sigmoid64(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The inverse root of a head of a row.
double scale_of(const Problem& p, std::int64_t row, std::int64_t head) {
  const std::int64_t dim = p.columns.heads.value_dim;
  double squares = 0;
  for (std::int64_t i = 0; i < dim; ++i) squares += p.o.at(row, head * dim + i) * p.o.at(row, head * dim + i);
  return 1 / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(kEps));
}

void expect_forward(const Problem& p, std::int64_t rows, DType dtype, bool in_place) {
  const DeltaHeads& heads = p.columns.heads;
  Tensor out(dtype, rows, heads.values()), kept = p.o;
  Fp8Copy copy(DType::e4m3, rows, heads.values());
  CpuStream stream;
  gated_norm(stream, {.o = in_place ? kept.matrix() : p.o.matrix(),
                      .projected = p.projected.matrix(),
                      .columns = p.columns,
                      .weight = p.weight.data(),
                      .eps = kEps,
                      .out = in_place ? kept.matrix() : out.matrix(),
                      .quantize = copy.into()});
  const Tensor& y = in_place ? kept : out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < heads.value_heads; ++h) {
      const double scale = scale_of(p, r, h);
      for (std::int64_t i = 0; i < heads.value_dim; ++i) {
        const double z = p.projected.at(r, p.columns.gate(h) + i), o = p.o.at(r, h * heads.value_dim + i);
        const double want =
            o * scale * static_cast<double>(p.weight[static_cast<std::size_t>(i)]) * z * sigmoid64(z);
        ASSERT_NEAR(y.at(r, h * heads.value_dim + i), want, std::abs(want) * y.rounding() + 1e-30)
            << r << " " << h << " " << i;
      }
    }
  }
  EXPECT_TRUE(y.margin_untouched());
  copy.expect_copy_of(y);
}

TEST(GatedNorm, ForwardIsTheFloat64One) {
  for (const DType dtype : kComputeTypes) {
    for (const DeltaColumns& columns : kColumns) {
      for (const std::int64_t rows : {0, 1, 67}) {
        expect_forward(Problem(dtype, rows, columns), rows, dtype, rows == 1);
      }
    }
  }
}

void expect_backward(const Problem& p, std::int64_t rows, DType dtype, bool in_place, int threads = 2) {
  const DeltaHeads& heads = p.columns.heads;
  const std::int64_t dim = heads.value_dim;
  Tensor d_o(dtype, rows, heads.values()), kept = p.d_out, d_projected(dtype, rows, p.columns.width());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < d_projected.cols(); ++c) d_projected.set(r, c, 77);
  }
  std::vector<float> d_weight(static_cast<std::size_t>(dim), 1.0f);
  CpuStream stream(threads);
  const DeltaWorkspace workspace(stream.device(), gated_norm_workspace(stream.device(), heads, rows));
  gated_norm_backward(stream, {.o = p.o.matrix(),
                               .projected = p.projected.matrix(),
                               .columns = p.columns,
                               .weight = p.weight.data(),
                               .eps = kEps,
                               .d_out = in_place ? kept.matrix() : p.d_out.matrix(),
                               .d_o = in_place ? kept.matrix() : d_o.matrix(),
                               .d_projected = d_projected.matrix(),
                               .d_weight = d_weight.data(),
                               .workspace = workspace});
  const Tensor& d = in_place ? kept : d_o;
  std::vector<double> d_w(static_cast<std::size_t>(dim), 1), size = d_w;
  std::int64_t written = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < heads.value_heads; ++h) {
      const double scale = scale_of(p, r, h);
      double mean = 0, mean_size = 0;
      for (const bool second : {false, true}) {
        for (std::int64_t i = 0; i < dim; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double x = p.o.at(r, h * dim + i) * scale, z = p.projected.at(r, p.columns.gate(h) + i),
                       w = static_cast<double>(p.weight[at]), dy = p.d_out.at(r, h * dim + i),
                       silu = z * sigmoid64(z), along = dy * w * silu;
          if (!second) {
            mean += along * x / static_cast<double>(dim);
            mean_size += std::abs(along * x) / static_cast<double>(dim);
            d_w[at] += dy * silu * x;
            size[at] += std::abs(dy * silu * x);
            continue;
          }
          const double d_z = dy * w * x * sigmoid64(z) * (1 + z * (1 - sigmoid64(z)));
          ASSERT_NEAR(d_projected.at(r, p.columns.gate(h) + i), d_z,
                      std::abs(d_z) * d.rounding() + 2e-6 * std::abs(dy * w * x));
          const double want = scale * (along - x * mean);
          ASSERT_NEAR(
              d.at(r, h * dim + i), want,
              std::abs(want) * d.rounding() + 2e-6 * scale * (std::abs(along) + std::abs(x) * mean_size))
              << r << " " << h << " " << i;
        }
      }
    }
    for (std::int64_t c = 0; c < d_projected.cols(); ++c) written += d_projected.at(r, c) != 77 ? 1 : 0;
  }
  EXPECT_EQ(written, rows * heads.values());
  for (std::size_t i = 0; i < d_w.size(); ++i)
    EXPECT_NEAR(static_cast<double>(d_weight[i]), d_w[i], 2e-6 * size[i]);
  EXPECT_TRUE(d.margin_untouched() && d_projected.margin_untouched());
}

TEST(GatedNorm, GradientsAreTheFloat64Ones) {
  for (const DType dtype : kComputeTypes) {
    for (const DeltaColumns& columns : kColumns) {
      for (const std::int64_t rows : {0, 1, 130}) {
        expect_backward(Problem(dtype, rows, columns), rows, dtype, rows == 1);
      }
    }
  }
}

TEST(GatedNorm, BitsDoNotDependOnThreads) {
  const Problem p(DType::bf16, 100, kColumns[1]);
  std::vector<float> sums[2];
  Tensor outs[2] = {Tensor(DType::bf16, 100, 96), Tensor(DType::bf16, 100, 96)};
  for (int i = 0; i < 2; ++i) {
    CpuStream stream(1 + 4 * i);
    sums[i].assign(24, 0.0f);
    Tensor d_projected(DType::bf16, 100, p.columns.width());
    const DeltaWorkspace workspace(stream.device(),
                                   gated_norm_workspace(stream.device(), p.columns.heads, 100));
    gated_norm_backward(stream, {.o = p.o.matrix(),
                                 .projected = p.projected.matrix(),
                                 .columns = p.columns,
                                 .weight = p.weight.data(),
                                 .d_out = p.d_out.matrix(),
                                 .d_o = outs[i].matrix(),
                                 .d_projected = d_projected.matrix(),
                                 .d_weight = sums[i].data(),
                                 .workspace = workspace});
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_TRUE(outs[0] == outs[1]);
}

TEST(GatedNorm, TheFp8CopyAloneHasTheSameBits) {
  const Problem p(DType::bf16, 9, kColumns[2]);
  const std::int64_t width = p.columns.heads.values();
  Tensor out(DType::bf16, 9, width);
  Fp8Copy with(DType::e4m3, 9, width), alone(DType::e4m3, 9, width);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(9 * width));
  std::vector<float> scales(9);
  CpuStream stream;
  GatedNormArgs args{.o = p.o.matrix(),
                     .projected = p.projected.matrix(),
                     .columns = p.columns,
                     .weight = p.weight.data(),
                     .out = out.matrix(),
                     .quantize = with.into()};
  gated_norm(stream, args);
  args.out = {};
  args.quantize = alone.into();
  gated_norm(stream, args);
  EXPECT_EQ(with.row, alone.row);
  EXPECT_EQ(with.transposed, alone.transposed);
  args.quantize = {.row = codes.data(), .row_scale_inv = scales.data()};
  gated_norm(stream, args);
  for (std::int64_t r = 0; r < 9; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const float scale = scales[static_cast<std::size_t>(r)];
      ASSERT_EQ(codes[static_cast<std::size_t>(r * width + c)],
                to_fp8(static_cast<float>(out.at(r, c)) / scale, DType::e4m3));
    }
  }
}

TEST(GatedNorm, WrongArgumentsAreRefused) {
  const Problem p(DType::f32, 3, kColumns[1]);
  Tensor out(DType::f32, 3, 96), d_projected(DType::f32, 3, p.columns.width());
  CpuStream stream;
  const GatedNormArgs good{.o = p.o.matrix(),
                           .projected = p.projected.matrix(),
                           .columns = p.columns,
                           .weight = p.weight.data(),
                           .out = out.matrix()};
  const auto refused = [&](auto change) {
    GatedNormArgs args = good;
    change(args);
    EXPECT_THROW(gated_norm(stream, args), std::logic_error);
  };
  gated_norm(stream, good);
  refused([](auto& a) { a.columns.groups = 3; });
  refused([](auto& a) { a.o.cols = 95; });
  refused([](auto& a) { a.projected.rows = 2; });
  refused([](auto& a) { a.out = {}; });
  refused([](auto& a) { a.out.dtype = DType::bf16; });
  refused([](auto& a) { a.weight = nullptr; });
  refused([](auto& a) { a.eps = -1; });
  std::vector<float> d_weight(24);
  GatedNormBackwardArgs back{.o = p.o.matrix(),
                             .projected = p.projected.matrix(),
                             .columns = p.columns,
                             .weight = p.weight.data(),
                             .d_out = p.d_out.matrix(),
                             .d_o = out.matrix(),
                             .d_projected = d_projected.matrix(),
                             .d_weight = d_weight.data()};
  EXPECT_THROW(gated_norm_backward(stream, back), std::logic_error);
  back.d_weight = nullptr;
  gated_norm_backward(stream, back);
  back.d_projected.cols -= 1;
  EXPECT_THROW(gated_norm_backward(stream, back), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::gated_norm_test
