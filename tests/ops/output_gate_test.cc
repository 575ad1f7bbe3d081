#include "octet/ops/output_gate.h"

#include "ops/tensor.h"

namespace octet::ops::output_gate_test {
namespace {

const Heads kHeads[] = {{1, 1, 1}, {4, 2, 8}, {3, 1, 72}, {2, 2, 700}};

std::int64_t width_of(const Heads& h) {
  return h.qkv_width() + h.q_heads * h.head_dim;
}
std::int64_t gate_of(const Heads& h, std::int64_t column) {
  return (2 * (column / h.head_dim) + 1) * h.head_dim + column % h.head_dim;
}
double sigmoid64(double x) {
  return 1 / (1 + std::exp(-x));
}
Tensor filled(DType dtype, std::int64_t rows, std::int64_t cols, double value) {
  Tensor t(dtype, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) t.set(r, c, value);
  }
  return t;
}

TEST(OutputGate, QueriesKeysAndValuesAreTakenAndPutBack) {
  for (const DType dtype : kComputeTypes) {
    for (const Heads& heads : kHeads) {
      const std::int64_t rows = 5, queries = heads.q_heads * heads.head_dim;
      const Tensor projected = Tensor::random(dtype, rows, width_of(heads), 1);
      Tensor qkv(dtype, rows, heads.qkv_width()), back = filled(dtype, rows, width_of(heads), 77);
      CpuStream stream;
      take_output_gates(stream, {.projected = projected.matrix(), .heads = heads, .qkv = qkv.matrix()});
      put_output_gates(stream, {.d_qkv = qkv.matrix(), .heads = heads, .d_projected = back.matrix()});
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < qkv.cols(); ++c) {
          const std::int64_t from = c < queries ? gate_of(heads, c) - heads.head_dim : c + queries;
          ASSERT_EQ(qkv.at(r, c), projected.at(r, from));
          ASSERT_EQ(back.at(r, from), projected.at(r, from));
        }
        for (std::int64_t c = 0; c < queries; ++c) ASSERT_EQ(back.at(r, gate_of(heads, c)), 77);
      }
      EXPECT_TRUE(qkv.margin_untouched() && back.margin_untouched());
    }
  }
}

void expect_both(DType dtype, const Heads& heads, std::int64_t rows, bool in_place) {
  const std::int64_t width = heads.q_heads * heads.head_dim;
  const Tensor projected = Tensor::random(dtype, rows, width_of(heads), 1, 2),
               attended = Tensor::random(dtype, rows, width, 2),
               d_out = Tensor::random(dtype, rows, width, 3);
  Tensor out(dtype, rows, width), d_attended(dtype, rows, width),
      kept = attended, d_kept = d_out, d_projected = filled(dtype, rows, width_of(heads), 77);
  Fp8Copy copy(DType::e4m3, rows, width);
  CpuStream stream;
  output_gate(stream, {.attended = in_place ? kept.matrix() : attended.matrix(),
                       .projected = projected.matrix(),
                       .heads = heads,
                       .out = in_place ? kept.matrix() : out.matrix(),
                       .quantize = copy.into()});
  output_gate_backward(stream, {.attended = attended.matrix(),
                                .projected = projected.matrix(),
                                .d_out = in_place ? d_kept.matrix() : d_out.matrix(),
                                .heads = heads,
                                .d_attended = in_place ? d_kept.matrix() : d_attended.matrix(),
                                .d_projected = d_projected.matrix()});
  const Tensor &y = in_place ? kept : out, &d = in_place ? d_kept : d_attended;
  std::int64_t written = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double s = sigmoid64(projected.at(r, gate_of(heads, c))), x = attended.at(r, c),
                   g = d_out.at(r, c);
      ASSERT_NEAR(y.at(r, c), x * s, std::abs(x * s) * y.rounding() + 1e-30);
      ASSERT_NEAR(d.at(r, c), g * s, std::abs(g * s) * d.rounding() + 1e-30);
      const double d_gate = g * x * s * (1 - s);
      ASSERT_NEAR(d_projected.at(r, gate_of(heads, c)), d_gate,
                  std::abs(d_gate) * d.rounding() + 1e-6 * std::abs(g * x * s));
    }
    for (std::int64_t c = 0; c < d_projected.cols(); ++c) written += d_projected.at(r, c) != 77 ? 1 : 0;
  }
  EXPECT_EQ(written, rows * width);
  EXPECT_TRUE(y.margin_untouched() && d.margin_untouched() && d_projected.margin_untouched());
  copy.expect_copy_of(y);
}

TEST(OutputGate, ForwardAndBackwardAreTheFloat64Ones) {
  for (const DType dtype : kComputeTypes) {
    for (const Heads& heads : kHeads) {
      for (const std::int64_t rows : {0, 1, 65}) expect_both(dtype, heads, rows, rows == 1);
    }
  }
}

TEST(OutputGate, TheFp8CopyAloneHasTheSameBits) {
  const Heads heads = kHeads[1];
  const Tensor projected = Tensor::random(DType::bf16, 6, width_of(heads), 1),
               attended = Tensor::random(DType::bf16, 6, 32, 2);
  Tensor out(DType::bf16, 6, 32);
  Fp8Copy with(DType::e4m3, 6, 32), alone(DType::e4m3, 6, 32);
  CpuStream stream;
  OutputGateArgs args{.attended = attended.matrix(),
                      .projected = projected.matrix(),
                      .heads = heads,
                      .out = out.matrix(),
                      .quantize = with.into()};
  output_gate(stream, args);
  args.out = {};
  args.quantize = alone.into();
  output_gate(stream, args);
  EXPECT_EQ(with.row, alone.row);
  EXPECT_EQ(with.transposed, alone.transposed);
}

TEST(OutputGate, WrongArgumentsAreRefused) {
  const Heads heads{4, 2, 8};
  const Tensor projected = Tensor::random(DType::f32, 3, 96, 1), x = Tensor::random(DType::f32, 3, 32, 2);
  Tensor out(DType::f32, 3, 32), qkv(DType::f32, 3, 64), d_projected(DType::f32, 3, 96);
  CpuStream stream;
  const OutputGateArgs good{
      .attended = x.matrix(), .projected = projected.matrix(), .heads = heads, .out = out.matrix()};
  output_gate(stream, good);
  const auto refused = [&](auto change) {
    OutputGateArgs args = good;
    change(args);
    EXPECT_THROW(output_gate(stream, args), std::logic_error);
  };
  refused([](auto& a) { a.heads.kv_heads = 3; });
  refused([](auto& a) { a.heads.head_dim = 4; });
  refused([](auto& a) { a.attended.cols = 31; });
  refused([](auto& a) { a.attended.rows = 2; });
  refused([](auto& a) { a.out = {}; });
  refused([](auto& a) { a.quantize.row = reinterpret_cast<std::uint8_t*>(a.out.data); });
  OutputGateBackwardArgs back{.attended = x.matrix(),
                              .projected = projected.matrix(),
                              .d_out = x.matrix(),
                              .heads = heads,
                              .d_attended = out.matrix(),
                              .d_projected = d_projected.matrix()};
  output_gate_backward(stream, back);
  back.d_projected.rows = 2;
  EXPECT_THROW(output_gate_backward(stream, back), std::logic_error);
  TakeOutputGatesArgs take{.projected = projected.matrix(), .heads = heads, .qkv = qkv.matrix()};
  take.qkv.cols = 63;
  EXPECT_THROW(take_output_gates(stream, take), std::logic_error);
  PutOutputGatesArgs put{.d_qkv = qkv.matrix(), .heads = heads, .d_projected = d_projected.matrix()};
  put.d_projected.cols = 95;
  EXPECT_THROW(put_output_gates(stream, put), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::output_gate_test
