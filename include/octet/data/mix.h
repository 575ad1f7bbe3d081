#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/data/dataset.h"
#include "octet/data/token_cache.h"

namespace octet::data {

struct MixOptions {
  /// concat: all sets one behind the other. interleave_under: in turn (or by weight) until the first set has
  /// run out; interleave_over: until all have, those that end early beginning again; interleave_once: until
  /// all have, each row once.
  std::string strategy = "concat";
  std::vector<double> weights;  ///< a set's share of the rows; none: the sets take turns
  std::uint64_t seed = 42;
};

/// A row of a file.
using RowKey = std::pair<const RowReader*, std::int64_t>;

/// Several data sets as one list of rows. Which row stands where follows from the sizes, the weights and the
/// seed alone: it is the same on every rank and at every world size.
class RowMix {
 public:
  RowMix() = default;
  /// Throws Error for weights that do not fit the sets and for mixes of more than 2^33 rows.
  RowMix(std::vector<DataSource> sources, const MixOptions& options);

  std::int64_t size() const { return rows_; }
  const std::vector<DataSource>& sources() const { return sources_; }

  /// Where a place's row is.
  struct Place {
    const DataSource* source;
    const RowReader* file;
    std::int64_t row;  ///< in the file
  };
  Place at(std::int64_t place) const;
  /// All that decides which row stands where and how it is read: files, formats, options.
  Recipe recipe() const;
  /// `count` of the rows, chosen by `seed`: a place of each. Fewer than count when chosen places hold one
  /// row.
  std::vector<std::int64_t> choose(std::int64_t count, std::uint64_t seed) const;
  /// For each place the number of its row, counted in the order of first appearance: places with one number
  /// are one row, repeated. Empty when no row is repeated.
  std::vector<std::int64_t> distinct_rows() const;

 private:
  void interleave(const MixOptions& options);

  std::vector<DataSource> sources_;
  MixOptions options_;
  std::vector<std::int64_t> begins_{0};  ///< of each set where they stand one behind the other
  std::vector<std::int64_t> order_;      ///< which of those rows stands at each place; empty: as they stand
  std::int64_t rows_ = 0;
};

}  // namespace octet::data
