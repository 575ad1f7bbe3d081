// Reports the links between the GPUs of a machine from NVIDIA's management library (NVML). The driver
// includes this library. It is loaded on demand.
#pragma once

#include <string>
#include <vector>

namespace octet {

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
