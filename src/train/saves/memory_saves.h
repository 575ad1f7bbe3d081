// Checkpoints of a run in the memory of the hosts: when they are taken, and their log lines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "octet/memory_tier/memory_tier.h"
#include "run_context.h"
#include "saves/save_interval.h"
#include "saves/saves.h"

namespace octet::train {

/// All functions are collective unless noted. Without RunParts::memory, they do nothing.
class MemorySaves {
 public:
  /// `run`, `parts` and `saves` must outlive the object.
  MemorySaves(RunContext& run, RunParts& parts, const Saves& saves, Saves::Contents contents)
      : run_(run), parts_(parts), saves_(saves), contents_(std::move(contents)) {}

  /// Creates the tier, if configured.
  void open();
  /// Throws Error (usage) if a host has no room for checkpoints in memory.
  void require_room();
  /// Creates the automatic interval, if configured.
  void make_interval();
  /// Records the seconds of a step. Local.
  void stepped(double seconds);
  /// Whether a checkpoint is taken after a step. Local.
  bool takes(std::int64_t step) const;
  /// Takes a checkpoint of this step. The cost sets the next interval if it is automatic.
  void take();
  /// Logs the result of a checkpoint once it is known. Local.
  void look();
  /// Drops the checkpoints, because the run returns to an earlier step.
  void forget();
  /// Removes the checkpoints, because the run has ended.
  void remove();

 private:
  void tell(const std::optional<memory_tier::Taken>& taken);

  RunContext& run_;
  RunParts& parts_;
  const Saves& saves_;
  Saves::Contents contents_;
  std::unique_ptr<SaveInterval> interval_;  ///< if memory_checkpoint_steps is automatic
};

}  // namespace octet::train
