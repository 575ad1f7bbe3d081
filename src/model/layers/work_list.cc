#include "layers/work_list.h"

namespace octet::model {

std::vector<Operation> gemms_of(const LinearLayer& layer, std::int64_t tokens, const Repeats& forward_again) {
  const double flops =
      2.0 * static_cast<double>(tokens) * static_cast<double>(layer.rows) * static_cast<double>(layer.cols);
  const auto operation = [&](ops::GemmKind kind, std::int64_t m, std::int64_t n, std::int64_t k) {
    const bool forward = kind == ops::GemmKind::forward;
    return Operation{.kind = OperationKind::gemm,
                     .layer = layer,
                     .gemm_kind = kind,
                     .m = m,
                     .n = n,
                     .k = k,
                     .backward = !forward,
                     .flops = flops,
                     .again = forward ? forward_again : Repeats{}};
  };
  return {operation(ops::GemmKind::forward, tokens, layer.rows, layer.cols),
          operation(ops::GemmKind::dgrad, tokens, layer.cols, layer.rows),
          operation(ops::GemmKind::wgrad, layer.rows, layer.cols, tokens)};
}

}  // namespace octet::model
