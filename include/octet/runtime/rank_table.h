// What every rank computes on, as a table at the start of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet::runtime {

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

}  // namespace octet::runtime
