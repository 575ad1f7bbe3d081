// GPUs of NVIDIA as the kernel shows them, for programs that cannot ask NVIDIA's driver.
#pragma once

#include <string>
#include <vector>

namespace octet {

/// "/dev/nvidia0", "/dev/nvidia1", … in the order of their numbers. If /dev shows none, "/proc/driver/nvidia"
/// where the driver's folder exists. `root`: the folder that holds dev and proc.
std::vector<std::string> nvidia_files(const std::string& root = "/");

/// "this machine shows 2 NVIDIA GPUs (/dev/nvidia0, /dev/nvidia1)"; empty if it shows none.
std::string nvidia_files_text(const std::string& root = "/");

/// Why a program that was built without CUDA has no GPU, and what to do where the machine shows NVIDIA's.
std::string built_without_cuda_text(const std::string& root = "/");

}  // namespace octet
