// How a run starts: afresh, or from a checkpoint of its output folder.
#pragma once

#include <optional>
#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/train/engine.h"

namespace octet::train {

/// A checkpoint that turned out to be damaged when it was read.
struct Damaged {
  std::int64_t step = 0;
  std::string why;
};

/// What the run that wrote a checkpoint was asked for. The environment of this one has no say in it.
config::Config saved_config(const checkpoint::Checkpoint& checkpoint);

/// The checkpoint to go on from, as the configuration and the output folder say; nothing: start afresh. All
/// ranks get the same answer. Its tensors are not read: restore() does that, and who finds one that does not
/// hold asks again with `damaged`, to get an older one. Throws Error when the folder holds final weights or
/// only damaged checkpoints, when a checkpoint was named that does not hold, or when the folder cannot be
/// written.
std::optional<std::string> find_start(comm::Channel& channel, const config::Config& config,
                                      const std::optional<Damaged>& damaged = std::nullopt);
/// Whether the configuration names the one checkpoint to go on from, so that no other takes its place.
bool names_checkpoint(const config::Config& config);

/// Fills parameters, moments and FP8 state from a checkpoint written at any world size and stage. Every byte
/// is read once by each rank that needs it, and verified then. Throws Error, on all ranks, for a checkpoint
/// of something else (usage), and with no_valid_checkpoint for one that cannot be read or does not hold; then
/// the engine's state is good for nothing.
void restore(Engine& engine, const checkpoint::Checkpoint& checkpoint);

/// Everything of the engine that a checkpoint holds, each element on one rank.
std::vector<TensorSlice> state_slices(Engine& engine);

/// Says what differs between the configuration of a checkpoint and this one in keys that decide the numbers.
void report_differences(const checkpoint::Checkpoint& checkpoint, const config::Config& config);

}  // namespace octet::train
