// Abilities of the kinds of processors. Rooms above `comm` do not compare kinds. They read the fact that
// decides, so another kind needs one row in src/device/traits.cc and no change of these rooms.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octet {

/// Devices of kind cpu and cuda compute. A dry device allocates nothing and runs nothing: a trainer that is
/// built on it yields the memory plan for the simulated device kind.
enum class DeviceKind { cpu, cuda, dry };

/// Facts about a kind, each with its consequence for callers.
struct DeviceTraits {
  /// Name in reports. If a run can select the kind, it is the value of the key `device`.
  const char* word;
  /// Enqueued work runs. If false, memory of the device cannot be accessed.
  bool computes;
  /// Messages, prices and logs call the device a GPU. Its description begins with its number.
  bool counts_as_gpu;
  /// A link joins the memory of the device to the memory of its host. Optimizer states, and copies of states
  /// for saves, may be stored in pinned host memory. If false, both are the same memory.
  bool has_host_link;
  /// Ops use the cores of the host. Ranks divide the cores, and bits of ops may depend on the number of
  /// threads.
  bool uses_host_cores;
  /// Ops run while the host continues, so the host should enqueue work before it reads earlier results.
  bool runs_ahead;
  /// Peak rates of ops, memory and links are known. Plans estimate times, and logs report the utilisation.
  bool has_known_rates;
  /// Ranks choose a transport for device memory (peer copies, NCCL or host memory).
  bool has_transports;
  /// GEMMs in FP8 are emulated in a wider format, for every shape. If false, FP8 saves time, and GEMMs of
  /// some shapes cannot use it.
  bool emulates_fp8;
  /// dgrad in FP8 reads a transposed copy of the weight.
  bool needs_transposed_fp8;
  /// A library chooses the kernel of a GEMM by its number of rows, and times candidates at its first call.
  bool autotunes_gemms;
  /// Ops give the same bits in every run by default, and not only on reproducible streams.
  bool reproducible;
  /// Bytes that a process uses in device memory in addition to its reservations: the context of the driver,
  /// the machine code of the program, cuBLASLt, cuDNN and their code. 0 if small compared with a model.
  std::size_t library_bytes;
  /// Tokens of a forward pass that keep the device busy while it needs little scratch memory.
  std::int64_t busy_tokens;
};

/// Returns the facts about a kind.
const DeviceTraits& traits_of(DeviceKind kind);

/// The kind of the host, which every machine has.
inline constexpr DeviceKind kHostKind = DeviceKind::cpu;
/// The kind of the GPUs that runs and plans use.
inline constexpr DeviceKind kGpuKind = DeviceKind::cuda;

}  // namespace octet
