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

/// A kind of GEMM of the model, as the table at the start of a run shows it.
struct AuditRow {
  std::string name;         ///< "attention q, k, v"
  std::int64_t layers = 0;  ///< how many layers have it
  std::int64_t rows = 0;    ///< of the weight [rows, cols]
  std::int64_t cols = 0;
  bool fp8 = false;    ///< should be in FP8
  std::string reason;  ///< why not in FP8; empty when it is
  /// By ops::GemmKind: how the device multiplies these shapes (ops::gemm_outcome); none if not asked.
  std::array<ops::GemmOutcome, 3> planned{};
};

/// The place of a GEMM in the model: row of the audit, and layer.
struct AuditPlace {
  std::size_t row = 0;
  std::int64_t layer = 0;
};

/// Gemms of one place and kind that came to the same.
struct AuditCount {
  std::int64_t row = 0, layer = 0;
  ops::GemmKind gemm_kind = ops::GemmKind::forward;
  ops::GemmOutcome outcome;  ///< calls: of all of them together
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

  /// Counts a GEMM that was enqueued at a planned row; nothing if it multiplied nothing.
  void count(const AuditPlace& place, ops::GemmKind gemm_kind, const ops::GemmOutcome& outcome);
  /// Adds what another rank counted.
  void add(std::span<const AuditCount> counts);
  /// All counts, by row, layer, GEMM and outcome.
  std::vector<AuditCount> counts() const;

  /// Number of GEMMs so far of one kind and format. `e4m3` and `e5m2` both mean FP8, including emulated FP8.
  /// bf16 includes decoded FP8 operands.
  std::int64_t counted(ops::GemmKind gemm_kind, DType format) const;
  std::int64_t fp8_gemms() const;
  std::int64_t gemms() const;

  /// Lines for a person, one for each row and reason of fallbacks that this function has not told before:
  /// "MLP down (dgrad, wgrad; layers 0-1): decoded into bf16, because …". Planned ones count as well.
  std::vector<std::string> take_fallbacks();

  /// One line for each kind of GEMM: name, layers, weight shape, formats of forward, dgrad and wgrad, reason.
  std::string table() const;
  /// "GEMMs in FP8: 56 of 63 (forward 28 of 31, …)", and a line for each way and reason other than FP8
  /// operands read in place.
  std::string summary() const;
  /// An array with an object for each row, pass and outcome: "product", "pass", "layers", "way", "reason"
  /// (where there is one), "a", "b" (types of the values that were multiplied), "products", "calls".
  Json to_json() const;
  /// Throws Error when the recipe is FP8 and no GEMM ran in FP8 although some ran.
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
