#include "octet/ops/layer_norm.h"

#include "ops/tensor.h"

namespace octet::ops::layer_norm_test {
namespace {

constexpr float kEps = 1e-5f;

struct Moments {
  double mean = 0, rstd = 0;
};
Moments moments_of(const std::vector<double>& x) {
  const auto n = static_cast<double>(x.size());
  double sum = 0, squares = 0;
  for (const double v : x) sum += v;
  for (const double v : x) squares += (v - sum / n) * (v - sum / n);
  return {sum / n, 1 / std::sqrt(squares / n + static_cast<double>(kEps))};
}

std::vector<double> row_of(const Tensor& x, std::int64_t r) {
  std::vector<double> row;
  for (std::int64_t c = 0; c < x.cols(); ++c) row.push_back(x.at(r, c));
  return row;
}

// d/dx of Σ dy * norm(x) for one row of doubles.
std::vector<double> reference_backward(const std::vector<double>& x, const std::vector<double>& dy,
                                       const std::vector<double>& w) {
  const auto n = static_cast<double>(x.size());
  const auto [mean, rstd] = moments_of(x);
  double sum = 0, dot = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += dy[i] * w[i];
    dot += dy[i] * w[i] * (x[i] - mean) * rstd;
  }
  std::vector<double> dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    dx[i] = rstd * (dy[i] * w[i] - sum / n - (x[i] - mean) * rstd * dot / n);
  return dx;
}

struct Variant {
  DType dtype;
  bool delta, in_place, bias;
};

void expect_forward(std::int64_t rows, std::int64_t hidden, const Variant& v) {
  SCOPED_TRACE(testing::Message() << rows << "x" << hidden << " " << name_of(v.dtype) << " delta " << v.delta
                                  << " in place " << v.in_place << " bias " << v.bias);
  Tensor residual = Tensor::random(v.dtype, rows, hidden, 1);
  // Far from zero, so that a sum of squares alone would be wrong.
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) residual.set(r, c, residual.at(r, c) + 20);
  }
  const Tensor delta = Tensor::random(v.dtype, rows, hidden, 2, 0.3);
  const std::vector<float> w = random_floats(hidden, 3), b = random_floats(hidden, 4);
  Tensor x = residual;
  for (std::int64_t r = 0; r < rows && v.delta; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) {
      x.set(r, c,
            static_cast<double>(static_cast<float>(residual.at(r, c)) + static_cast<float>(delta.at(r, c))));
    }
  }
  Tensor sum(v.dtype, rows, hidden), out(v.dtype, rows, hidden);
  std::vector<float> mean(static_cast<std::size_t>(rows)), rstd(mean);
  Fp8Copy copy(DType::e4m3, rows, hidden);
  CpuStream stream;
  layer_norm(stream, {.residual = residual.matrix(),
                      .delta = v.delta ? ConstMatrix(delta.matrix()) : ConstMatrix(),
                      .sum = v.in_place ? residual.matrix() : sum.matrix(),
                      .weight = w.data(),
                      .bias = v.bias ? b.data() : nullptr,
                      .eps = kEps,
                      .out = out.matrix(),
                      .mean = mean.data(),
                      .rstd = rstd.data(),
                      .quantize = copy.into()});
  EXPECT_TRUE((v.in_place ? residual : sum) == x);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Moments of = moments_of(row_of(x, r));
    const bool once = v.dtype == DType::f32;  // summed and multiplied in double, rounded once
    const double slack = once ? 1e-12 : 2e-6;
    ASSERT_NEAR(mean[static_cast<std::size_t>(r)], of.mean, 21 * (once ? 0x1.0001p-24 : 1e-6));
    // The values of bf16 rows are summed in fp32, and their mean is about 20.
    ASSERT_NEAR(rstd[static_cast<std::size_t>(r)], of.rstd,
                of.rstd * (once ? 0x1.0001p-24 : 1e-4 * of.rstd * of.rstd + 1e-6));
    for (std::int64_t c = 0; c < hidden; ++c) {
      const auto i = static_cast<std::size_t>(c);
      const double scale = of.rstd * static_cast<double>(w[i]);
      const double y = (x.at(r, c) - of.mean) * scale + (v.bias ? static_cast<double>(b[i]) : 0);
      const double far = hidden == 1 ? 1e-3 : 0;  // only eps remains
      ASSERT_NEAR(out.at(r, c), y,
                  std::abs(y) * (once ? 0x1.0001p-24 : out.rounding()) +
                      std::abs(scale) * (20 * slack + far * (once ? 0 : 1)) + 1e-45)
          << r << " " << c;
    }
  }
  EXPECT_TRUE(out.margin_untouched());
  copy.expect_copy_of(out);
}

TEST(LayerNorm, ForwardIsTheFloat64NormOfTheRoundedSum) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t hidden : kHiddenSizes) {
        expect_forward(rows, hidden, {dtype, hidden % 2 == 0, rows == 127, hidden > 80});
      }
    }
    expect_forward(5, 1300, {dtype, true, true, false});
    expect_forward(5, 1300, {dtype, false, true, true});
  }
}

TEST(LayerNorm, TheReferenceGradientIsTheSlopeOfTheNorm) {
  const std::int64_t n = 11;
  std::vector<double> x(n), dy(n), w(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    x[i] = static_cast<double>(normal(7, RandomUse::data, i));
    dy[i] = static_cast<double>(normal(8, RandomUse::data, i));
    w[i] = static_cast<double>(normal(9, RandomUse::data, i));
  }
  const auto loss = [&] {
    const auto [mean, rstd] = moments_of(x);
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += dy[i] * (x[i] - mean) * rstd * w[i];
    return sum;
  };
  const std::vector<double> dx = reference_backward(x, dy, w);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double h = 1e-6, kept = x[i];
    x[i] = kept + h;
    const double up = loss();
    x[i] = kept - h;
    const double slope = (up - loss()) / (2 * h);
    x[i] = kept;
    EXPECT_NEAR(dx[i], slope, 1e-9);
  }
}

void expect_backward(std::int64_t rows, std::int64_t hidden, DType dtype, bool sums, bool accumulate) {
  SCOPED_TRACE(testing::Message() << rows << "x" << hidden << " " << name_of(dtype) << " sums " << sums
                                  << " accumulate " << accumulate);
  const Tensor dy = Tensor::random(dtype, rows, hidden, 1), x = Tensor::random(dtype, rows, hidden, 2);
  const std::vector<float> w = random_floats(hidden, 3);
  const Tensor before = Tensor::random(dtype, rows, hidden, 4);
  const std::vector<float> weight_before = random_floats(hidden, 5), bias_before = random_floats(hidden, 6);
  std::vector<float> mean(static_cast<std::size_t>(rows)), rstd(mean);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Moments of = moments_of(row_of(x, r));
    mean[static_cast<std::size_t>(r)] = static_cast<float>(of.mean);
    rstd[static_cast<std::size_t>(r)] = static_cast<float>(of.rstd);
  }
  CpuStream stream;
  Tensor d_residual = before;
  std::vector<float> d_weight = weight_before, d_bias = bias_before;
  std::vector<std::byte> scratch(layer_norm_backward_workspace(stream.device(), rows, hidden));
  Fp8Copy copy(DType::e5m2, rows, hidden);
  layer_norm_backward(stream, {.dy = dy.matrix(),
                               .x = x.matrix(),
                               .mean = mean.data(),
                               .rstd = rstd.data(),
                               .weight = w.data(),
                               .d_residual = d_residual.matrix(),
                               .accumulate = accumulate,
                               .d_weight = d_weight.data(),
                               .d_bias = sums ? d_bias.data() : nullptr,
                               .quantize = copy.into(),
                               .workspace = {scratch.data(), scratch.size()}});
  const auto n = static_cast<std::size_t>(hidden);
  std::vector<double> dw(n), dw_size(n), db(n), db_size(n), wr(n);
  for (std::size_t i = 0; i < n; ++i) wr[i] = static_cast<double>(w[i]);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<double> xr = row_of(x, r), dyr = row_of(dy, r);
    const Moments of = moments_of(xr);
    for (std::size_t i = 0; i < n; ++i) {
      const double term = dyr[i] * (xr[i] - of.mean) * of.rstd;
      dw[i] += term;
      dw_size[i] += std::abs(term) + 1e-2 * std::abs(dyr[i]);
      db[i] += dyr[i];
      db_size[i] += std::abs(dyr[i]);
    }
    const std::vector<double> dx = reference_backward(xr, dyr, wr);
    double size = 0;  // terms of a row cancel, so errors are relative to the largest term
    for (std::size_t i = 0; i < n; ++i) size = std::max(size, of.rstd * std::abs(dyr[i] * wr[i]));
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double want = dx[static_cast<std::size_t>(c)] + (accumulate ? before.at(r, c) : 0);
      // One value is its own mean: errors of the mean are multiplied by a large rstd.
      const double rough = hidden == 1 ? 1e-4 * size : 0;
      ASSERT_NEAR(d_residual.at(r, c), want,
                  std::abs(want) * d_residual.rounding() + 4e-6 * size + rough + 1e-7)
          << r << " " << c;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(d_weight[i] - weight_before[i], dw[i], 1e-6 * (dw_size[i] + 1)) << i;
    ASSERT_NEAR(d_bias[i] - bias_before[i], sums ? db[i] : 0, 1e-6 * (db_size[i] + 1)) << i;
  }
  EXPECT_TRUE(d_residual.margin_untouched());
  copy.expect_copy_of(d_residual);
}

TEST(LayerNorm, BackwardIsTheFloat64Derivative) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t hidden : kHiddenSizes) {
        expect_backward(rows, hidden, dtype, hidden % 2 == 0, rows != 127);
      }
    }
  }
  expect_backward(4200, 16, DType::f32, true, true);
}

TEST(LayerNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const std::int64_t rows = 300, hidden = 257;
  const Tensor dy = Tensor::random(DType::bf16, rows, hidden, 1),
               x = Tensor::random(DType::bf16, rows, hidden, 2);
  const std::vector<float> w = random_floats(hidden, 3);
  std::vector<std::vector<float>> sums;
  std::vector<Tensor> residuals;
  for (const int threads : {1, 2, 3, 7}) {
    CpuStream stream(threads);
    Tensor out(DType::bf16, rows, hidden), d_residual = Tensor::zeros(DType::bf16, rows, hidden);
    std::vector<float> mean(rows), rstd(rows), d_weight(static_cast<std::size_t>(hidden)), d_bias(d_weight);
    std::vector<std::byte> scratch(layer_norm_backward_workspace(stream.device(), rows, hidden));
    layer_norm(stream, {.residual = x.matrix(),
                        .weight = w.data(),
                        .out = out.matrix(),
                        .mean = mean.data(),
                        .rstd = rstd.data()});
    layer_norm_backward(stream, {.dy = dy.matrix(),
                                 .x = x.matrix(),
                                 .mean = mean.data(),
                                 .rstd = rstd.data(),
                                 .weight = w.data(),
                                 .d_residual = d_residual.matrix(),
                                 .d_weight = d_weight.data(),
                                 .d_bias = d_bias.data(),
                                 .workspace = {scratch.data(), scratch.size()}});
    d_weight.insert(d_weight.end(), d_bias.begin(), d_bias.end());
    sums.push_back(d_weight);
    residuals.push_back(d_residual);
    EXPECT_EQ(sums.front(), d_weight);
    EXPECT_TRUE(residuals.front() == d_residual);
  }
}

TEST(LayerNorm, ACopyWithAScalePerRowHoldsTheNorm) {
  const std::int64_t rows = 5, hidden = 700;
  const Tensor x = Tensor::random(DType::bf16, rows, hidden, 1);
  const std::vector<float> w = random_floats(hidden, 3), b = random_floats(hidden, 4);
  Tensor out(DType::bf16, rows, hidden);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * hidden));
  std::vector<float> scales(static_cast<std::size_t>(rows));
  QuantizeInto into;
  into.format = DType::e4m3;
  into.row = codes.data();
  into.row_scale_inv = scales.data();
  CpuStream stream;
  layer_norm(
      stream,
      {.residual = x.matrix(), .weight = w.data(), .bias = b.data(), .out = out.matrix(), .quantize = into});
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) {
      const float scale = scales[static_cast<std::size_t>(r)];
      const auto want = to_fp8(static_cast<float>(out.at(r, c)) / scale, DType::e4m3);
      ASSERT_EQ(codes[static_cast<std::size_t>(r * hidden + c)], want);
    }
  }
}

TEST(LayerNorm, WrongShapesAreRefused) {
  CpuStream stream;
  Tensor x(DType::f32, 2, 8), y(DType::f32, 2, 9);
  const std::vector<float> w(9);
  LayerNormArgs args{.residual = x.matrix(), .weight = w.data()};
  args.out = y.matrix();
  EXPECT_THROW(layer_norm(stream, args), std::logic_error);
  LayerNormBackwardArgs back{.dy = x.matrix(), .x = x.matrix(), .mean = w.data(), .rstd = w.data()};
  back.d_residual = x.matrix();
  EXPECT_THROW(layer_norm_backward(stream, back), std::logic_error) << "no weight";
  back.weight = w.data();
  std::vector<float> d_bias(8);
  back.d_bias = d_bias.data();  // without a workspace
  EXPECT_THROW(layer_norm_backward(stream, back), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::layer_norm_test
