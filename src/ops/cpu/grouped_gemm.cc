// The products of one expert after the other.
#include "octet/ops/grouped_gemm.h"

#include <algorithm>
#include <vector>

#include "cpu/bf16_values.h"
#include "kernels.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cpu {

void grouped_gemm(const GroupedGemmArgs& args);
void gemm(const GemmArgs& args);
std::size_t gemm_workspace(const GemmArgs& args);

namespace {

void multiply(const Operand& weight, const ConstMatrix& x, const Matrix& d) {
  GemmArgs product{
      .a = {.data = x.data, .dtype = DType::bf16, .rows = x.rows, .cols = x.cols}, .b = weight, .d = d};
  std::vector<std::uint8_t> room(gemm_workspace(product) + 64);
  product.workspace = {room.data(), room.size()};
  gemm(product);
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& a) {
  const std::int64_t out = a.weight.rows / a.count;
  const auto row_of = [](const ConstMatrix& m, std::int64_t row) {
    return static_cast<const std::uint16_t*>(m.data) + row * m.ld;
  };
  for (std::int64_t e = 0; e < a.count; ++e) {
    const std::int64_t begin = a.begins[e], rows = a.begins[e + 1] - begin;
    if (rows == 0) continue;
    const Bf16Values x(rows, a.x.cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::uint16_t* from = row_of(a.x, a.source == nullptr ? begin + r : a.source[begin + r]);
      std::copy_n(from, a.x.cols, static_cast<std::uint16_t*>(x.matrix.data) + r * a.x.cols);
    }
    Operand weight = a.weight;
    weight.data = static_cast<const std::uint16_t*>(weight.data) + e * out * weight.cols;
    weight.rows = out;
    Matrix d = a.d;
    d.data = static_cast<std::uint16_t*>(d.data) + begin * d.ld;
    d.rows = rows;
    if (!a.gated) {
      multiply(weight, x.matrix, d);
      continue;
    }
    const Bf16Values both(rows, out);
    multiply(weight, x.matrix, both.matrix);
    gated_activation({.gate_up = both.matrix, .activation = a.activation, .out = d});
  }
}

}  // namespace octet::ops::cpu
