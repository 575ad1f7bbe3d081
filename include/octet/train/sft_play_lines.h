// The lines with which SFT-Play starts a run: its guide quotes them, and scripts of its users look for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/config/derive.h"

namespace octet::train {

/// What the lines say of a run.
struct SftPlayStart {
  /// The GPU of a rank, in the order of the ranks. None: the run computes on CPUs.
  struct Gpu {
    std::string name;
    std::uint64_t bytes = 0;  ///< of its memory
  };
  std::vector<Gpu> gpus;
  config::Batch batch;
  bool automatic = false;  ///< the micro-batch or the accumulation was chosen by the program
};

/// "[train] Detected 2 GPUs:", a line for each GPU, "Total VRAM: …", "Auto-calculated batch size: …" if sizes
/// were chosen automatically, and "Effective batch size: …".
std::vector<std::string> sft_play_lines(const SftPlayStart& start);

}  // namespace octet::train
