// GEMMs of experts, one expert after the other.
#include "octet/ops/expert_gemm.h"

#include <vector>

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

}  // namespace octet::ops::cpu
