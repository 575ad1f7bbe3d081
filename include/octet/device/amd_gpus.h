// GPUs of AMD, on which this program does not compute: they are looked for so that it can say so.
#pragma once

#include <string>
#include <vector>

namespace octet {

/// Their PCI addresses as the kernel names them, sorted, display cards and accelerators without a display
/// (Instinct); where PCI shows none, the compute nodes of AMD's driver: "kfd node 1". `root`: where /sys
/// lies.
std::vector<std::string> amd_gpus(const std::string& root = "/");

/// "2 AMD GPUs are here (0000:03:00.0, 0000:83:00.0), which this program does not use: it computes on
/// NVIDIA's GPUs, and here on the CPU"; empty where there is none.
std::string amd_gpus_text(const std::string& root = "/");

}  // namespace octet
