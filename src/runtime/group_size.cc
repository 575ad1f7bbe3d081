#include "octet/runtime/group_size.h"

#include <algorithm>
#include <string>

#include "octet/base/error.h"

namespace octet::runtime {
namespace {

/// Returns the number of ranks of every host. Returns 0 if hosts differ, or if their ranks are not adjacent.
std::int64_t ranks_of_host(const comm::Place& place) {
  const auto ranks = std::ranges::count(place.node_of, place.node_of.front());
  if (place.size % ranks != 0) return 0;
  for (std::size_t rank = 0; rank < place.node_of.size(); ++rank) {
    const auto first = rank / static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
    if (place.node_of[rank] != place.node_of[first]) return 0;
  }
  return ranks * place.nodes == place.size ? ranks : 0;
}

[[noreturn]] void refuse_group(const std::string& expected, const std::string& found) {
  throw Error({.what = "zero_group_size does not fit the run",
               .expected = expected,
               .found = found,
               .where = "zero_group_size",
               .fix = "change zero_group_size or the number of ranks (mpirun -np)",
               .code = ExitCode::usage});
}

}  // namespace

std::vector<std::int64_t> automatic_groups(const comm::Place& place, const store::Options& options) {
  const std::int64_t of_host = ranks_of_host(place);
  const std::int64_t least = of_host > 0 ? of_host : 2, step = of_host > 0 ? of_host : 1;
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = least; size < place.size; size += step) {
    if (place.size % size == 0 && store::keeps_order(options, size, place.size)) sizes.push_back(size);
  }
  sizes.push_back(place.size);
  return sizes;
}

int group_of(comm::Channel& job, std::int64_t wish, const store::Options& options) {
  const comm::Place& place = job.place();
  if (wish == kGroupOfAll || options.stage == 0 || place.size == 1) return 0;
  if (wish == kAutomaticGroup) return static_cast<int>(automatic_groups(place, options).front());
  const std::int64_t size = wish == kGroupOfNode ? ranks_of_host(place) : wish;
  job.together([&] {
    if (size == 0)
      refuse_group("hosts with equal numbers of adjacent ranks for zero_group_size: node",
                   std::to_string(place.size) + " ranks on " + std::to_string(place.nodes) + " hosts");
    const std::string found = "zero_group_size " + std::to_string(size);
    if (size < 0 || place.size % size != 0)
      refuse_group("a divisor of the number of ranks, " + std::to_string(place.size), found);
    if (!store::keeps_order(options, size, place.size))
      refuse_group(
          "with deterministic: strict, a group with 2, 4, 8, ... micro-batches in a step, or all ranks",
          found + " with " + std::to_string(options.micro_batches) + " micro-batches on each rank");
  });
  return static_cast<int>(size);
}

}  // namespace octet::runtime
