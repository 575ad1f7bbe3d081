// GEMMs of experts, one expert after the other.
#include "octet/ops/expert_gemm.h"

#include <vector>

namespace octet::ops::cpu {

void expert_gemm(const ExpertGemmArgs& args);
void gemm(const GemmArgs& args);
std::size_t gemm_workspace(const GemmArgs& args);

namespace {

Operand rows_of(const ConstMatrix& m, std::int64_t begin, std::int64_t count) {
  return {.data = static_cast<const std::uint8_t*>(m.data) +
                  static_cast<std::size_t>(begin * m.ld) * size_of(m.dtype),
          .dtype = m.dtype,
          .rows = count,
          .cols = m.cols};
}
Matrix rows_of(const Matrix& m, std::int64_t begin, std::int64_t count) {
  Matrix part = m;
  part.data = static_cast<std::uint8_t*>(m.data) + static_cast<std::size_t>(begin * m.ld) * size_of(m.dtype);
  part.rows = count;
  return part;
}

}  // namespace

void expert_gemm(const ExpertGemmArgs& args) {
  const bool wgrad = args.product == Product::wgrad;
  const std::int64_t out = (wgrad ? args.d.rows : args.b.rows) / args.count;
  for (std::int64_t e = 0; e < args.count; ++e) {
    const std::int64_t begin = args.begins[e], rows = args.begins[e + 1] - begin;
    if (rows == 0 && !wgrad) continue;
    GemmArgs product{.product = args.product,
                     .a = rows_of(args.a, begin, rows),
                     .b = wgrad ? rows_of(args.b, begin, rows) : rows_of(args.b, e * out, out),
                     .d = wgrad ? rows_of(args.d, e * out, out) : rows_of(args.d, begin, rows),
                     .accumulate = args.accumulate,
                     .a_ld = args.a.ld == args.a.cols ? 0 : args.a.ld,
                     .b_ld = args.b.ld == args.b.cols ? 0 : args.b.ld};
    std::vector<std::uint8_t> room(gemm_workspace(product) + 64);
    product.workspace = {room.data(), room.size()};
    gemm(product);
  }
}

}  // namespace octet::ops::cpu
