#include "octet/train/sft_play_lines.h"

#include <array>
#include <cstdio>

namespace octet::train {
namespace {

constexpr std::size_t kListedGpus = 8;  // more do not fit on a screen

std::string gigabytes(std::uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GB", static_cast<double>(bytes) / 0x1p30);
  return text.data();
}

}  // namespace

std::vector<std::string> sft_play_lines(const SftPlayStart& start) {
  const std::size_t count = start.gpus.size();
  const bool gpus = count > 0;
  std::vector<std::string> lines;
  const std::string ranks = std::to_string(start.batch.world) + (start.batch.world == 1 ? " rank" : " ranks");
  lines.push_back("[train] Detected " + std::to_string(count) + (count == 1 ? " GPU" : " GPUs") +
                  (gpus ? ":" : ": " + ranks + " on CPUs"));
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    total += start.gpus[i].bytes;
    if (i < kListedGpus)
      lines.push_back("  GPU " + std::to_string(i) + ": " + start.gpus[i].name + " (" +
                      gigabytes(start.gpus[i].bytes) + ")");
  }
  if (count > kListedGpus) lines.back() += " and " + std::to_string(count - kListedGpus) + " more";
  lines.push_back("Total VRAM: " + gigabytes(total));
  if (start.automatic) {
    lines.push_back("Auto-calculated batch size: " + std::to_string(start.batch.micro) + " per " +
                    (gpus ? "GPU" : "rank") +
                    ", gradient accumulation: " + std::to_string(start.batch.accumulation));
  }
  lines.push_back("Effective batch size: " + std::to_string(start.batch.global));
  return lines;
}

}  // namespace octet::train
