// How the GPUs of a machine are joined, as NVIDIA's management library (NVML) tells. It comes with the driver
// and is loaded when it is asked for.
#pragma once

#include <string>
#include <vector>

namespace octet {

/// What joins one GPU to others and to the host.
struct GpuPort {
  int nvlinks = 0;          ///< that are up
  int nvlink_version = 0;   ///< as NVML counts; 0: unknown, or none are up
  bool to_switch = false;   ///< some of them go to a switch, by which it reaches every GPU on it
  int pcie_generation = 0;  ///< the most that card and slot can do; 0: unknown
  int pcie_lanes = 0;
};

/// What joins two GPUs.
struct GpuLink {
  int first = 0, second = 0;  ///< positions in the list that was asked for
  int nvlinks = 0;            ///< between them, directly or through a switch
  std::string pcie;  ///< where their ways to each other over PCIe meet: "a PCIe switch"; empty: unknown
};

struct GpuLinks {
  std::string why_not;         ///< why nothing is known, without a full stop; empty: it is known
  std::vector<GpuPort> ports;  ///< one for each GPU that was asked for
  std::vector<GpuLink> links;  ///< every two, once
};

/// Asks for GPUs by their UUIDs. Never throws. `library`: the file to load.
GpuLinks gpu_links(const std::vector<std::string>& uuids, const std::string& library = "libnvidia-ml.so.1");

}  // namespace octet
