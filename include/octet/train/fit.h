#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/config/config.h"
#include "octet/plan/advice.h"
#include "octet/plan/memory.h"
#include "octet/plan/time.h"
#include "octet/store/messages.h"
#include "octet/train/engine.h"

namespace octet::train {

/// What a rank at `place` would hold, to the byte: the engine, built on a dry device that stands for `kind`.
plan::Memory plan_memory(const runtime::InstanceOptions& options, const comm::Place& place, DeviceKind kind);

/// The tensors of a checkpoint of a run on ranks that stand so, in the order of its file, found likewise.
std::vector<checkpoint::TensorHeader> checkpoint_tensors(const runtime::InstanceOptions& options,
                                                         const comm::Place& place, DeviceKind kind);

/// What a rank at `place` sends to others in a step of `micro_batches`, by zero_stage, if it were another
/// one.
std::array<store::StepMessages, 4> plan_messages(const runtime::InstanceOptions& options,
                                                 const comm::Place& place, DeviceKind kind,
                                                 std::int64_t micro_batches);

/// Lines for a person about GEMMs that should run in FP8 and that the shapes of the model keep from it on a
/// device of this kind (Audit::take_fallbacks).
std::vector<std::string> plan_fallbacks(const runtime::InstanceOptions& options, const comm::Place& place,
                                        DeviceKind kind);

/// What one rank does in a step of `micro_batches`, for the time model; `length` is that of a sequence.
plan::Work work_of(const runtime::InstanceOptions& options, const plan::Memory& memory, std::int64_t length,
                   std::int64_t micro_batches);

/// Engines that differ in what memory is traded for.
struct Candidates {
  std::function<runtime::InstanceOptions(const plan::Choice&)> build;
  std::vector<std::int64_t> micros;  ///< ascending
  std::vector<plan::Level> levels;   ///< from the cheapest to the one that keeps least
  std::int64_t length = 0;           ///< of a sequence
  /// false: where none fits, the one that needs least is taken, and the device has the last word.
  bool must_fit = true;
  /// What to change where none fits, of which so many bytes a rank has; nothing given: a general sentence.
  std::function<std::string(std::size_t limit)> advice = {};
};

/// Of ascending `micros`, those whose tokens the core can be built for, `each` a sample; at least the first.
std::vector<std::int64_t> buildable(std::vector<std::int64_t> micros, std::int64_t each);

runtime::InstanceOptions with_level(runtime::InstanceOptions options, const plan::Level& level);

/// The candidate that the time model finds fastest among those that fit `limit` bytes a rank; nullopt when
/// none does.
std::optional<plan::Choice> fastest_that_fits(const Candidates& candidates, const comm::Place& place,
                                              DeviceKind kind, std::size_t limit);

/// The same. Throws Error (usage), with what the smallest one needs, when one must fit and none does.
plan::Choice choose(const Candidates& candidates, const comm::Place& place, DeviceKind kind,
                    std::size_t limit);

/// The options with the level that `recompute: auto` and `fp8_transposed_weights: auto` come to; unchanged
/// where the configuration leaves nothing. All ranks call it, and throw alike.
runtime::InstanceOptions with_fitting_level(runtime::InstanceOptions options, const config::Config& config,
                                            comm::Channel& channel, Device& device);

/// Whether saves beside the steps are advisable: `options`, those of an engine without them, and the copy of
/// its state leave a quarter of the memory to others. A rank on a CPU has `limit` bytes in all; on a GPU the
/// copies of all ranks of its host, and what passes through between steps, lie in the host's memory, of which
/// `host_free` bytes are free.
bool has_room_for_copy(runtime::InstanceOptions options, const comm::Place& place, DeviceKind kind,
                       std::size_t limit, std::size_t host_free);

/// Returns the number of ranks that share the memory of `device`: all of a host that computes itself, else 1.
std::size_t ranks_sharing_memory(const Device& device, const comm::Place& place);

/// Throws Error if an engine at `place` holds more than its share of what the device has free, before
/// anything is allocated: with code usage if the device is too small, else with code failure. `advice`: what
/// to change so that a rank fits so many bytes; empty: a general sentence.
void require_room(const runtime::InstanceOptions& options, const comm::Place& place, const Device& device,
                  const std::function<std::string(std::size_t limit)>& advice = {});

/// Throws Error where the optimizer's state is to lie in the host's memory and what all ranks of a host hold
/// there is more than the `host_free` bytes that are free.
void require_host_room(const plan::Memory& memory, const comm::Place& place, std::size_t host_free);

/// Memory that a rank of this process can still reserve: what its device has free, less what libraries will
/// take, and of a node's memory its rank's share. The least of all ranks; all ranks call it.
std::size_t memory_limit(comm::Channel& channel, Device& device);

}  // namespace octet::train
