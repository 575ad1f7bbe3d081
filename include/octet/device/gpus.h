// What is known of the GPUs that this process sees before one of them is opened: the ranks tell each other
// and choose (gpu_choice.h). Nothing here makes a context, which would take memory of every GPU.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

/// One GPU as this process sees it.
struct GpuInfo {
  int ordinal = 0;         ///< for make_cuda_device; another process may give the same GPU another one
  std::string name;        ///< "NVIDIA H200"
  std::string uuid;        ///< "GPU-" and 32 hexadecimal digits in five groups: the same in all processes
  std::string bus;         ///< on PCI, as the kernel writes it: "0000:3b:00.0"; empty: unknown
  int numa_node = -1;      ///< of the host's memory and cores near it; -1: unknown
  int capability = 0;      ///< 10 * major + minor
  std::size_t memory = 0;  ///< bytes in all
  std::string why_not;     ///< why this program cannot train on it, without a full stop; empty: it can
};

/// The GPUs that the driver shows to this process, by ordinal; empty without a driver. Never throws.
std::vector<GpuInfo> gpus();

/// How two GPUs of this process reach each other's memory.
struct GpuPair {
  int first = 0, second = 0;    ///< ordinals
  bool peer_access = false;     ///< each can read and write the other's memory
  int performance_rank = -1;    ///< of the link, 0 the best; -1: unknown
  bool native_atomics = false;  ///< as over NVLink, and not over PCI
};

/// Every two GPUs that the driver shows, once. Never throws.
std::vector<GpuPair> gpu_pairs();

/// Sets what the driver reads from the environment at its first call: as many connections to a GPU as there
/// can be (CUDA_DEVICE_MAX_CONNECTIONS), since streams that share one stand behind each other, and
/// communication then behind computation. Called once, before threads and CUDA start. The notes of a
/// configuration tell the user of a value of his own (config/rules_environment.cc).
void prepare_gpu_environment();

/// "GPU-3f2a…" for the 16 bytes of a UUID.
std::string uuid_text(const unsigned char* bytes);
/// A PCI address as CUDA writes it ("00000000:3B:00.0") as the kernel names its folder ("0000:3b:00.0").
std::string kernel_bus_name(std::string_view bus);
/// The NUMA node of a PCI device, or -1. `devices` is the kernel's folder of them.
int numa_node_of(const std::string& bus, const std::string& devices = "/sys/bus/pci/devices");

}  // namespace octet
