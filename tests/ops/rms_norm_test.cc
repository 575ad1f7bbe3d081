#include "octet/ops/rms_norm.h"

#include "ops/tensor.h"

namespace octet::ops::rms_norm_test {
namespace {

constexpr float kEps = 1e-5f;

double reference_rstd(const Tensor& x, std::int64_t r) {
  double squares = 0;
  for (std::int64_t c = 0; c < x.cols(); ++c) squares += x.at(r, c) * x.at(r, c);
  return 1 / std::sqrt(squares / static_cast<double>(x.cols()) + static_cast<double>(kEps));
}

// d/dx of Σ dy * norm(x) for one row of doubles.
std::vector<double> reference_backward(const std::vector<double>& x, const std::vector<double>& dy,
                                       const std::vector<double>& w) {
  const auto n = static_cast<double>(x.size());
  double squares = 0, dot = 0;
  for (const double v : x) squares += v * v;
  const double rstd = 1 / std::sqrt(squares / n + static_cast<double>(kEps));
  for (std::size_t i = 0; i < x.size(); ++i) dot += dy[i] * w[i] * x[i];
  std::vector<double> dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    dx[i] = rstd * (dy[i] * w[i] - x[i] * rstd * rstd * dot / n);
  }
  return dx;
}

struct Variant {
  DType dtype;
  bool delta, in_place, one_plus;
};

void expect_forward(std::int64_t rows, std::int64_t hidden, const Variant& v) {
  SCOPED_TRACE(testing::Message() << rows << "x" << hidden << " " << name_of(v.dtype) << " delta " << v.delta
                                  << " in place " << v.in_place << " one plus " << v.one_plus);
  Tensor residual = Tensor::random(v.dtype, rows, hidden, 1);
  const Tensor delta = Tensor::random(v.dtype, rows, hidden, 2, 0.3);
  const std::vector<float> w = random_floats(hidden, 3);
  Tensor x = residual;
  for (std::int64_t r = 0; r < rows && v.delta; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) {
      x.set(r, c,
            static_cast<double>(static_cast<float>(residual.at(r, c)) + static_cast<float>(delta.at(r, c))));
    }
  }
  Tensor sum(v.dtype, rows, hidden), out(v.dtype, rows, hidden);
  std::vector<float> rstd(static_cast<std::size_t>(rows));
  Fp8Copy copy(DType::e4m3, rows, hidden);
  CpuStream stream;
  rms_norm(stream, {.residual = residual.matrix(),
                    .delta = v.delta ? ConstMatrix(delta.matrix()) : ConstMatrix(),
                    .sum = v.in_place ? residual.matrix() : sum.matrix(),
                    .weight = w.data(),
                    .eps = kEps,
                    .one_plus_weight = v.one_plus,
                    .out = out.matrix(),
                    .rstd = rstd.data(),
                    .quantize = copy.into()});
  EXPECT_TRUE((v.in_place ? residual : sum) == x);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double s = reference_rstd(x, r);
    // An fp32 norm is summed and multiplied in double and rounded once.
    const double once = v.dtype == DType::f32 ? 0x1.0001p-24 : 0;
    ASSERT_NEAR(rstd[static_cast<std::size_t>(r)], s, s * (once > 0 ? once : 5e-7));
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double y =
          x.at(r, c) * s * ((v.one_plus ? 1 : 0) + static_cast<double>(w[static_cast<std::size_t>(c)]));
      ASSERT_NEAR(out.at(r, c), y, std::abs(y) * (once > 0 ? once : out.rounding() + 1e-6) + 1e-45)
          << r << " " << c;
    }
  }
  EXPECT_TRUE(out.margin_untouched());
  copy.expect_copy_of(out);
}

TEST(RmsNorm, ForwardIsTheFloat64NormOfTheRoundedSum) {
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

TEST(RmsNorm, TheFp8CopyAloneAndTheSumUnkeptGiveTheSameBits) {
  for (const std::int64_t hidden : {96, 1300}) {
    const Tensor residual = Tensor::random(DType::bf16, 9, hidden, 1),
                 delta = Tensor::random(DType::bf16, 9, hidden, 2);
    const std::vector<float> w = random_floats(hidden, 3);
    Tensor out(DType::bf16, 9, hidden), sum(DType::bf16, 9, hidden);
    Fp8Copy with(DType::e5m2, 9, hidden), alone(DType::e5m2, 9, hidden);
    CpuStream stream;
    RmsNormArgs args{
        .residual = residual.matrix(), .delta = delta.matrix(), .sum = sum.matrix(), .weight = w.data()};
    args.out = out.matrix();
    args.quantize = with.into();
    rms_norm(stream, args);
    args.out = args.sum = Matrix();
    args.quantize = alone.into();
    rms_norm(stream, args);
    EXPECT_EQ(with.row, alone.row);
    EXPECT_EQ(with.amax, alone.amax);
    with.expect_copy_of(out);
  }
}

TEST(RmsNorm, TheReferenceGradientIsTheSlopeOfTheNorm) {
  const std::int64_t n = 11;
  std::vector<double> x(n), dy(n), w(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    x[i] = static_cast<double>(normal(7, RandomUse::data, i));
    dy[i] = static_cast<double>(normal(8, RandomUse::data, i));
    w[i] = static_cast<double>(normal(9, RandomUse::data, i));
  }
  const auto loss = [&] {
    double squares = 0, sum = 0;
    for (const double v : x) squares += v * v;
    const double rstd = 1 / std::sqrt(squares / n + static_cast<double>(kEps));
    for (std::size_t i = 0; i < x.size(); ++i) sum += dy[i] * x[i] * rstd * w[i];
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

void expect_backward(std::int64_t rows, std::int64_t hidden, DType dtype, bool one_plus, bool accumulate) {
  SCOPED_TRACE(testing::Message() << rows << "x" << hidden << " " << name_of(dtype) << " one plus "
                                  << one_plus << " accumulate " << accumulate);
  const Tensor dy = Tensor::random(dtype, rows, hidden, 1), x = Tensor::random(dtype, rows, hidden, 2);
  const std::vector<float> w = random_floats(hidden, 3);
  const Tensor before = Tensor::random(dtype, rows, hidden, 4);
  const std::vector<float> d_weight_before = random_floats(hidden, 5);
  std::vector<float> rstd(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    rstd[static_cast<std::size_t>(r)] = static_cast<float>(reference_rstd(x, r));
  }
  CpuStream stream;
  Tensor d_residual = before;
  std::vector<float> d_weight = d_weight_before;
  std::vector<std::byte> scratch(rms_norm_backward_workspace(stream.device(), rows, hidden));
  Fp8Copy copy(DType::e5m2, rows, hidden);
  rms_norm_backward(stream, {.dy = dy.matrix(),
                             .x = x.matrix(),
                             .rstd = rstd.data(),
                             .weight = w.data(),
                             .one_plus_weight = one_plus,
                             .d_residual = d_residual.matrix(),
                             .accumulate = accumulate,
                             .d_weight = d_weight.data(),
                             .quantize = copy.into(),
                             .workspace = {scratch.data(), scratch.size()}});
  std::vector<double> dw(static_cast<std::size_t>(hidden)), dw_size(dw), xr(dw), dyr(dw), wr(dw);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double s = reference_rstd(x, r);
    for (std::int64_t c = 0; c < hidden; ++c) {
      const auto i = static_cast<std::size_t>(c);
      xr[i] = x.at(r, c);
      dyr[i] = dy.at(r, c);
      wr[i] = static_cast<double>(w[i]) + (one_plus ? 1 : 0);
      dw[i] += dyr[i] * xr[i] * s;
      dw_size[i] += std::abs(dyr[i] * xr[i] * s);
    }
    const std::vector<double> dx = reference_backward(xr, dyr, wr);
    double size = 0;  // terms of a row cancel, so errors are relative to the largest element
    for (const double d : dx) size = std::max(size, std::abs(d));
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double want = dx[static_cast<std::size_t>(c)] + (accumulate ? before.at(r, c) : 0);
      const double rough = hidden == 1 ? 1e-6 * std::abs(s * dyr[0] * wr[0]) : 0;  // only eps remains
      ASSERT_NEAR(d_residual.at(r, c), want,
                  std::abs(want) * d_residual.rounding() + 4e-6 * size + rough + 1e-7)
          << r << " " << c;
    }
  }
  for (std::size_t i = 0; i < dw.size(); ++i) {
    ASSERT_NEAR(d_weight[i] - d_weight_before[i], dw[i], 5e-7 * (dw_size[i] + 1)) << i;
  }
  EXPECT_TRUE(d_residual.margin_untouched());
  copy.expect_copy_of(d_residual);
}

TEST(RmsNorm, BackwardIsTheFloat64Derivative) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t hidden : kHiddenSizes) {
        expect_backward(rows, hidden, dtype, hidden % 2 == 0, rows != 127);
      }
    }
  }
}

TEST(RmsNorm, ManyRowsAreSummedInAtMost256Blocks) {
  CpuStream stream;
  EXPECT_EQ(rms_norm_backward_workspace(stream.device(), 0, 8), 0u);
  EXPECT_EQ(rms_norm_backward_workspace(stream.device(), 100000, 8), 256u * 8 * sizeof(float));
  expect_backward(4200, 16, DType::f32, false, true);
}

TEST(RmsNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const std::int64_t rows = 300, hidden = 257;
  const Tensor dy = Tensor::random(DType::bf16, rows, hidden, 1),
               x = Tensor::random(DType::bf16, rows, hidden, 2);
  const std::vector<float> w = random_floats(hidden, 3);
  std::vector<std::vector<float>> weights;
  std::vector<Tensor> residuals;
  for (const int threads : {1, 2, 3, 7}) {
    CpuStream stream(threads);
    Tensor out(DType::bf16, rows, hidden), d_residual = Tensor::zeros(DType::bf16, rows, hidden);
    std::vector<float> rstd(rows), d_weight(static_cast<std::size_t>(hidden));
    std::vector<std::byte> scratch(rms_norm_backward_workspace(stream.device(), rows, hidden));
    RmsNormArgs args{.residual = x.matrix(), .weight = w.data()};
    args.out = out.matrix();
    args.rstd = rstd.data();
    rms_norm(stream, args);
    RmsNormBackwardArgs back{.dy = dy.matrix(), .x = x.matrix(), .rstd = rstd.data(), .weight = w.data()};
    back.d_residual = d_residual.matrix();
    back.d_weight = d_weight.data();
    back.workspace = {scratch.data(), scratch.size()};
    rms_norm_backward(stream, back);
    weights.push_back(d_weight);
    residuals.push_back(d_residual);
    EXPECT_EQ(weights.front(), d_weight);
    EXPECT_TRUE(residuals.front() == d_residual);
  }
}

TEST(RmsNorm, WrongShapesAreRefused) {
  CpuStream stream;
  Tensor x(DType::f32, 2, 8), y(DType::f32, 2, 9);
  const std::vector<float> w(9);
  RmsNormArgs args{.residual = x.matrix(), .weight = w.data()};
  args.out = y.matrix();
  EXPECT_THROW(rms_norm(stream, args), std::logic_error);
  RmsNormBackwardArgs back{.dy = x.matrix(), .x = x.matrix(), .rstd = w.data(), .weight = w.data()};
  back.d_residual = x.matrix();
  std::vector<float> d_weight(8);
  back.d_weight = d_weight.data();  // without a workspace
  EXPECT_THROW(rms_norm_backward(stream, back), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::rms_norm_test
