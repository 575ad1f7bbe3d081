// Data about the GPUs of this machine, collected before any GPU is opened. The ranks exchange it and choose
// (gpu_choice.h).
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

// Detects AMD GPUs. This program does not compute on them; they are detected to report this.

/// Returns the PCI addresses of AMD GPUs in the kernel's format, sorted: display cards and accelerators
/// without a display (Instinct). If PCI shows none, returns the compute nodes of AMD's driver: "kfd node 1".
/// `root`: the folder that holds sys.
std::vector<std::string> amd_gpus(const std::string& root = "/");

/// "2 AMD GPUs are here (0000:03:00.0, 0000:83:00.0), which this program does not use: it computes on
/// NVIDIA's GPUs, and here on the CPU"; empty if there is none.
std::string amd_gpus_text(const std::string& root = "/");

// Detects NVIDIA GPUs from the kernel's files, for programs that cannot query NVIDIA's driver.

/// Returns "/dev/nvidia0", "/dev/nvidia1", … in numeric order. If /dev shows none, returns
/// "/proc/driver/nvidia" if the driver's folder exists. `root`: the folder that holds dev and proc.
std::vector<std::string> nvidia_files(const std::string& root = "/");

/// Returns "this machine shows 2 NVIDIA GPUs (/dev/nvidia0, /dev/nvidia1)"; empty if it shows none.
std::string nvidia_files_text(const std::string& root = "/");

/// Returns why a program built without CUDA has no GPU, with a fix if the machine shows NVIDIA GPUs.
std::string built_without_cuda_text(const std::string& root = "/");

// Reports the links between the GPUs of a machine from NVIDIA's management library (NVML). The driver
// includes this library. It is loaded on demand.

/// Links of one GPU to other GPUs and to the host.
struct GpuPort {
  int nvlinks = 0;          ///< active links
  int nvlink_version = 0;   ///< in NVML's numbering; 0: unknown or no active link
  bool to_switch = false;   ///< some links connect to a switch, which reaches every GPU on it
  int pcie_generation = 0;  ///< highest generation of card and slot; 0: unknown
  int pcie_lanes = 0;
};

/// Links between two GPUs.
struct GpuLink {
  int first = 0, second = 0;  ///< positions in the requested list
  int nvlinks = 0;            ///< between them, directly or through a switch
  std::string pcie;           ///< where their PCIe paths meet: "a PCIe switch"; empty: unknown
};

struct GpuLinks {
  std::string why_not;         ///< why no links are known, without a full stop; empty: links are known
  std::vector<GpuPort> ports;  ///< one per requested GPU
  std::vector<GpuLink> links;  ///< every pair once
};

/// Returns the links of the GPUs with these UUIDs. Never throws. `library`: the file to load.
GpuLinks gpu_links(const std::vector<std::string>& uuids, const std::string& library = "libnvidia-ml.so.1");

}  // namespace octet
