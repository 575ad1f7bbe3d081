#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::checkpoint {

// Inspection and comparison of checkpoints, for `trainer inspect`.

struct TensorSummary : weights::TensorHeader {
  std::int64_t bytes = 0;
  std::string hash;             ///< hash of dtype, shape and values
  double l2 = 0;                ///< Euclidean norm of the finite elements
  double low = 0, high = 0;     ///< minimum and maximum of the finite elements; 0 if there are none
  std::int64_t not_finite = 0;  ///< NaNs and infinities
  std::string problem;          ///< error message if its bytes are damaged, otherwise empty
};

struct Inspection {
  std::string path;
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
  std::int64_t file_bytes = 0;
  std::string config_yaml;
  JsonMember state;
  std::vector<TensorSummary> tensors;  ///< tensors that match the filter
  std::int64_t tensors_in_all = 0;
  std::int64_t tensors_verified = 0;  ///< tensors with all bytes hashed and compared
  std::vector<std::string> problems;  ///< Error messages, in tensor order
};

/// Returns whether `name` matches. `filter` is a glob if it contains *, ? or [, otherwise a substring. ""
/// matches all.
bool matches(const std::string& name, const std::string& filter);

/// Reads and verifies the tensors that match `filter`. With `verify_all`, also hashes the others. Damaged
/// tensors are reported in the result. A damaged manifest throws Error like Checkpoint.
Inspection inspect(const std::string& path, const std::string& filter = "", bool verify_all = false);
/// Returns a table for the terminal that ends with a line on integrity. With `with_config`, includes the
/// config.
std::string render(const Inspection& inspection, bool with_config = true);
/// Returns the inspection as JSON: {path, step, world, zero_stage, bytes, integrity: {ok, verified, of,
/// problems}, state, config, tensors: [{name, dtype, shape, bytes, l2, min, max, not_finite, hash}]}.
Json to_json(const Inspection& inspection);

enum class Comparison { identical, different, other_shape, other_dtype, only_in_first, only_in_second };

struct TensorDifference {
  std::string name;
  Comparison comparison = Comparison::identical;
  std::int64_t count = 0;  ///< elements with different bits
  std::int64_t of = 0;
  double max_abs = 0;  ///< largest absolute difference; infinite if a non-finite value differs
  std::string detail;  ///< both shapes or dtypes, if they differ
};

struct Difference {
  std::string first, second;  ///< paths
  std::int64_t first_step = 0, second_step = 0;
  std::vector<TensorDifference> tensors;  ///< by name
  std::int64_t count(Comparison comparison) const;
  /// Returns whether both have the same tensors, equal in every bit.
  bool identical() const;
};

/// Compares parameters, moments and FP8 state by name, for checkpoints of any stage and world size. Tensors
/// with equal hashes count as identical without reading. Chunks with different hashes are read and verified.
/// Throws Error for a damaged checkpoint.
Difference diff(const std::string& first, const std::string& second, const std::string& filter = "");
std::string render(const Difference& difference);
Json to_json(const Difference& difference);

}  // namespace octet::checkpoint
