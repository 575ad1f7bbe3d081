#include "octet/comm/mesh.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

Error refusal(const std::string& what, const std::string& expected, const std::string& found) {
  return Error(Problem{.what = what, .expected = expected, .found = found, .code = ExitCode::usage});
}

}  // namespace

Mesh::Mesh(int ranks, std::vector<Axis> axes) : ranks_(ranks), axes_(std::move(axes)) {
  const std::string found = words();
  std::int64_t product = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const Axis& axis = axes_[i];
    if (axis.name.empty()) throw refusal("an axis of a mesh has no name", "names", found);
    if (axis.size < 1) throw refusal("an axis of a mesh has no ranks", "sizes of 1 and more", found);
    if (std::ranges::count(axes_, axis.name, &Axis::name) > 1) {
      throw refusal("two axes of a mesh have one name", "a name for each axis", found);
    }
    // Below 2^62, because the previous product is at most the number of ranks.
    product *= axis.size;
    if (product > ranks_) break;
  }
  if (product != ranks_ || axes_.empty()) {
    Error error = refusal("a mesh does not fit the number of ranks",
                          "axes with sizes that multiply to " + std::to_string(ranks_) +
                              (ranks_ == 1 ? ", the only rank" : ", the number of ranks") + " of the job",
                          found);
    Problem problem = error.problem();
    problem.fix = "start another number of ranks (mpirun -np), or change an axis";
    throw Error(std::move(problem));
  }
}

std::string Mesh::words() const {
  std::string text;
  for (const Axis& axis : axes_) {
    text += (text.empty() ? "" : " x ") + axis.name + " " + std::to_string(axis.size);
  }
  return text.empty() ? "no axis" : text;
}

std::size_t Mesh::find(const std::string& axis) const {
  const auto found = std::ranges::find(axes_, axis, &Axis::name);
  if (found == axes_.end()) throw refusal("a mesh has no axis '" + axis + "'", "one of its axes", words());
  return static_cast<std::size_t>(found - axes_.begin());
}

int Mesh::stride(std::size_t axis) const {
  int stride = 1;
  for (std::size_t i = axis + 1; i < axes_.size(); ++i) stride *= axes_[i].size;
  return stride;
}

int Mesh::size(const std::string& axis) const {
  return axes_[find(axis)].size;
}

int Mesh::coordinate(const std::string& axis, int rank) const {
  check(rank >= 0 && rank < ranks_, "the rank is below the size of the mesh");
  const std::size_t at = find(axis);
  return rank / stride(at) % axes_[at].size;
}

Group Mesh::group(const std::string& axis, int rank) const {
  const int own = coordinate(axis, rank), step = stride(find(axis)), count = size(axis);
  Group group{.name = axis, .ranks = {}};
  group.ranks.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) group.ranks.push_back(rank + (i - own) * step);
  return group;
}

}  // namespace octet::comm
