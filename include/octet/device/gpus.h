// Data about the GPUs that this process sees, collected before any GPU is opened. The ranks exchange it and
// choose (gpu_choice.h). No function here makes a context, which would take memory of every GPU.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

/// One GPU as this process sees it.
struct GpuInfo {
  int ordinal = 0;         ///< for make_cuda_device; other processes may number the same GPU differently
  std::string name;        ///< "NVIDIA H200"
  std::string uuid;        ///< "GPU-" and 32 hexadecimal digits in five groups; equal in all processes
  std::string bus;         ///< PCI address in the kernel's format: "0000:3b:00.0"; empty: unknown
  int numa_node = -1;      ///< of the nearest host memory and cores; -1: unknown
  int capability = 0;      ///< 10 * major + minor
  std::size_t memory = 0;  ///< total bytes
  std::string why_not;     ///< why this program cannot train on it, without a full stop; empty: it can
};

/// Returns the GPUs that the driver shows to this process, by ordinal. Empty without a driver. Never throws.
std::vector<GpuInfo> gpus();

/// Access between the memories of two GPUs of this process.
struct GpuPair {
  int first = 0, second = 0;    ///< ordinals
  bool peer_access = false;     ///< each can read and write the other's memory
  int performance_rank = -1;    ///< of the link, 0 is best; -1: unknown
  bool native_atomics = false;  ///< true over NVLink, false over PCI
};

/// Returns every pair of GPUs that the driver shows, once. Never throws.
std::vector<GpuPair> gpu_pairs();

/// Sets CUDA_DEVICE_MAX_CONNECTIONS, which the driver reads at its first call, to the largest number of
/// connections to a GPU. Streams that share a connection run one after the other, so communication would wait
/// for computation. Call it once, before threads and CUDA start. The notes of a configuration report a value
/// set by the user (config/rules_environment.cc).
void prepare_gpu_environment();

/// Formats the 16 bytes of a UUID: "GPU-3f2a…".
std::string uuid_text(const unsigned char* bytes);
/// Converts a PCI address from CUDA's format ("00000000:3B:00.0") to the kernel's folder name
/// ("0000:3b:00.0").
std::string kernel_bus_name(std::string_view bus);
/// Returns the NUMA node of a PCI device, or -1. `devices`: the kernel's folder of PCI devices.
int numa_node_of(const std::string& bus, const std::string& devices = "/sys/bus/pci/devices");

}  // namespace octet
