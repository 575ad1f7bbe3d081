#include "layers/work.h"

namespace octet::model {

std::vector<Operation> products_of(const LinearLayer& layer, std::int64_t tokens,
                                   const Repeats& forward_again) {
  const double flops =
      2.0 * static_cast<double>(tokens) * static_cast<double>(layer.rows) * static_cast<double>(layer.cols);
  const auto product = [&](ops::Product kind, std::int64_t m, std::int64_t n, std::int64_t k) {
    const bool forward = kind == ops::Product::forward;
    return Operation{.kind = OperationKind::product,
                     .layer = layer,
                     .product = kind,
                     .m = m,
                     .n = n,
                     .k = k,
                     .backward = !forward,
                     .flops = flops,
                     .again = forward ? forward_again : Repeats{}};
  };
  return {product(ops::Product::forward, tokens, layer.rows, layer.cols),
          product(ops::Product::dgrad, tokens, layer.cols, layer.rows),
          product(ops::Product::wgrad, layer.rows, layer.cols, tokens)};
}

}  // namespace octet::model
