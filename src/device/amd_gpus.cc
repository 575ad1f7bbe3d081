#include "octet/device/amd_gpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace octet {
namespace {

namespace fs = std::filesystem;

std::string first_word(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code none;  // a missing folder counts as empty
  for (const auto& entry : fs::directory_iterator(folder, none)) all.push_back(entry.path());
  std::ranges::sort(all);
  return all;
}

// PCI classes: 03 are displays and 3D controllers, 1200 are processing accelerators.
bool is_gpu_of_amd(const fs::path& device) {
  if (first_word(device / "vendor") != "0x1002") return false;
  const std::string kind = first_word(device / "class");
  return kind.starts_with("0x03") || kind.starts_with("0x1200");
}

// A topology node of the driver with SIMD units is a GPU; other nodes are CPUs.
bool has_simd(const fs::path& node) {
  std::ifstream in(node / "properties");
  std::string key;
  for (long long value = 0; in >> key >> value;) {
    if (key == "simd_count") return value > 0;
  }
  return false;
}

}  // namespace

std::vector<std::string> amd_gpus(const std::string& root) {
  std::vector<std::string> found;
  for (const fs::path& device : entries(fs::path(root) / "sys/bus/pci/devices")) {
    if (is_gpu_of_amd(device)) found.push_back(device.filename());
  }
  if (!found.empty()) return found;
  for (const fs::path& node : entries(fs::path(root) / "sys/class/kfd/kfd/topology/nodes")) {
    if (has_simd(node)) found.push_back("kfd node " + node.filename().string());
  }
  return found;
}

std::string amd_gpus_text(const std::string& root) {
  const std::vector<std::string> found = amd_gpus(root);
  if (found.empty()) return "";
  std::string names;
  for (const std::string& name : found) names += (names.empty() ? "" : ", ") + name;
  return (found.size() == 1 ? "an AMD GPU is present ("
                            : std::to_string(found.size()) + " AMD GPUs are present (") +
         names + "), which this program does not use: it computes on NVIDIA's GPUs, and here on the CPU";
}

}  // namespace octet
