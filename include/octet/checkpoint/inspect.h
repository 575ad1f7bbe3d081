// What is inside a checkpoint, and whether two hold the same training state: the functions behind
// `trainer inspect`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::checkpoint {

struct TensorSummary : TensorHeader {
  std::int64_t bytes = 0;
  std::string hash;             ///< of dtype, shape and values
  double l2 = 0;                ///< Euclidean norm of the finite elements
  double low = 0, high = 0;     ///< of the finite elements; 0 when there are none
  std::int64_t not_finite = 0;  ///< NaNs and infinities
  std::string problem;          ///< what is wrong with its bytes; empty when they hold
};

struct Inspection {
  std::string path;
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
  std::int64_t file_bytes = 0;
  std::string config_yaml;
  JsonMember state;
  std::vector<TensorSummary> tensors;  ///< those that the filter lets through
  std::int64_t tensors_in_all = 0;
  std::int64_t tensors_verified = 0;  ///< whose every byte was hashed and compared
  std::vector<std::string> problems;  ///< Error messages, tensor by tensor
};

/// True when `name` matches: a glob where `filter` holds *, ? or [, else a part of the name; "" matches all.
bool matches(const std::string& name, const std::string& filter);

/// Reads (and thereby verifies) the tensors that match `filter`; with `verify_all` also hashes the others.
/// Damaged data are reported, not thrown; a manifest that does not hold throws Error as Checkpoint does.
Inspection inspect(const std::string& path, const std::string& filter = "", bool verify_all = false);
/// A table for the terminal, ending with a line on integrity. With `with_config`, the config too.
std::string render(const Inspection& inspection, bool with_config = true);
/// The same as JSON: {path, step, world, zero_stage, bytes, integrity: {ok, verified, of, problems}, state,
/// config, tensors: [{name, dtype, shape, bytes, l2, min, max, not_finite, hash}]}.
Json to_json(const Inspection& inspection);

enum class Comparison { identical, different, other_shape, other_dtype, only_in_first, only_in_second };

struct TensorDifference {
  std::string name;
  Comparison comparison = Comparison::identical;
  std::int64_t count = 0;  ///< elements whose bits differ
  std::int64_t of = 0;
  double max_abs = 0;  ///< largest absolute difference; infinite when a value that is not finite differs
  std::string detail;  ///< both shapes or dtypes, where they differ
};

struct Difference {
  std::string first, second;  ///< paths
  std::int64_t first_step = 0, second_step = 0;
  std::vector<TensorDifference> tensors;  ///< by name
  std::int64_t count(Comparison comparison) const;
  /// All tensors of both are there and agree in every bit.
  bool identical() const;
};

/// Compares parameters, moments and FP8 state by name, whatever stage or world size wrote them. Equal hashes
/// are trusted; chunks whose hashes differ are read and verified. Throws Error for a checkpoint that does not
/// hold.
Difference diff(const std::string& first, const std::string& second, const std::string& filter = "");
std::string render(const Difference& difference);
Json to_json(const Difference& difference);

}  // namespace octet::checkpoint
