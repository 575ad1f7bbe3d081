// Detects NVIDIA GPUs from the kernel's files, for programs that cannot query NVIDIA's driver.
#pragma once

#include <string>
#include <vector>

namespace octet {

/// Returns "/dev/nvidia0", "/dev/nvidia1", … in numeric order. If /dev shows none, returns
/// "/proc/driver/nvidia" if the driver's folder exists. `root`: the folder that holds dev and proc.
std::vector<std::string> nvidia_files(const std::string& root = "/");

/// Returns "this machine shows 2 NVIDIA GPUs (/dev/nvidia0, /dev/nvidia1)"; empty if it shows none.
std::string nvidia_files_text(const std::string& root = "/");

/// Returns why a program built without CUDA has no GPU, with a fix if the machine shows NVIDIA GPUs.
std::string built_without_cuda_text(const std::string& root = "/");

}  // namespace octet
