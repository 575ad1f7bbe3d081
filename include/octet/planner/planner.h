// The planner room: a run or a generation on hardware that need not exist. It chooses stages, recomputation
// and storage as the run would, compares them, and collects memory, time, messages, files and notes. Formulas
// of memory and time belong to plan, choices of a run to train, and printing to cli. planner.h plans one
// configuration on one device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/device/device.h"
#include "octet/plan/time.h"
#include "octet/train/fit.h"
#include "octet/train/ladder.h"

namespace octet::planner {

// The target of a plan: a machine, and a model that is named by its shape.

/// The hardware of a plan.
struct PlanTarget {
  DeviceKind kind = kHostKind;
  std::string name;
  std::string card;   ///< key of the card, if its figures are known; "": a GPU gets the figures of an H200
  plan::Rates rates;  ///< of a GPU
  std::size_t memory = 0;  ///< of the device; on CPUs a rank's share of the node's memory
  comm::Place place;
  const DeviceTraits& traits() const { return traits_of(kind); }
};

/// The requested hardware.
struct TargetWish {
  std::int64_t world = 1;
  std::int64_t ranks_per_node = 0;  ///< 0: up to eight
  std::string card;                 ///< "": the card of this machine, or else an H200
  std::string memory;               ///< of a device, like "141GB"; "": all of it
  int replica = 1;                  ///< ranks of one replica with split layers, all on one node
};

/// Returns the hardware that a configuration would run on. On CPUs it claims the cores of one rank, because
/// the scratch memory of ops depends on them. Throws Error (usage) for a card with device=cpu, an unknown
/// card or an invalid memory.
PlanTarget target_of(const config::Config& config, const TargetWish& wish);

// Overrides for the shape of a model without a configuration.

/// Returns overrides for a model without a configuration: adds bf16=true unless bf16 or pure_bf16 is set.
/// This precedes loading, because other keys require bf16.
std::vector<std::string> with_bf16(std::vector<std::string> words);

/// Returns the device memory of NCCL. It has two communicators, for gathers and for reductions, if it is the
/// transport; it is the default transport between hosts. It has one communicator if it only reduces.
std::size_t nccl_bytes(const config::Config& config, const PlanTarget& target);

class Planner {
 public:
  /// Chooses the group for zero_group_size: auto. The arguments must outlive the planner.
  Planner(const config::Config& config, const model::Architecture& architecture, const PlanTarget& target);

  std::size_t outside() const { return outside_of(target_.place); }
  /// Returns the bytes outside of the engine's memory for other ranks: staging buffers, NCCL and libraries.
  std::size_t outside_of(const comm::Place& place) const;
  /// Returns the bytes of NCCL for all groups of other ranks.
  std::size_t nccl_of(const comm::Place& place) const;
  std::size_t limit() const { return target_.memory - std::min(target_.memory, outside()); }

  /// Returns the ranks of a sharding group. 0: all ranks.
  int group() const { return group_in(target_.place); }
  config::Batch batch(std::int64_t micro) const;
  runtime::InstanceOptions build(const plan::Choice& choice) const;
  plan::Memory memory(const plan::Choice& choice) const;
  std::array<store::StepMessages, 4> messages(const plan::Choice& choice) const;
  /// Returns the work of a training step with this memory. Evaluations may have more tokens.
  plan::Work work(const plan::Choice& choice, const plan::Memory& memory) const;

  /// Returns the choice that the run itself would make.
  plan::Choice choice() const;
  /// Returns changes that save memory if a rank has `limit` bytes: for its whole use if `whole`, else for
  /// reserved memory only.
  std::vector<train::Rung> ladder(std::size_t limit, bool whole) const;
  /// Whether any choice that the run may make fits.
  bool fits() const;
  /// Returns the largest micro-batch of each level.
  std::vector<plan::Choice> fitting() const;
  /// Returns the fastest choice that fits, or nullopt.
  std::optional<plan::Choice> best() const;
  /// Returns all levels of the device, whatever the configuration says.
  std::vector<plan::Level> all_levels() const;

 private:
  int group_in(const comm::Place& place) const;
  train::Candidates candidates_of(std::vector<std::int64_t> micros, std::vector<plan::Level> levels) const;

  const config::Config& config_;
  const model::Architecture& architecture_;
  const PlanTarget& target_;
  std::int64_t group_ = 0;  ///< InstanceOptions::group_size
};

}  // namespace octet::planner
