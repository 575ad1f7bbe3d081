// Chooses the GPU of each rank. Every rank computes the same choice from the data of all ranks before any
// rank opens a GPU: either all ranks compute on GPUs or none does. Independent of MPI and CUDA, so that every
// build can test it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/gpus.h"

namespace octet {

// A driver's answers about a GPU, and the messages for them. Separate from the driver calls, so that every
// build can test the messages.

/// Answers of the driver. CUDA versions have CUDA's format: 13000 is 13.0.
struct GpuAnswers {
  int driver = 0;      ///< newest CUDA version that the driver supports; 0: no driver
  std::string others;  ///< without a driver: text about other makers' GPUs (amd_gpus_text()); or empty
  int program = 0;     ///< CUDA version that the program was built with
  int count = 0;       ///< GPUs that the driver shows
  std::string count_error;
  int ordinal = 0;  ///< the requested GPU
  std::string name;
  int capability = 0;  ///< 10 * major + minor
  std::string properties_error;
  /// Targets that the program's code was compiled for, separated by blanks: 90a-real (machine code),
  /// 80-virtual (PTX, which drivers compile).
  std::string built_for;
};

/// bf16 GEMMs, and copies concurrent with computation, need at least Ampere.
inline constexpr int kLeastCapability = 80;
/// FP8 GEMMs need at least Ada.
inline constexpr int kLeastFp8Capability = 89;

/// Returns the compute capability of the compiled code that a GPU runs, 10 * major + minor; 0 if there is
/// none. Machine code runs on GPUs of its major version with its minor version or a later one. With a letter
/// after the number, it runs on exactly this version. PTX runs on all later GPUs, and with a letter on
/// exactly its version.
int code_for(const std::string& built_for, int capability);

/// Returns why this GPU cannot multiply FP8, without a full stop; empty if it can. `gpu`: the driver's name.
std::string why_no_fp8(const std::string& gpu, int capability);

/// Returns why the driver cannot be used; empty if it can.
std::string why_no_driver(const GpuAnswers& answers);
/// Returns why the GPU cannot be used, driver problems first, without a full stop; empty if it can.
std::string why_not(const GpuAnswers& answers);

/// Why a usable GPU was not opened.
enum class GpuRefusal { full, taken, other };
/// The message and its fix.
struct GpuRefusalText {
  std::string what, fix;
};
/// `gpu`: "GPU 0 (NVIDIA H200)"; `reason`: the driver's message.
GpuRefusalText text_of(GpuRefusal refusal, const std::string& gpu, const std::string& reason);

/// The requested device of a run.
enum class DeviceWish {
  automatic,  ///< GPUs if every rank has a GPU, else CPUs
  cpu,
  cuda
};
/// Returns the configuration's word for it: auto, cpu or cuda.
const char* name_of(DeviceWish wish);
/// Returns the wish that a word of the configuration names. Other words than cpu and cuda: automatic.
DeviceWish wish_named(std::string_view word);
/// The wish of a run that opens no GPU, even if the machine has GPUs.
inline constexpr DeviceWish kWithoutGpus = DeviceWish::cpu;
/// Returns whether one rank with this wish computes on GPU 0 of this machine, or ends without it.
bool leads_to_gpu(DeviceWish wish);

/// Data that one rank contributes.
struct RankGpus {
  int node = 0;  ///< node number; ranks of one node see the same hardware or parts of it
  std::string host;
  DeviceWish device = DeviceWish::automatic;  ///< requested by the configuration
  bool shares = false;                        ///< several ranks may compute on one GPU
  bool driver = false;                        ///< a driver is installed, even if it shows no GPU
  std::vector<GpuInfo> gpus;                  ///< GPUs that the rank could train on, in the rank's order
  std::string why_not;                        ///< why `gpus` is empty; without a full stop
};

/// The choice for all ranks.
struct GpuChoice {
  std::vector<int> ordinals;        ///< by rank, the rank's number for its GPU; empty: all compute on CPUs
  std::string why_cpu;              ///< for one warning; empty: no GPU is expected
  std::vector<std::string> doubts;  ///< for one warning each
  std::optional<Problem> problem;   ///< the job cannot start
  int concerned = 0;                ///< the rank that causes the problem; this rank throws it
};

/// With DeviceWish::automatic, all ranks compute on CPUs if any rank has no GPU. With cuda, a missing GPU is
/// a problem. Every rank of a node gets a different GPU. If all ranks of a node see the same GPUs, rank n of
/// the node gets the n-th GPU. Otherwise a rank gets a visible GPU, preferably an early entry of its list,
/// such that as many ranks as possible get a GPU. More ranks than GPUs are a problem, unless ranks share
/// GPUs: then GPUs are assigned in turn.
GpuChoice choose_gpus(const std::vector<RankGpus>& ranks);

/// Sets a problem if ranks on GPUs are to continue without lost ranks: kernels that wait for values of other
/// ranks cannot be cancelled.
void refuse_survivors_on_gpus(GpuChoice& choice);

/// Parses OCTETRUN_SHARE_GPUS: true for 1, false for 0, an empty text and null. Throws Error otherwise.
bool shares_gpus(const char* value);

/// Returns the number of ranks on `rank`'s node with GPUs at the same NUMA node, `rank` included. 0 if
/// unknown.
int ranks_at_numa_node(const std::vector<RankGpus>& ranks, const GpuChoice& choice, int rank);

/// Returns the GPU of a rank. `choice` must contain GPUs.
const GpuInfo& chosen_gpu(const std::vector<RankGpus>& ranks, const GpuChoice& choice, int rank);

}  // namespace octet
