// GEMMs of the adapters of experts, one expert after the other.
#include "octet/ops/expert_low_rank.h"

#include <vector>

namespace octet::ops::cpu {

void expert_low_rank(const ExpertLowRankArgs& args);
void gemm(const GemmArgs& args);
std::size_t gemm_workspace(const GemmArgs& args);

namespace {

/// Returns `m`, moved by a number of elements, with another number of rows.
template <class Any>
Any moved(Any m, std::int64_t elements, std::int64_t rows) {
  using Byte = std::conditional_t<std::is_same_v<Any, ConstMatrix>, const std::uint8_t, std::uint8_t>;
  m.data = static_cast<Byte*>(m.data) + elements * static_cast<std::int64_t>(size_of(m.dtype));
  m.rows = rows;
  return m;
}

Operand operand_of(const ConstMatrix& m) {
  return {.data = m.data, .dtype = m.dtype, .rows = m.rows, .cols = m.cols};
}

std::int64_t pitch_of(const ConstMatrix& m) {
  return m.ld == m.cols ? 0 : m.ld;
}

}  // namespace

void expert_low_rank(const ExpertLowRankArgs& args) {
  const bool wgrad = args.gemm_kind == GemmKind::wgrad;
  for (std::int64_t e = 0; e < args.count; ++e) {
    const std::int64_t begin = args.begins[e], rows = args.begins[e + 1] - begin;
    if (rows == 0 && !wgrad) continue;
    GemmArgs gemm_args{
        .gemm_kind = args.gemm_kind,
        .a = operand_of(moved(args.a, begin * args.a.ld, rows)),
        .b = operand_of(wgrad ? moved(args.b, begin * args.b.ld, rows)
                              : moved(args.b, e * args.step, args.b.rows)),
        .d = wgrad ? moved(args.d, e * args.step, args.d.rows) : moved(args.d, begin * args.d.ld, rows),
        .accumulate = args.accumulate,
        .factor = args.factor,
        .a_ld = pitch_of(args.a),
        .b_ld = pitch_of(args.b)};
    std::vector<std::uint8_t> room(gemm_workspace(gemm_args) + 64);
    gemm_args.workspace = {room.data(), room.size()};
    gemm(gemm_args);
  }
}

}  // namespace octet::ops::cpu
