// Chooses the sizes of a run by the memory of the device and the host: the micro-batch, the recomputation
// level, the storage of states, and whether saves overlap steps.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/feed/feed.h"
#include "octet/plan/memory.h"
#include "octet/runtime/instance.h"
#include "octet/train/fit.h"
#include "run_context.h"

namespace octet::train {

class Sizing {
 public:
  /// Both must outlive the object.
  Sizing(RunContext& run, RunParts& parts) : run_(run), parts_(parts) {}

  /// Adopts the storage formats of the checkpoint's run for keys that the configuration leaves open.
  void adopt_storage(const checkpoint::Checkpoint& checkpoint);
  /// Chooses the batch and all values that the configuration leaves open, and makes the feed. Collective.
  void choose();
  /// Makes the feed of the chosen batch. It is at the start of the data. Collective.
  void make_feed();
  /// Resolves save_async: auto. Collective.
  void choose_where_to_save();

  /// Returns the options of the engine with the chosen sizes.
  runtime::InstanceOptions options() const;
  /// Throws Error if the device or the host has no room for an engine.
  void require_room(const runtime::InstanceOptions& options) const;
  /// Builds the engine. Throws Error with advice if the device has no memory left.
  void build_engine(const runtime::InstanceOptions& options);

  /// Logs the storage formats of the checkpoint's run if this run adopts them. Collective.
  void say_storage_of_checkpoint() const;
  /// Logs the storage formats of the states if the configuration sets less than fp32.
  void say_storage_asked() const;

 private:
  /// Chooses the storage of states, the micro-batch and the recomputation level that the configuration leaves
  /// open, by device memory.
  void choose_sizes(const feed::Feed::Shape& sample);
  /// Resolves zero_group_size: auto. Collective.
  void choose_group(const feed::Feed::Shape& sample);
  /// Chooses and logs the first memory choice that fits, or the smallest. Stores its allowed recomputation
  /// levels in `candidates`.
  void choose_memory(Candidates& candidates, std::size_t limit);
  /// Returns the shape of one sample of a micro-batch.
  feed::Feed::Shape sample_shape() const;
  /// Like config::resolve_batch(), limited to an epoch of the data.
  config::Batch batch_of(const config::BatchKeys& config, int world) const;
  /// Limits the micro-batches of a step to an epoch, if the length of an epoch is known.
  config::Batch within_epoch(const config::Batch& batch) const;
  runtime::InstanceOptions engine_of(const config::Config& config, const plan::Choice& choice,
                                     const feed::Feed::Shape& sample, int world) const;
  /// Returns suggested changes and the memory of a rank after them, with these samples or shorter ones.
  std::string memory_advice(const feed::Feed::Shape& sample, std::size_t limit) const;
  DeviceKind kind() const { return run_.session.device().stands_for(); }

  RunContext& run_;
  RunParts& parts_;
  plan::Level level_;
  std::optional<std::int64_t> group_;           ///< the chosen ranks of a sharding group
  std::optional<config::Config> open_storage_;  ///< the original, if its storage follows a checkpoint
};

}  // namespace octet::train
