// A model on this rank: its weights, its compute module and its stream. Training and decoding use instances;
// several may exist in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/model/transformer.h"
#include "octet/precision/audit.h"
#include "octet/runtime/adapter_file.h"
#include "octet/runtime/initial_weights.h"
#include "octet/store/step_messages.h"
#include "octet/store/store.h"

namespace octet::runtime {

class ExpertRanks;
class ShardRanks;

/// Options of an instance.
struct InstanceOptions {
  model::Architecture architecture;
  TrainedParameters trained;  ///< parameters that replace the parameters of the same names in the folder
  std::vector<AddedAdapter> added;  ///< added to the weights of the base during loading
  std::string adapter;              ///< folder of the initial adapter; empty: adapters are new
  /// Ranks among which the experts of every mixture are split, in training. The instance sets
  /// Architecture::share from it.
  std::int64_t expert_size = 1;
  /// Ranks of a sharding group, or a value of group_size.h. The instance sets store::Options::group from it.
  std::int64_t group_size = 0;
  comm::Carrying carrying = {};  ///< of the groups that split experts or shard state
  store::Options store;
  model::TransformerOptions transformer;
  std::int64_t max_documents = 1;  ///< per micro-batch
  int max_micro_batches = 1;       ///< per step, on one rank
  /// Micro-batches are padded to a multiple of this many tokens with a document that is not trained on. 0:
  /// the multiple that the device needs for FP8 GEMMs, or 1 without FP8.
  std::int64_t token_unit = 0;
  /// true: the run ends if a GEMM that should run in FP8 does not. false: rank 0 prints a warning.
  bool fp8_fallback_ends = false;
  /// Bitwise equal results in every run on this device (Stream::reproducible of its stream); nullopt: the
  /// default of the device.
  std::optional<bool> reproducible;
  bool claims = false;  ///< Stream::claims of its stream
  /// With TransformerOptions::preference: the reference of a pair is the model without its adapters, and a
  /// pass before each micro-batch computes its log-probabilities.
  bool adapters_off_reference = false;
  /// Reserves host memory for a copy of this rank's part of a checkpoint, which is saved concurrently with
  /// steps.
  bool snapshot = false;
  /// The host keeps checkpoints in its memory. The memory plan of its ranks includes them.
  bool memory_checkpoints = false;
};

/// Bytes reserved under a name. Lists of rows are sorted by size, largest first.
struct MemoryRow {
  std::string name;
  std::size_t bytes = 0;
};

/// Memory, parameters, module and stream of a model. On a dry device, an instance only plans memory. The
/// options of the store and of the module determine whether it can train. All ranks make the same calls.
class Instance {
 public:
  /// Throws Error for options that are invalid or do not fit the device.
  Instance(Device& device, comm::Job& job, comm::Collectives& data, const InstanceOptions& options);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  /// Fills the parameters from the weights of a Hugging Face folder and of adapters. Each rank reads only the
  /// tensors that it needs. Throws Error, on all ranks, for a tensor that is missing or has another shape.
  void load_weights(const std::string& folder);
  /// Fills the parameters with new values that depend only on the seed.
  void initialise(std::uint64_t seed);
  /// Gathers all parameters as the forward pass of an evaluation does, and waits.
  void gather_parameters();

  /// Returns the sum of the audits of all ranks, on every rank.
  precision::Audit audit_of_all() const;
  /// Called after a step. Reports GEMMs that should have run in FP8 and did not, once per kind and reason.
  /// Throws Error, on all ranks, if such GEMMs end the run, and if no GEMM of the first step ran in FP8.
  void check_gemms();

  const InstanceOptions& options() const { return options_; }  ///< with the defaults of the device filled in
  Device& device() { return device_; }
  comm::Job& job() { return job_; }
  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  Stream& compute() { return *compute_; }
  store::ParameterStore& store() { return *store_; }
  const store::ParameterStore& store() const { return *store_; }
  model::Transformer& core() { return *core_; }
  const model::Transformer& core() const { return *core_; }
  precision::Audit& audit() { return audit_; }
  /// Returns the traffic of the groups that split experts or shard state since the last call, and resets it.
  std::vector<comm::Traffic> take_traffic();
  /// Returns the seconds during which collectives were under way, see Collectives::seconds_busy(). Concurrent
  /// collectives of several groups count each.
  double seconds_busy();
  /// Returns this rank's place among the ranks with the same experts.
  comm::Place same_experts() const;
  /// Adds the messages with rows that this rank sends to experts of other ranks in a step. Assumes that every
  /// rank of the expert group receives the same number of rows. Nothing overlaps with these messages.
  void add_exchanged(store::StepMessages& messages, std::int64_t micro_batches) const;
  /// Returns the number of parameters of all ranks together, of all tensors or of the trained ones.
  std::int64_t parameter_count() const;
  std::int64_t trained_parameters() const;
  /// Returns the reserved device memory, added up by the first part of the names.
  std::vector<MemoryRow> memory() const;

 private:
  void tell_fallbacks();

  Device& device_;
  comm::Job& job_;
  comm::Collectives& data_;
  InstanceOptions options_;
  Arena arena_;
  precision::Audit audit_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<ExpertRanks> experts_;  ///< null: every rank has all experts
  std::unique_ptr<ShardRanks> shards_;    ///< null: state has no replicas
  std::unique_ptr<store::ParameterStore> store_;
  std::unique_ptr<model::Transformer> core_;
  bool required_fp8_ = false;  ///< set after the first check that any GEMM ran in FP8
};

/// Advice for a model with shapes that prevent FP8 GEMMs.
inline constexpr const char* kFp8Shapes =
    "make hidden_size, intermediate_size and the widths of heads multiples of 16, or take another fp8_recipe";

/// Returns the problem that ends a run with `fp8_fallback: error` when these GEMMs are not computed in FP8.
inline Problem fp8_refusal(const std::vector<std::string>& fallbacks) {
  std::string found;
  for (const std::string& line : fallbacks) found += (found.empty() ? "" : "\n") + line;
  return {.what = "a GEMM that should run in FP8 cannot",
          .expected = "FP8 GEMMs in the linear layers, as fp8_fallback: error requires",
          .found = found,
          .fix = std::string(kFp8Shapes) + ", or set fp8_fallback: warn",
          .code = ExitCode::usage};
}

}  // namespace octet::runtime
