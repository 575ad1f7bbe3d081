#include "octet/precision/quantizer.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/gemm.h"
#include "octet/ops/quantize.h"

namespace octet::precision {

CastStatistics::CastStatistics(Arena& arena, const std::string& name, std::int64_t count)
    : device_(arena.device()), count_(count) {
  if (count == 0) return;
  seen_ = static_cast<ops::Fp8Seen*>(arena.reserve(name, bytes()));
  host_ = static_cast<ops::Fp8Seen*>(arena.reserve(name, bytes(), MemoryKind::pinned));
}

void CastStatistics::watch(Stream& stream) {
  if (count_ == 0) return;
  watching_ = true;
  device_.zero(stream, seen_, bytes());
}

void CastStatistics::collect(Stream& stream) {
  if (count_ > 0) device_.copy_to_host(stream, host_, seen_, bytes());
}

Quantizer::Quantizer(Arena& arena, const std::string& name, const Recipe& recipe,
                     const std::vector<QuantizedTensor>& tensors, const std::vector<std::string>& weights)
    : recipe_(recipe) {
  if (!recipe.fp8()) return;
  transposes_ = recipe.blocks() || (!recipe.rows() && ops::gemm_needs_transposed_fp8(arena.device()));
  for (const QuantizedTensor& tensor : tensors) {
    const std::size_t scales =
        recipe.scales_with_values() ? 1 : std::max<std::size_t>(1, tensor.parts.size());
    cast_names_.insert(cast_names_.end(), scales, tensor.name);
  }
  cast_names_.insert(cast_names_.end(), weights.begin(), weights.end());
  casts_ = std::make_unique<CastStatistics>(arena, name + "/casts", std::ssize(cast_names_));
  first_weight_ = std::ssize(cast_names_) - std::ssize(weights);
  if (recipe.scales_with_values()) return;
  std::vector<DType> formats;
  std::vector<std::string> names;
  for (const QuantizedTensor& tensor : tensors) {
    first_.push_back(static_cast<std::int64_t>(names.size()));
    parts_.push_back(tensor.parts);
    const std::size_t count = std::max<std::size_t>(1, tensor.parts.size());
    for (std::size_t part = 0; part < count; ++part) {
      formats.push_back(tensor.role == TensorRole::input ? recipe.forward_format : recipe.gradient_format);
      names.push_back(tensor.parts.empty() ? tensor.name : tensor.name + "/" + std::to_string(part));
    }
  }
  scales_ = std::make_unique<ScaleSet>(arena, name, recipe, std::move(formats), std::move(names));
}

ops::QuantizeInto Quantizer::into(std::int64_t scale, const Fp8Copy& copy, bool record) const {
  if (recipe_.kind == RecipeKind::current) {
    return {.format = scales_->format(scale), .amax = scales_->amax(scale)};
  }
  return {.format = scales_->format(scale),
          .row = copy.row,
          .transposed = copy.transposed,
          .scale = scales_->scale(scale),
          .amax = record ? scales_->amax(scale) : nullptr,
          .seen = record ? casts_->of(scale) : nullptr};
}

ops::QuantizeInto Quantizer::fuse(std::int64_t i, const Fp8Copy& copy, bool record) const {
  if (i == kPlain || in_parts(i) || recipe_.blocks()) return {};
  if (recipe_.rows()) return {.row = copy.row, .row_scale_inv = copy.scales};
  return into(scale_of(i), copy, record);
}

ops::Operand Quantizer::finish_scale(Stream& stream, std::int64_t scale, const ops::ConstMatrix& x,
                                     const Fp8Copy& copy) {
  if (scale != kPlain && recipe_.blocks()) {
    return in_blocks(stream, x, ops::Scaling::rows, copy, copy.row == nullptr ? nullptr : casts_->of(scale));
  }
  if (scale != kPlain && recipe_.kind == RecipeKind::current) {
    scales_->update_one(stream, scale);
    ops::quantize(stream, x,
                  {.format = scales_->format(scale),
                   .row = copy.row,
                   .transposed = copy.transposed,
                   .scale = scales_->scale(scale),
                   .seen = casts_->of(scale)});
  }
  return operand(scale, x, copy);
}

ops::Operand Quantizer::prepare_scale(Stream& stream, std::int64_t scale, const ops::ConstMatrix& x,
                                      const Fp8Copy& copy, bool record) {
  if (recipe_.rows()) {
    ops::block_quantize(stream,
                        {.x = x, .scaling = recipe_.scaling(), .row = copy.row, .scale_inv = copy.scales});
  } else if (recipe_.kind == RecipeKind::current) {
    ops::amax(stream, x, scales_->amax(scale));
  } else if (!recipe_.blocks()) {
    ops::quantize(stream, x, into(scale, copy, record));
  }
  return finish_scale(stream, scale, x, copy);
}

ops::Operand Quantizer::finish(Stream& stream, std::int64_t i, const ops::ConstMatrix& x,
                               const Fp8Copy& copy) {
  check(!in_parts(i), "a tensor with several scales is finished in parts");
  return finish_scale(stream, scale_of(i), x, copy);
}

std::vector<ops::Operand> Quantizer::finish_parts(Stream& stream, std::int64_t i, const ops::ConstMatrix& x,
                                                  const Fp8Copy& copy, bool record) {
  if (!in_parts(i)) return {finish(stream, i, x, copy)};
  std::vector<ops::Operand> operands;
  std::int64_t begin = 0, scale = scale_of(i);
  for (const std::int64_t cols : parts_[static_cast<std::size_t>(i)]) {
    check(begin + cols <= x.cols, "the parts of a tensor cover it");
    ops::ConstMatrix part = x;
    part.data = static_cast<const std::uint8_t*>(x.data) + static_cast<std::size_t>(begin) * size_of(x.dtype);
    part.cols = cols;
    const std::int64_t offset = x.rows * begin;
    const Fp8Copy room{.row = copy.row + offset,
                       .transposed = copy.transposed == nullptr ? nullptr : copy.transposed + offset};
    operands.push_back(prepare_scale(stream, scale++, part, room, record));
    begin += cols;
  }
  check(begin == x.cols, "the parts of a tensor cover it");
  return operands;
}

ops::Operand Quantizer::prepare(Stream& stream, std::int64_t i, const ops::ConstMatrix& x,
                                const Fp8Copy& copy, bool record) {
  if (i == kPlain) return operand(kPlain, x, copy);
  check(!in_parts(i), "a tensor with several scales is finished in parts");
  return prepare_scale(stream, scale_of(i), x, copy, record);
}

ops::Operand Quantizer::in_blocks(Stream& stream, const ops::ConstMatrix& x, ops::Scaling scaling,
                                  const Fp8Copy& copy, ops::Fp8Seen* seen) const {
  ops::block_quantize(stream,
                      {.x = x,
                       .scaling = scaling,
                       .row = copy.row,
                       .scale_inv = copy.row == nullptr ? nullptr : copy.scales,
                       .transposed = copy.transposed,
                       .transposed_scale_inv = copy.transposed == nullptr ? nullptr : copy.transposed_scales,
                       .seen = seen});
  return {.data = copy.row,
          .transposed = copy.transposed,
          .dtype = DType::e4m3,
          .rows = x.rows,
          .cols = x.cols,
          .scale_inv = copy.scales,
          .scaling = scaling,
          .transposed_scale_inv = copy.transposed_scales};
}

ops::Operand Quantizer::weight(Stream& stream, std::int64_t i, const ops::ConstMatrix& w,
                               const Fp8Copy& copy) const {
  check(recipe_.blocks(), "only block scaling makes weights at their use");
  return in_blocks(stream, w, ops::Scaling::squares, copy,
                   copy.row == nullptr || i == kPlain ? nullptr : casts_->of(first_weight_ + i));
}

std::vector<CastRow> Quantizer::cast_rows() const {
  std::vector<CastRow> rows;
  for (std::size_t i = 0; i < cast_names_.size(); ++i) {
    rows.push_back({.name = cast_names_[i], .seen = casts_->collected()[i]});
    // The scale of a block follows from its amax.
    float& scale = rows.back().seen.scale;
    if (recipe_.scales_with_values() && rows.back().seen.values > 0)
      scale = ops::block_scale(rows.back().seen.amax);
  }
  return rows;
}

ops::Operand Quantizer::operand(std::int64_t scale, const ops::ConstMatrix& x, const Fp8Copy& copy) const {
  if (scale == kPlain) {
    check(x.ld == x.cols, "an operand is dense");
    return {.data = x.data, .dtype = x.dtype, .rows = x.rows, .cols = x.cols};
  }
  if (recipe_.rows()) {
    return {.data = copy.row,
            .dtype = recipe_.forward_format,
            .rows = x.rows,
            .cols = x.cols,
            .scale_inv = copy.scales,
            .scaling = recipe_.scaling()};
  }
  return {.data = copy.row,
          .transposed = copy.transposed,
          .dtype = scales_->format(scale),
          .rows = x.rows,
          .cols = x.cols,
          .scale_inv = scales_->scale_inv(scale)};
}

}  // namespace octet::precision
