// Which GPU each rank computes on: decided from what all ranks say of themselves, by every rank alike and
// before any of them opens one, since either all compute on GPUs or none does. Apart from MPI and CUDA, so
// that every build can test it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/gpus.h"

namespace octet {

/// On what a run is told to compute.
enum class DeviceWish {
  automatic,  ///< on GPUs where every rank has one, else on CPUs
  cpu,
  cuda
};
/// The word of a configuration: auto, cpu or cuda.
const char* name_of(DeviceWish wish);

/// What one rank says of itself.
struct RankGpus {
  int node = 0;  ///< nodes are numbered; ranks of one node see the same hardware, or parts of it
  std::string host;
  DeviceWish device = DeviceWish::automatic;  ///< what the configuration asks for
  bool shares = false;                        ///< several ranks may compute on one GPU
  bool driver = false;                        ///< there is one, whatever it shows
  std::vector<GpuInfo> gpus;                  ///< those that the rank could train on, in its own order
  std::string why_not;                        ///< there are none; without a full stop
};

/// What the ranks do.
struct GpuChoice {
  std::vector<int> ordinals;  ///< by rank, each the rank's own number of its GPU; empty: all compute on CPUs
  std::string why_cpu;        ///< for one warning; empty: nobody expects a GPU
  std::vector<std::string> doubts;  ///< for one warning each
  std::optional<Problem> problem;   ///< the job cannot start
  int concerned = 0;                ///< the rank that the problem is about, which is the one to throw it
};

/// With DeviceWish::automatic all ranks compute on CPUs where one of them has no GPU; with cuda that is a
/// problem. On a node every rank takes another GPU: the one of its number where all see the same GPUs, else
/// one of those that it sees, the earlier ones of its list first, so that none is left without. More ranks
/// than GPUs are a problem, unless ranks share: then they are dealt out in turn.
GpuChoice choose_gpus(const std::vector<RankGpus>& ranks);

/// Makes it a problem of the choice that ranks on GPUs are to go on without those that are lost: kernels that
/// wait for each other's words cannot be called back.
void refuse_survivors_on_gpus(GpuChoice& choice);

/// What OCTETRUN_SHARE_GPUS says: true for 1, false for 0, for nothing and for null. Throws Error otherwise.
bool shares_gpus(const char* value);

/// Ranks whose GPUs lie at the NUMA node of `rank`'s, on its node, itself included; 0 where that is unknown.
int ranks_at_numa_node(const std::vector<RankGpus>& ranks, const GpuChoice& choice, int rank);

/// The GPU that a rank computes on. There is a choice.
const GpuInfo& chosen_gpu(const std::vector<RankGpus>& ranks, const GpuChoice& choice, int rank);

}  // namespace octet
