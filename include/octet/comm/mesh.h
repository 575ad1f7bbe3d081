// The ranks of a job as a grid with named axes, and the groups of ranks along each of them.
#pragma once

#include <string>
#include <vector>

namespace octet::comm {

/// Ranks of a job that work together, in ascending order. A rank's number in the group is its index in the
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

/// A grid of ranks. The last axis varies fastest from rank to rank. Its groups communicate most, and they
/// share a node if they fit into it. For data 2 x tensor 4, ranks 0 to 3 form a tensor group, and ranks 0 and
/// 4 form a data group. Every rank is in one group along every axis. The groups along one axis are disjoint.
class Mesh {
 public:
  /// Creates a mesh of all ranks of a job, with the data axis first. Throws Error (usage) if an axis has no
  /// name, a duplicate name or a size below 1, or if the product of the sizes is not `ranks`.
  Mesh(int ranks, std::vector<Axis> axes);
  /// Creates a mesh with only a data axis.
  explicit Mesh(int ranks) : Mesh(ranks, {{.name = "data", .size = ranks}}) {}

  const std::vector<Axis>& axes() const { return axes_; }
  int ranks() const { return ranks_; }
  /// Throw Error (usage) for an unknown axis, listing the known axes.
  int size(const std::string& axis) const;
  /// Returns the coordinate of a rank of the job along an axis, which is its number in its group there.
  int coordinate(const std::string& axis, int rank) const;
  /// Returns that rank's group along the axis.
  Group group(const std::string& axis, int rank) const;
  /// Returns a description: "data 2 x tensor 4".
  std::string words() const;

 private:
  std::size_t find(const std::string& axis) const;
  /// Returns the distance in ranks between neighbours along an axis.
  int stride(std::size_t axis) const;

  int ranks_;
  std::vector<Axis> axes_;
};

}  // namespace octet::comm
