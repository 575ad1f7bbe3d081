#include "octet/device/nvidia_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace octet {

namespace fs = std::filesystem;

std::vector<std::string> nvidia_files(const std::string& root) {
  constexpr std::string_view kPrefix = "nvidia";
  std::vector<int> numbers;
  std::error_code none;  // a missing folder counts as empty
  for (const auto& entry : fs::directory_iterator(fs::path(root) / "dev", none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int number = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
    if (error == std::errc() && stop == end && number >= 0) numbers.push_back(number);  // ignores nvidiactl
  }
  std::ranges::sort(numbers);
  std::vector<std::string> files;
  for (const int number : numbers) files.push_back("/dev/nvidia" + std::to_string(number));
  if (files.empty() && fs::is_directory(fs::path(root) / "proc/driver/nvidia", none))
    files.emplace_back("/proc/driver/nvidia");
  return files;
}

std::string nvidia_files_text(const std::string& root) {
  const std::vector<std::string> files = nvidia_files(root);
  if (files.empty()) return "";
  std::string names;
  for (const std::string& file : files) names += (names.empty() ? "" : ", ") + file;
  if (files.front().starts_with("/proc")) return "this machine shows NVIDIA's driver (" + names + ")";
  return "this machine shows " +
         (files.size() == 1 ? std::string("an NVIDIA GPU") : std::to_string(files.size()) + " NVIDIA GPUs") +
         " (" + names + ")";
}

std::string built_without_cuda_text(const std::string& root) {
  const std::string text = "this program was built without CUDA";
  const std::string unused = nvidia_files_text(root);
  if (unused.empty()) return text;
  return text + ", and " + unused + ": build it with -DOCTET_CUDA=ON to compute on GPUs, or set device: cpu";
}

}  // namespace octet
