// The first lines of a run: the table before its first step, and the lines of SFT-Play.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/config/derive.h"

namespace octet::train {

/// Facts of the table.
struct StartFacts {
  std::string model;   ///< its folder
  std::string family;  ///< "llama"
  std::int64_t parameters = 0;
  std::int64_t trained = 0;  ///< of these parameters
  std::string method;        ///< value of finetuning_type
  bool fresh = false;        ///< the weights are initialised at random

  std::int64_t rows = 0;
  std::int64_t documents = 0;  ///< used rows
  std::int64_t tokens = 0;
  std::int64_t trained_tokens = 0;
  bool streams = false;        ///< the number of tokens is unknown
  std::int64_t sequences = 0;  ///< packed sequences; 0: without packing
  std::int64_t cutoff = 0;

  std::string device;
  bool on_gpu = false;
  int hosts = 1;

  std::string precision;  ///< "bf16", "FP8, …"
  std::string parameters_in, gradients_in, moments_in;
  std::int64_t zero_stage = 0;
  std::int64_t group_size = 0;  ///< ranks of a sharding group; 0: all
  std::size_t memory = 0, capacity = 0;  ///< bytes of a rank, and of its device or host

  config::Batch batch;
  std::int64_t steps = 0, first_step = 0;
  double epochs = 0;
  double least_seconds = 0;  ///< of a step; 0: unknown
  std::string rates_of;      ///< the device of these rates: "an H200"
  std::string output;
  std::string resumed_from;  ///< a checkpoint; "": the run starts fresh
  bool sft_play = false;     ///< separate lines for SFT-Play show the devices and the batch
};

using StartRows = std::vector<std::pair<std::string, std::string>>;

StartRows start_rows(const StartFacts& facts);

// The first lines of a run in SFT-Play. Its guide quotes them, and scripts of its users search for them.

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
