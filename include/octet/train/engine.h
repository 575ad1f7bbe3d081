// The train room: the loop. What a step is made of stands in engine.h, where its data come from in corpus.h,
// how a run starts, resumes and stops in trainer.h; probe.h runs one batch through the very same engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/device/device.h"
#include "octet/feed/loader.h"
#include "octet/model/architecture.h"
#include "octet/model/transformer.h"
#include "octet/store/store.h"

namespace octet::train {

/// Precision of a run as the configuration asks for it. Throws Error for combinations that make no sense.
precision::Recipe recipe_of(const config::Config& config);

/// What an engine is built for.
struct EngineOptions {
  model::Architecture architecture;
  std::string adapter;  ///< folder of the adapter to begin with; empty: adapters are new
  store::Options store;
  model::TransformerOptions transformer;
  std::int64_t max_documents = 1;  ///< of a micro-batch
  int max_micro_batches = 1;       ///< of a step, on one rank
  /// Micro-batches are filled up to a multiple of so many tokens by a document that trains nothing. 0: what
  /// the device wants for FP8 products, 1 without FP8.
  std::int64_t token_unit = 0;
  /// A product that should run in FP8 and does not ends the run; false: rank 0 warns.
  bool fp8_fallback_ends = false;
  /// The same bits in every run on this device; nothing: as the device does by itself.
  std::optional<bool> reproducible;
};

/// Whether weights lie as FP8: scaled in blocks they become FP8 where a product reads them, in any layout.
bool has_fp8_weights(const config::Config& config);

/// Adapters, sharding, precision, optimizer and recomputation of a run, for micro-batches of `max_tokens`
/// tokens in documents of at most `max_length`.
EngineOptions engine_options(const config::Config& config, const model::Architecture& architecture,
                             std::int64_t max_tokens, std::int64_t max_length, std::int64_t max_documents);

/// Bytes held by name, largest first.
struct MemoryRow {
  std::string name;
  std::size_t bytes = 0;
};

/// What a rank's own micro-batches of a step gave.
struct RankLoss {
  double sum = 0;                 ///< of the losses of its label tokens
  std::int64_t label_tokens = 0;  ///< 0: it had nothing to train
};

/// A model in training on this rank: parameters, core and the buffers between host and device. Built on a dry
/// device it is the memory plan. All ranks call its functions alike.
class Engine {
 public:
  Engine(Device& device, comm::Job& job, comm::Collectives& data, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Fills the parameters from the weights of a Hugging Face folder, each rank reading what it needs. Throws
  /// Error for a tensor that is missing or has another shape.
  void load_weights(const std::string& folder);
  /// Fills the parameters with fresh values that depend on the seed alone.
  void initialise(std::uint64_t seed);

  /// Runs forward and backward of a micro-batch as large as planned on this rank alone, and waits for it:
  /// then code is loaded, attention is planned and products are chosen before ranks wait for each other
  /// within a step. No state of training changes. `gather_parameters` comes before it, between steps, as a
  /// rehearsal computes with what parameters lie there.
  void rehearse();
  /// Makes parameters readable, as an evaluation's forward pass does, and waits. All ranks call it.
  void gather_parameters();
  /// Whether casts to FP8 are watched in the next step, and in the one after it: its weights are cast when
  /// the next one is finished. The first step that is asked for can be watched, too. Changes no number of a
  /// step.
  struct Watched {
    bool next = false, after = false;
  };
  void watch_casts(const Watched& steps) { watched_ = steps; }
  /// What the casts of the last step met, which was watched: those that its products read, weights included.
  /// This rank's.
  std::vector<precision::CastRow> cast_rows() const;

  /// One optimizer step: `begin`, then every micro-batch of this rank, then `finish`.
  void begin(int micro_batches);
  /// Forward, backward and reduction of one micro-batch, which may be empty. Copies what it needs of `batch`.
  void micro_batch(const feed::HostBatch& batch, const model::LogitsHook& logits = {});
  /// Clips, updates, and waits for the step: the one host synchronisation. `update` false leaves parameters
  /// alone.
  store::StepResult finish(double learning_rate, bool update = true);

  /// This rank's share of the step that finish() ended last.
  RankLoss own_loss() const;

  /// Loss without gradients: adds the sum of losses and the label tokens of this rank's batch, which may be
  /// empty. All ranks call it equally often.
  void evaluate(const feed::HostBatch& batch, double* loss_sum, std::int64_t* label_tokens);

  store::ParameterStore& store() { return *store_; }
  model::Transformer& core() { return *core_; }
  Stream& compute() { return *compute_; }
  Arena& arena() { return arena_; }
  precision::Audit& audit() { return audit_; }
  /// What all ranks counted, on every rank.
  precision::Audit audit_of_all() const;
  /// After a step: tells of products that should have run in FP8 and did not, each kind and reason once.
  /// Throws Error, on all ranks, for these where they end the run, and when no product of the first step ran
  /// in FP8.
  void check_products();
  const EngineOptions& options() const { return options_; }
  comm::Job& job() { return job_; }
  /// What is reserved of the device's memory, added up by the first part of the names.
  std::vector<MemoryRow> memory() const;

 private:
  struct Staging;
  model::MicroBatch upload(const feed::HostBatch& batch, std::size_t host_set);
  model::MicroBatch send(const feed::HostBatch& batch, std::size_t host_set);
  void check_batch(const feed::HostBatch& batch) const;
  void tell_fallbacks();

  Device& device_;
  comm::Job& job_;
  EngineOptions options_;
  Arena arena_;
  precision::Audit audit_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<store::ParameterStore> store_;
  std::unique_ptr<model::Transformer> core_;
  std::unique_ptr<Staging> staging_;
  std::int64_t label_tokens_ = 0;  ///< of the step so far, this rank
  int micro_batch_ = 0;            ///< of the step so far
  Watched watched_;
  bool required_fp8_ = false;  ///< asked once whether any product ran in FP8
};

}  // namespace octet::train
