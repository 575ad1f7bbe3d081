// The ranks of a job: facts about their hosts, the table of their devices, and the rates between them.
#pragma once

#include <boost/serialization/string.hpp>
#include <boost/serialization/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/device/gpu_choice.h"

namespace octet::runtime {

struct RankFacts {
  bool refuses = false;  ///< the rank cannot continue in any case
  RankGpus gpus;         ///< except the node number, which every rank knows already
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& refuses& gpus;
  }
};

}  // namespace octet::runtime

namespace boost::serialization {

template <typename Archive>
void serialize(Archive& archive, octet::GpuInfo& gpu, unsigned) {
  archive& gpu.ordinal& gpu.name& gpu.uuid& gpu.bus& gpu.numa_node& gpu.capability& gpu.memory& gpu.why_not;
}

template <typename Archive>
void serialize(Archive& archive, octet::RankGpus& rank, unsigned) {
  archive& rank.host& rank.device& rank.shares& rank.driver& rank.gpus& rank.why_not;
}

}  // namespace boost::serialization

namespace octet::runtime {

// What every rank computes on, as a table at the start of a run.

/// One rank of the table.
struct RankRow {
  int rank = 0;
  std::string host;
  std::string gpu;                     ///< "0: NVIDIA H200"
  std::string bus;                     ///< on PCI; may be empty
  int numa_node = -1;                  ///< -1: unknown
  std::int64_t free_bytes = 0;         ///< of the GPU's memory
  std::vector<std::string> more = {};  ///< a text for each of the further columns
};

/// Returns a line of headings and one line for each rank, in columns. `more` are the headings of further
/// columns. If there are very many ranks, only the first are shown, with the total number.
std::vector<std::string> rank_table(const std::vector<RankRow>& rows,
                                    const std::vector<std::string>& more = {});

// How fast every two ranks send each other bytes.

/// Pairs of `ranks` ranks in rounds, every pair once: as a round-robin tournament (the circle method), so
/// that no rank is in two pairs of a round. With `alone`, every round has one pair.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int ranks, bool alone);

/// Bytes a second that each rank of the group sends every other one, [size * size] by sender and receiver, 0
/// for itself: of messages of `bytes`, both ways at once, the best of `tries` after one that does not count.
/// Pairs send one after the other, so that none shares a link with others, where the ranks are few; else as
/// many side by side as there can be. All ranks call it, between steps, and get the same; reserves twice
/// `bytes` on the device meanwhile.
std::vector<double> pair_rates(comm::Collectives& collectives, Device& device, std::size_t bytes, int tries);

}  // namespace octet::runtime
