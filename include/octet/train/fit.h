#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/config/keys.h"
#include "octet/plan/memory.h"
#include "octet/plan/time.h"
#include "octet/store/step_messages.h"
#include "octet/train/engine.h"

namespace octet::train {

/// Returns the exact memory of a rank at `place`: builds the engine on a dry device that simulates `kind`.
plan::Memory plan_memory(const runtime::InstanceOptions& options, const comm::Place& place, DeviceKind kind);

/// Returns the tensors of a checkpoint of a run at `place`, in the order of its file, computed likewise.
std::vector<weights::TensorHeader> checkpoint_tensors(const runtime::InstanceOptions& options,
                                                      const comm::Place& place, DeviceKind kind);

/// Returns the messages that a rank at `place` sends in a step of `micro_batches`, for each zero_stage.
std::array<store::StepMessages, 4> plan_messages(const runtime::InstanceOptions& options,
                                                 const comm::Place& place, DeviceKind kind,
                                                 std::int64_t micro_batches);

/// Returns readable lines about GEMMs that should run in FP8 but cannot on this kind of device, because of
/// the shapes of the model (Audit::take_fallbacks).
std::vector<std::string> plan_fallbacks(const runtime::InstanceOptions& options, const comm::Place& place,
                                        DeviceKind kind);

/// Returns the work of one rank in a step of `micro_batches`, for the time model. `length`: tokens per
/// sequence.
plan::Work work_of(const runtime::InstanceOptions& options, const plan::Memory& memory, std::int64_t length,
                   std::int64_t micro_batches);

/// Engines that trade memory for time in different ways.
struct Candidates {
  std::function<runtime::InstanceOptions(const plan::Choice&)> build;
  std::vector<std::int64_t> micros;  ///< ascending
  std::vector<plan::Level> levels;   ///< from the cheapest to the level that keeps least
  std::int64_t length = 0;           ///< tokens per sequence
  /// false: if none fits, choose the smallest, and let the device decide.
  bool must_fit = true;
  /// Returns advice if none fits `limit` bytes per rank; empty: a general sentence.
  std::function<std::string(std::size_t limit)> advice = {};
};

/// Returns the prefix of the ascending `micros` for which the core can be built with `each` tokens per
/// sample; at least the first.
std::vector<std::int64_t> buildable(std::vector<std::int64_t> micros, std::int64_t each);

runtime::InstanceOptions with_level(runtime::InstanceOptions options, const plan::Level& level);

/// Returns the candidate that is fastest by the time model among the candidates that fit `limit` bytes per
/// rank; nullopt if none fits.
std::optional<plan::Choice> fastest_that_fits(const Candidates& candidates, const comm::Place& place,
                                              DeviceKind kind, std::size_t limit);

/// Like fastest_that_fits(), but throws Error (usage) with the size of the smallest candidate if one must fit
/// and none does.
plan::Choice choose(const Candidates& candidates, const comm::Place& place, DeviceKind kind,
                    std::size_t limit);

/// Returns InstanceOptions::group_size. For runtime::kAutomaticGroup, returns the first of
/// runtime::automatic_groups() with which `least` fits `limit` bytes per rank, or all ranks. `least` are the
/// options that need the least memory.
std::int64_t fitting_group(runtime::InstanceOptions least, const comm::Place& place, DeviceKind kind,
                           std::size_t limit);

/// Returns the options with the level for `recompute: auto` and `fp8_transposed_weights: auto`. Unchanged if
/// the configuration sets both. Also chooses the group for zero_group_size: auto. Collective; errors are
/// thrown on all ranks.
runtime::InstanceOptions with_fitting_level(runtime::InstanceOptions options,
                                            const config::ComputeKeys& config, comm::Channel& channel,
                                            Device& device);

/// Whether saves should overlap the steps: the engine and the copy of its state leave a quarter of the memory
/// free. `options` are for an engine without overlapping saves. A rank on a CPU has `limit` bytes in total.
/// On a GPU, the copies of all ranks of a host, and staging between steps, use host memory, of which
/// `host_free` bytes are free.
bool has_room_for_copy(runtime::InstanceOptions options, const comm::Place& place, DeviceKind kind,
                       std::size_t limit, std::size_t host_free);

/// Returns the number of ranks that share the memory of `device`: all ranks of a host on a CPU, else 1.
std::size_t ranks_sharing_memory(const Device& device, const comm::Place& place);

/// Throws Error before any allocation if an engine at `place` exceeds its share of the device's free memory.
/// The code is usage if the device is too small, else failure. `advice` returns changes after which a rank
/// fits that many bytes; empty: a general sentence.
void require_room(const runtime::InstanceOptions& options, const comm::Place& place, const Device& device,
                  const std::function<std::string(std::size_t limit)>& advice = {});

/// Throws Error if the optimizer's state is stored in host memory and all ranks of a host need more than the
/// `host_free` bytes there.
void require_host_room(const plan::Memory& memory, const comm::Place& place, std::size_t host_free);

/// Returns the memory that each rank can still reserve: the minimum over all ranks. It is the device's free
/// memory minus the needs of libraries; for host memory, the rank's share. Collective.
std::size_t memory_limit(comm::Channel& channel, Device& device);

}  // namespace octet::train
