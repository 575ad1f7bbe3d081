#include "octet/precision/audit.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::precision {
namespace {

constexpr std::size_t kFp8 = 2;

std::size_t format_index(DType format) {
  return is_fp8(format) ? kFp8 : format == DType::bf16 ? 1 : 0;
}

std::string short_name(DType format) {
  switch (format) {
    case DType::e4m3:
      return "E4M3";
    case DType::e5m2:
      return "E5M2";
    default:
      return std::string(name_of(format));
  }
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

std::int64_t Audit::counted(ops::Product product, DType format) const {
  return counts_[format_index(format)][static_cast<std::size_t>(product)];
}

std::int64_t Audit::fp8_products() const {
  return counts_[kFp8][0] + counts_[kFp8][1] + counts_[kFp8][2];
}

std::int64_t Audit::products() const {
  std::int64_t sum = 0;
  for (const auto& of_format : counts_) {
    for (const std::int64_t n : of_format) sum += n;
  }
  return sum;
}

std::string Audit::table() const {
  std::size_t name_width = 7, shape_width = 6;
  const auto shape = [](const AuditRow& row) {
    return std::to_string(row.rows) + " x " + std::to_string(row.cols);
  };
  for (const AuditRow& row : rows_) {
    name_width = std::max(name_width, row.name.size());
    shape_width = std::max(shape_width, shape(row).size());
  }
  const std::string compute = short_name(recipe_.compute);
  const std::string x = short_name(recipe_.forward_format), g = short_name(recipe_.gradient_format);
  const auto line = [&](const std::string& name, const std::string& layers, const std::string& size,
                        const std::string& forward, const std::string& dgrad, const std::string& wgrad,
                        const std::string& reason) {
    std::string text = padded(name, name_width) + "  " + padded(layers, 6) + "  " +
                       padded(size, shape_width) + "  " + padded(forward, 11) + "  " + padded(dgrad, 11) +
                       "  " + padded(wgrad, 11) + "  " + reason;
    text.resize(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = line("product", "layers", "weight", "forward", "dgrad", "wgrad", "");
  for (const AuditRow& row : rows_) {
    text += line(row.name, std::to_string(row.layers), shape(row), row.fp8 ? x + " x " + x : compute,
                 row.fp8 ? g + " x " + x : compute, row.fp8 ? g + " x " + x : compute, row.reason);
  }
  if (recipe_.fast_gradients) {
    text += "fp8_fast_accumulation: all, so that on a GPU FP8 sums of gradients, too, keep about 14 bits\n";
  }
  return text;
}

std::string Audit::summary() const {
  const auto of = [&](ops::Product p) {
    return with_commas(counted(p, DType::e4m3)) + " of " +
           with_commas(counted(p, DType::e4m3) + counted(p, DType::bf16) + counted(p, DType::f32));
  };
  return "products in FP8: " + with_commas(fp8_products()) + " of " + with_commas(products()) + " (forward " +
         of(ops::Product::forward) + ", dgrad " + of(ops::Product::dgrad) + ", wgrad " +
         of(ops::Product::wgrad) + ")";
}

void Audit::require_fp8() const {
  if (!recipe_.fp8() || products() == 0 || fp8_products() > 0) return;
  throw Error({.what = "FP8 was asked for and no product ran in FP8",
               .expected = "FP8 products in the linear layers",
               .found = summary() + "\n" + table(),
               .fix = "set fp8: false, or see the reasons in the table"});
}

}  // namespace octet::precision
