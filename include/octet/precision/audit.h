#pragma once

#include <array>
#include <compare>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/ops/gemm.h"
#include "octet/precision/scaling.h"

namespace octet::precision {

/// A kind of GEMM of the model: a row of the table that a run logs at its start.
struct AuditRow {
  std::string name;         ///< "attention q, k, v"
  std::int64_t layers = 0;  ///< number of layers with this GEMM
  std::int64_t rows = 0;    ///< of the weight [rows, cols]
  std::int64_t cols = 0;
  bool fp8 = false;    ///< the recipe requests FP8 for it
  std::string reason;  ///< why it is not in FP8; empty if it is
  /// By ops::GemmKind: how the device multiplies these shapes (ops::gemm_outcome). none: not determined.
  std::array<ops::GemmOutcome, 3> planned{};
};

/// The place of a GEMM in the model: row of the audit, and layer.
struct AuditPlace {
  std::size_t row = 0;
  std::int64_t layer = 0;
};

/// GEMMs of one place and kind with the same outcome.
struct AuditCount {
  std::int64_t row = 0, layer = 0;
  ops::GemmKind gemm_kind = ops::GemmKind::forward;
  ops::GemmOutcome outcome;  ///< outcome.calls is the sum over these GEMMs
  std::int64_t gemms = 0;    ///< calls of ops::gemm: one per part if parts of a weight have separate scales
};

/// Compares the planned format of each GEMM with the format that ran, as ops::gemm reports it. A fallback is
/// a GEMM of an FP8 row that did not multiply FP8 operands (ops::multiplies_fp8).
class Audit {
 public:
  explicit Audit(const Recipe& recipe) : recipe_(recipe) {}

  /// Adds a row; returns its index.
  std::size_t plan(AuditRow row);
  const std::vector<AuditRow>& rows() const { return rows_; }

  /// Counts a GEMM that was enqueued at a planned row. Ignores a GEMM without elements.
  void count(const AuditPlace& place, ops::GemmKind gemm_kind, const ops::GemmOutcome& outcome);
  /// Adds the counts of another rank.
  void add(std::span<const AuditCount> counts);
  /// All counts, by row, layer, GEMM and outcome.
  std::vector<AuditCount> counts() const;

  /// Returns the number of GEMMs so far of one kind and format. `e4m3` and `e5m2` both mean FP8, including
  /// emulated FP8. bf16 includes decoded FP8 operands.
  std::int64_t counted(ops::GemmKind gemm_kind, DType format) const;
  std::int64_t fp8_gemms() const;
  std::int64_t gemms() const;

  /// Returns a line of text for each row and reason of fallbacks that earlier calls have not returned: "MLP
  /// down (dgrad, wgrad; layers 0-1): decoded into bf16, because …". Planned fallbacks count as well.
  std::vector<std::string> take_fallbacks();

  /// One line for each kind of GEMM: name, layers, weight shape, formats of forward, dgrad and wgrad, reason.
  std::string table() const;
  /// "GEMMs in FP8: 56 of 63 (forward 28 of 31, …)", and a line for each way and reason other than FP8
  /// operands read in place.
  std::string summary() const;
  /// An array with an object for each row, pass and outcome: "product", "pass", "layers", "way", "reason"
  /// (if there is one), "a", "b" (types of the values that were multiplied), "products", "calls".
  Json to_json() const;
  /// Throws Error if the recipe is FP8 and GEMMs ran, but none of them ran in FP8.
  void require_fp8() const;

 private:
  struct Key {
    std::size_t row;
    std::int64_t layer;
    ops::GemmKind gemm_kind;
    ops::GemmWay way;
    ops::GemmReason reason;
    DType a, b;
    auto operator<=>(const Key&) const = default;
  };
  struct Sum {
    std::int64_t gemms = 0, calls = 0;
  };
  /// Counts of one row and outcome: by pass, in any layer.
  struct Group;
  std::vector<Group> groups() const;

  Recipe recipe_;
  std::vector<AuditRow> rows_;
  std::map<Key, Sum> counts_;
  std::set<std::pair<std::size_t, ops::GemmReason>> told_;
};

}  // namespace octet::precision
