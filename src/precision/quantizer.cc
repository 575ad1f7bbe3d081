#include "octet/precision/quantizer.h"

#include "octet/base/error.h"
#include "octet/ops/gemm.h"
#include "octet/ops/quantize.h"

namespace octet::precision {

Quantizer::Quantizer(Arena& arena, const std::string& name, const Recipe& recipe,
                     const std::vector<QuantizedTensor>& tensors)
    : recipe_(recipe) {
  if (!recipe.fp8()) return;
  transposes_ = ops::gemm_needs_transposed_fp8(arena.device());
  std::vector<DType> formats;
  std::vector<std::string> names;
  for (const QuantizedTensor& tensor : tensors) {
    formats.push_back(tensor.role == TensorRole::input ? recipe.forward_format : recipe.gradient_format);
    names.push_back(tensor.name);
  }
  scales_ = std::make_unique<ScaleSet>(arena, name, recipe, std::move(formats), std::move(names));
}

ops::QuantizeInto Quantizer::fuse(std::int64_t i, const Fp8Copy& copy, bool record) const {
  if (i == kPlain) return {};
  if (recipe_.kind == RecipeKind::current) return {.format = scales_->format(i), .amax = scales_->amax(i)};
  return {.format = scales_->format(i),
          .row = copy.row,
          .transposed = copy.transposed,
          .scale = scales_->scale(i),
          .amax = record ? scales_->amax(i) : nullptr};
}

ops::Operand Quantizer::finish(Stream& stream, std::int64_t i, const ops::ConstMatrix& x,
                               const Fp8Copy& copy) {
  if (i != kPlain && recipe_.kind == RecipeKind::current) {
    scales_->update_one(stream, i);
    ops::quantize(stream, x,
                  {.format = scales_->format(i),
                   .row = copy.row,
                   .transposed = copy.transposed,
                   .scale = scales_->scale(i)});
  }
  return operand(i, x, copy);
}

ops::Operand Quantizer::prepare(Stream& stream, std::int64_t i, const ops::ConstMatrix& x,
                                const Fp8Copy& copy, bool record) {
  if (i == kPlain) return operand(i, x, copy);
  if (recipe_.kind == RecipeKind::current) {
    ops::amax(stream, x, scales_->amax(i));
  } else {
    ops::quantize(stream, x, fuse(i, copy, record));
  }
  return finish(stream, i, x, copy);
}

ops::Operand Quantizer::operand(std::int64_t i, const ops::ConstMatrix& x, const Fp8Copy& copy) const {
  if (i == kPlain) {
    check(x.ld == x.cols, "an operand is dense");
    return {.data = x.data, .dtype = x.dtype, .rows = x.rows, .cols = x.cols};
  }
  return {.data = copy.row,
          .transposed = copy.transposed,
          .dtype = scales_->format(i),
          .rows = x.rows,
          .cols = x.cols,
          .scale_inv = scales_->scale_inv(i)};
}

}  // namespace octet::precision
