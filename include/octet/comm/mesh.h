// The ranks of a job as a grid with named axes, and the groups of ranks along each of them.
#pragma once

#include <string>
#include <vector>

namespace octet::comm {

/// Ranks of a job that work together, in ascending order; a rank's number in the group is its place in the
/// list.
struct Group {
  std::string name;        ///< for messages: of the axis
  std::vector<int> ranks;  ///< of the job
  int size() const { return static_cast<int>(ranks.size()); }
  bool operator==(const Group&) const = default;
};

struct Axis {
  std::string name;  ///< "data", "tensor", "pipeline", …
  int size = 1;
};

/// A grid of ranks. The last axis varies fastest from rank to rank, so that its groups, which talk most,
/// share a node where they fit one: of data 2 x tensor 4, ranks 0 to 3 are one tensor group, and 0 and 4 a
/// data group. Every rank is in one group along every axis, and the groups along one axis have no rank in
/// common.
class Mesh {
 public:
  /// Of all ranks of a job, with the data axis first. Throws Error (usage) where an axis has no name, one
  /// that another has, or a size below 1, and where the sizes do not multiply to `ranks`.
  Mesh(int ranks, std::vector<Axis> axes);
  /// One axis, of data.
  explicit Mesh(int ranks) : Mesh(ranks, {{.name = "data", .size = ranks}}) {}

  const std::vector<Axis>& axes() const { return axes_; }
  int ranks() const { return ranks_; }
  /// Throw Error (usage) for an axis that there is none of, naming those that there are.
  int size(const std::string& axis) const;
  /// Where a rank of the job stands along an axis, which is its number in its group there.
  int coordinate(const std::string& axis, int rank) const;
  /// That rank's group along the axis.
  Group group(const std::string& axis, int rank) const;
  /// "data 2 x tensor 4".
  std::string words() const;

 private:
  std::size_t find(const std::string& axis) const;
  /// Ranks between two that are neighbours along an axis.
  int stride(std::size_t axis) const;

  int ranks_;
  std::vector<Axis> axes_;
};

}  // namespace octet::comm
