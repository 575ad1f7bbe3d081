// Detects AMD GPUs. This program does not compute on them; they are detected to report this.
#pragma once

#include <string>
#include <vector>

namespace octet {

/// Returns the PCI addresses of AMD GPUs in the kernel's format, sorted: display cards and accelerators
/// without a display (Instinct). If PCI shows none, returns the compute nodes of AMD's driver: "kfd node 1".
/// `root`: the folder that holds sys.
std::vector<std::string> amd_gpus(const std::string& root = "/");

/// "2 AMD GPUs are here (0000:03:00.0, 0000:83:00.0), which this program does not use: it computes on
/// NVIDIA's GPUs, and here on the CPU"; empty if there is none.
std::string amd_gpus_text(const std::string& root = "/");

}  // namespace octet
