#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/data/dataset.h"
#include "octet/data/token_cache.h"

namespace octet::data {

struct MixOptions {
  /// concat: concatenates all sets. The others take rows of the sets in turn, or by weight.
  /// interleave_under: until the first set ends.
  /// interleave_over: until all sets ended; a set that ends early starts again.
  /// interleave_once: until all sets ended, each row once.
  std::string strategy = "concat";
  std::vector<double> weights;  ///< [sets] probability weight of each set; empty: the sets take turns
  std::uint64_t seed = 42;
};

/// A row of a file: the file and the row's index.
using RowKey = std::pair<const RowReader*, std::int64_t>;

/// Several data sets as one list of rows. The order depends only on the sizes, the weights and the seed, so
/// it is equal on every rank and at every world size. A place is an index into this list.
class RowMix {
 public:
  RowMix() = default;
  /// Throws Error for weights that do not fit the sets, and for mixes of more than 2^33 rows.
  RowMix(std::vector<DataSource> sources, const MixOptions& options);

  std::int64_t size() const { return rows_; }
  const std::vector<DataSource>& sources() const { return sources_; }

  /// The location of the row at a place.
  struct Place {
    const DataSource* source;
    const RowReader* file;
    std::int64_t row;  ///< index in the file
  };
  Place at(std::int64_t place) const;
  /// All settings that affect the order and the contents of rows: files, formats, options.
  Recipe recipe() const;
  /// Chooses `count` places by `seed` and returns them in ascending order. Returns fewer if chosen places
  /// have the same row.
  std::vector<std::int64_t> choose(std::int64_t count, std::uint64_t seed) const;
  /// Returns a row number for each place, counted in the order of first appearance. Places with equal numbers
  /// have the same row. Empty if no set is interleaved or sampled with repeats.
  std::vector<std::int64_t> distinct_rows() const;

 private:
  void interleave(const MixOptions& options);

  std::vector<DataSource> sources_;
  MixOptions options_;
  std::vector<std::int64_t> begins_{0};  ///< first row of each set in the concatenation of all sets
  std::vector<std::int64_t> order_;      ///< row of the concatenation at each place; empty: in order
  std::int64_t rows_ = 0;
};

}  // namespace octet::data
