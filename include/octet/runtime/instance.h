// A model on this rank: where its weights lie, what computes with them, and on which stream. Training and
// decoding are done with instances; several may live in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/model/transformer.h"
#include "octet/precision/audit.h"
#include "octet/runtime/adapter_file.h"
#include "octet/runtime/trained_parameters.h"
#include "octet/store/store.h"

namespace octet::runtime {

/// What an instance is built for.
struct InstanceOptions {
  model::Architecture architecture;
  TrainedParameters trained;        ///< in place of those of the folder whose weights are loaded
  std::vector<AddedAdapter> added;  ///< to the base's weights when they are loaded
  std::string adapter;              ///< folder of the adapter to begin with; empty: adapters are new
  store::Options store;
  model::TransformerOptions transformer;
  std::int64_t max_documents = 1;  ///< of a micro-batch
  int max_micro_batches = 1;       ///< of a step, on one rank
  /// Micro-batches are filled up to a multiple of so many tokens by a document that trains nothing. 0: what
  /// the device wants for FP8 products, 1 without FP8.
  std::int64_t token_unit = 0;
  /// A product that should run in FP8 and does not ends the run; false: rank 0 warns.
  bool fp8_fallback_ends = false;
  /// The same bits in every run on this device (Stream::reproducible of its stream); nothing: as the device
  /// does by itself.
  std::optional<bool> reproducible;
  bool claims = false;  ///< Stream::claims of its stream
  /// Room in host memory for a copy of this rank's part of a checkpoint, which is saved beside the steps.
  bool snapshot = false;
  /// The host keeps checkpoints in its memory, which is planned with that of its ranks.
  bool memory_checkpoints = false;
};

/// Bytes held by name, largest first.
struct MemoryRow {
  std::string name;
  std::size_t bytes = 0;
};

/// Memory, parameters, core and stream of a model. Built on a dry device it is the memory plan. Whether it
/// can train say its store's options and its core's. All ranks call its functions alike.
class Instance {
 public:
  /// Throws Error for options that make no sense or do not fit the device.
  Instance(Device& device, comm::Job& job, comm::Collectives& data, const InstanceOptions& options);
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  /// Fills the parameters from the weights of a Hugging Face folder and those of adapters, each rank reading
  /// what it needs. Throws
  /// Error, on all ranks, for a tensor that is missing or has another shape.
  void load_weights(const std::string& folder);
  /// Fills the parameters with fresh values that depend on the seed alone.
  void initialise(std::uint64_t seed);
  /// Makes parameters readable, as an evaluation's forward pass does, and waits.
  void gather_parameters();

  /// What all ranks counted, on every rank.
  precision::Audit audit_of_all() const;
  /// After a step: tells of products that should have run in FP8 and did not, each kind and reason once.
  /// Throws Error, on all ranks, for these where they end the run, and when no product of the first step ran
  /// in FP8.
  void check_products();

  const InstanceOptions& options() const { return options_; }  ///< with what was left to the device
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
  /// What is reserved of the device's memory, added up by the first part of the names.
  std::vector<MemoryRow> memory() const;

 private:
  void tell_fallbacks();

  Device& device_;
  comm::Job& job_;
  InstanceOptions options_;
  Arena arena_;
  precision::Audit audit_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<store::ParameterStore> store_;
  std::unique_ptr<model::Transformer> core_;
  bool required_fp8_ = false;  ///< asked once whether any product ran in FP8
};

}  // namespace octet::runtime
