#pragma once

#include <array>
#include <string>
#include <vector>

#include "octet/ops/gemm.h"
#include "octet/precision/scaling.h"

namespace octet::precision {

/// A kind of product of the model, as the table at the start of a run shows it.
struct AuditRow {
  std::string name;         ///< "attention q, k, v"
  std::int64_t layers = 0;  ///< how many layers have it
  std::int64_t rows = 0;    ///< of the weight [rows, cols]
  std::int64_t cols = 0;
  bool fp8 = false;    ///< planned in FP8
  std::string reason;  ///< why not in FP8; empty when it is
};

/// What was planned in which format, and what really ran. Counting is one addition a product.
class Audit {
 public:
  explicit Audit(const Recipe& recipe) : recipe_(recipe) {}

  void plan(AuditRow row) { rows_.push_back(std::move(row)); }
  const std::vector<AuditRow>& rows() const { return rows_; }

  /// Counts a product that is being enqueued.
  void count(ops::Product product, const ops::Operand& a, const ops::Operand& b) {
    const bool fp8 = is_fp8(a.dtype) && is_fp8(b.dtype);
    const int format = fp8 ? 2 : a.dtype == DType::bf16 ? 1 : 0;
    ++counts_[static_cast<std::size_t>(format)][static_cast<std::size_t>(product)];
  }
  /// Products counted so far of one kind and format; `e4m3` and `e5m2` both mean FP8.
  std::int64_t counted(ops::Product product, DType format) const;
  std::int64_t fp8_products() const;
  std::int64_t products() const;

  /// One line a kind of product: name, layers, weight shape, formats of forward, dgrad and wgrad, reason.
  std::string table() const;
  /// One line: "FP8 ran 56 of 63 products (forward 28, dgrad 28, ...)".
  std::string summary() const;
  /// Throws Error when the recipe is FP8 and no product ran in FP8 although some ran.
  void require_fp8() const;

 private:
  Recipe recipe_;
  std::vector<AuditRow> rows_;
  std::array<std::array<std::int64_t, 3>, 3> counts_{};  ///< [f32, bf16, FP8][product]
};

}  // namespace octet::precision
