// The train room: the loop. What a step is made of stands in engine.h, where its data come from in corpus.h,
// how a run starts, resumes and stops in trainer.h; probe.h runs one batch through the very same engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/tensor_header.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/device/host_snapshot.h"
#include "octet/model/transformer.h"
#include "octet/runtime/instance.h"
#include "octet/runtime/staging.h"
#include "octet/store/store.h"

namespace octet::train {

/// What a rank's own micro-batches of a step gave.
struct RankLoss {
  double sum = 0;                 ///< of the losses of its label tokens
  std::int64_t label_tokens = 0;  ///< 0: it had nothing to train
};

/// A model in training on this rank: an instance, and the buffers between host and device. Built on a dry
/// device it is the memory plan. All ranks call its functions alike.
class Engine {
 public:
  Engine(Device& device, comm::Job& job, comm::Collectives& data, const runtime::InstanceOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs forward and backward of a micro-batch as large as planned on this rank alone, and waits for it:
  /// then code is loaded, attention is planned and products are chosen before ranks wait for each other
  /// within a step. No state of training changes. Instance::gather_parameters comes before it, between steps,
  /// as a rehearsal computes with what parameters lie there.
  void rehearse();
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
  void micro_batch(const runtime::HostBatch& batch, const model::LogitsHook& logits = {});
  /// Clips, updates, and waits for the step: the one host synchronisation. `update` false leaves parameters
  /// alone.
  store::StepResult finish(double learning_rate, bool update = true);

  /// FP8 scales of activations, where they are learned: state of the device's memory that is equal on all
  /// ranks.
  std::vector<TensorSlice> activation_state();
  /// Between steps: begins to copy this rank's part of a checkpoint into memory of its own
  /// ("state/snapshot"), beside the next step, whose update waits for it. Only with options().snapshot, and
  /// when nobody reads the copy before. Returns the copied slices, good after snapshot().wait().
  std::vector<TensorSlice> take_snapshot();
  HostSnapshot& snapshot() { return *snapshot_; }

  /// Forward and backward of a micro-batch of any rank as the step computes it that begins next, or has
  /// begun and is given up, with parameters and gradient buffers of `source`. No state of training changes.
  void compute_again(model::ParameterSource& source, const runtime::HostBatch& batch);

  /// This rank's share of the step that finish() ended last.
  RankLoss own_loss() const;

  /// Loss without gradients: adds the sum of losses and the label tokens of this rank's batch, which may be
  /// empty. All ranks call it equally often.
  void evaluate(const runtime::HostBatch& batch, double* loss_sum, std::int64_t* label_tokens);

  /// Logarithms of the probabilities of the targets of this rank's batch, which may be empty
  /// (runtime::log_probabilities). Between steps; all ranks call it equally often.
  std::vector<double> log_probabilities(const runtime::HostBatch& batch);

  runtime::Instance& instance() { return instance_; }
  void load_weights(const std::string& folder) { instance_.load_weights(folder); }
  void initialise(std::uint64_t seed) { instance_.initialise(seed); }
  store::ParameterStore& store() { return instance_.store(); }
  model::Transformer& core() { return instance_.core(); }
  Stream& compute() { return instance_.compute(); }
  Arena& arena() { return instance_.arena(); }
  precision::Audit& audit() { return instance_.audit(); }
  const runtime::InstanceOptions& options() const { return instance_.options(); }
  comm::Job& job() { return instance_.job(); }

  /// The tensors of a checkpoint in the order of its file, the same on all ranks.
  std::vector<checkpoint::TensorHeader> checkpoint_tensors();
  /// What take_snapshot() copies, where it lies.
  SnapshotSources state_places();

 private:
  void plan_memory_checkpoints();
  void set_noise();
  /// A micro-batch outside of steps.
  void train_alone(model::ParameterSource& source, const runtime::HostBatch& batch);

  runtime::Instance instance_;
  runtime::Staging staging_;
  std::optional<HostSnapshot> snapshot_;
  std::int64_t label_tokens_ = 0;  ///< of the step so far, this rank
  int micro_batch_ = 0;            ///< of the step so far
  Watched watched_;
};

}  // namespace octet::train
