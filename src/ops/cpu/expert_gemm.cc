// GEMMs of experts, one expert after the other.
#include "octet/ops/expert_gemm.h"

#include <cstring>
#include <vector>

#include "cpu/bf16_values.h"
#include "kernels.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cpu {

void expert_gemm(const ExpertGemmArgs& args);
void gemm(const GemmArgs& args);
std::size_t gemm_workspace(const GemmArgs& args);

namespace {

Operand rows_of(Operand x, std::int64_t begin, std::int64_t count) {
  x.data =
      static_cast<const std::uint8_t*>(x.data) + static_cast<std::size_t>(begin * x.cols) * size_of(x.dtype);
  x.rows = count;
  // A copy of all rows is not a copy of these rows.
  x.transposed = nullptr;
  return x;
}
Matrix rows_of(const Matrix& m, std::int64_t begin, std::int64_t count) {
  Matrix part = m;
  part.data = static_cast<std::uint8_t*>(m.data) + static_cast<std::size_t>(begin * m.ld) * size_of(m.dtype);
  part.rows = count;
  return part;
}

}  // namespace

void expert_gemm(const ExpertGemmArgs& args) {
  const bool wgrad = args.gemm_kind == GemmKind::wgrad;
  const std::int64_t out = (wgrad ? args.d.rows : args.b.rows) / args.count;
  for (std::int64_t e = 0; e < args.count; ++e) {
    const std::int64_t begin = args.begins[e], rows = args.begins[e + 1] - begin;
    if (rows == 0 && !wgrad) continue;
    GemmArgs gemm_args{.gemm_kind = args.gemm_kind,
                       .a = rows_of(args.a, begin, rows),
                       .b = wgrad ? rows_of(args.b, begin, rows) : rows_of(args.b, e * out, out),
                       .d = wgrad ? rows_of(args.d, e * out, out) : rows_of(args.d, begin, rows),
                       .accumulate = args.accumulate};
    if (!wgrad && gemm_args.b.scale_inv != nullptr) gemm_args.b.scale_inv += e * args.weight_scale_step;
    std::vector<std::uint8_t> room(gemm_workspace(gemm_args) + 64);
    gemm_args.workspace = {room.data(), room.size()};
    gemm(gemm_args);
  }
}

// Grouped GEMMs, one expert after the other.

void grouped_gemm(const GroupedGemmArgs& args);

namespace {

/// Returns `count` rows of an operand, starting at `begin`.
Operand scaled_rows_of(Operand all, std::int64_t begin, std::int64_t count) {
  all.data = static_cast<const std::uint8_t*>(all.data) +
             static_cast<std::size_t>(begin * all.cols) * size_of(all.dtype);
  if (all.scale_inv != nullptr) all.scale_inv += begin;
  all.rows = count;
  return all;
}

/// A copy of the rows that an expert reads.
struct Gathered {
  Gathered(const GroupedGemmArgs& a, std::int64_t begin, std::int64_t count) : operand(a.x) {
    const std::size_t row_bytes = static_cast<std::size_t>(a.x.cols) * size_of(a.x.dtype);
    values.resize(static_cast<std::size_t>(count) * row_bytes);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t row = a.source == nullptr ? begin + r : a.source[begin + r];
      std::memcpy(values.data() + static_cast<std::size_t>(r) * row_bytes,
                  static_cast<const std::uint8_t*>(a.x.data) + static_cast<std::size_t>(row) * row_bytes,
                  row_bytes);
      if (a.x.scale_inv != nullptr) scales.push_back(a.x.scale_inv[row]);
    }
    operand.data = values.data();
    operand.rows = count;
    if (a.x.scale_inv != nullptr) operand.scale_inv = scales.data();
  }
  Operand operand;
  std::vector<std::uint8_t> values;
  std::vector<float> scales;
};

void multiply(const Operand& weight, const Operand& x, const Matrix& d) {
  // b_stands as in separate GEMMs per expert, so that the kernels are equal.
  GemmArgs gemm_args{.a = x, .b = weight, .d = d, .b_stands = true};
  std::vector<std::uint8_t> room(gemm_workspace(gemm_args) + 64);
  gemm_args.workspace = {room.data(), room.size()};
  gemm(gemm_args);
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& a) {
  const std::int64_t out = a.weight.rows / a.count;
  for (std::int64_t e = 0; e < a.count; ++e) {
    const std::int64_t begin = a.begins[e], rows = a.begins[e + 1] - begin;
    if (rows == 0) continue;
    const Gathered x(a, begin, rows);
    const Operand weight = scaled_rows_of(a.weight, e * out, out);
    Matrix d = a.d;
    d.data = static_cast<std::uint16_t*>(d.data) + begin * d.ld;
    d.rows = rows;
    if (!a.gated) {
      multiply(weight, x.operand, d);
      continue;
    }
    const Bf16Values both(rows, out);
    multiply(weight, x.operand, both.matrix);
    gated_activation({.gate_up = both.matrix, .activation = a.activation, .out = d});
  }
}

}  // namespace octet::ops::cpu
