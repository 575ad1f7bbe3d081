// The first lines of a run in SFT-Play. Its guide quotes them, and scripts of its users search for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/config/derive.h"

namespace octet::train {

/// The facts in these lines.
struct SftPlayStart {
  /// The GPU of each rank, in rank order. Empty: the run computes on CPUs.
  struct Gpu {
    std::string name;
    std::uint64_t bytes = 0;  ///< of its memory
  };
  std::vector<Gpu> gpus;
  config::Batch batch;
  bool automatic = false;  ///< the program chose the micro-batch or the accumulation
};

/// Returns "[train] Detected 2 GPUs:", a line per GPU, "Total VRAM: …", "Auto-calculated batch size: …" if
/// sizes were chosen automatically, and "Effective batch size: …".
std::vector<std::string> sft_play_lines(const SftPlayStart& start);

}  // namespace octet::train
