// The train module: the training loop. engine.h has the parts of a step, feed/corpus.h the training data.
// trainer.h starts, resumes and stops a run. step_probe.h runs one batch through the same engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/device/host_copies.h"
#include "octet/model/transformer.h"
#include "octet/runtime/instance.h"
#include "octet/runtime/staging.h"
#include "octet/store/store.h"
#include "octet/weights/tensor_header.h"

namespace octet::train {

/// Result of this rank's micro-batches of a step.
struct RankLoss {
  double sum = 0;                 ///< sum of the losses of its label tokens
  std::int64_t label_tokens = 0;  ///< terms of the loss: label tokens, or pairs; 0: the rank had none
};

/// Sums over evaluated batches of this rank.
struct EvaluationSums {
  double hits = 0;          ///< with TransformerOptions::counts_hits
  std::int64_t labels = 0;  ///< label tokens
  /// Figures of pairs (ops::PreferenceFigure), of judged answers (ops::JudgementFigure), or of a teacher
  /// (ops::DistillationFigure).
  std::vector<double> figures = {};
};

/// A model in training on this rank: an instance, and the buffers between host and device. On a dry device it
/// only plans memory. All functions are collective.
class Engine {
 public:
  Engine(Device& device, comm::Job& job, comm::Collectives& data, const runtime::InstanceOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs forward and backward of a micro-batch of the planned size on this rank alone, and waits for it. So
  /// code is loaded, attention is planned and algorithms are chosen before ranks wait for each other in a
  /// step. Training state does not change. Call Instance::gather_parameters first, between steps: the
  /// rehearsal computes with the gathered parameters.
  void rehearse();
  /// Leaves the choice of GEMM algorithms to the first step, in place of rehearse().
  void choose_in_first_step() { chooses_ = true; }
  /// Selects whether casts to FP8 are recorded in the next step, and in the step after it. Both are needed,
  /// because the next step casts the weights of the step after it. Results of steps do not change.
  struct Watched {
    bool next = false, after = false;
  };
  void watch_casts(const Watched& steps) { watched_ = steps; }
  /// Statistics of the casts of the last step, which was recorded, on this rank. Includes all operands of its
  /// GEMMs, also the weights.
  std::vector<precision::CastRow> cast_rows() const;

  /// An optimizer step is begin(), micro_batch() for each micro-batch of this rank, then finish().
  void begin(int micro_batches);
  /// Runs forward, backward and gradient reduction of one micro-batch, which may be empty. Copies `batch`.
  void micro_batch(const runtime::HostBatch& batch, const model::LogitsHook& logits = {});
  /// Clips, updates, and waits for the step; this is the only host synchronization. If `update` is false,
  /// parameters do not change.
  store::StepResult finish(double learning_rate, bool update = true);

  /// Returns the learned FP8 scales of activations, in device memory. They are equal on all ranks.
  std::vector<TensorSlice> activation_state();
  /// Starts copying this rank's part of a checkpoint to a separate buffer ("state/snapshot"), between steps.
  /// The copy overlaps the next step until its update. Only with options().snapshot, and if the previous copy
  /// is no longer read. Returns the copied slices, valid after snapshot().wait().
  std::vector<TensorSlice> take_snapshot();
  HostSnapshot& snapshot() { return *snapshot_; }

  /// Runs forward and backward of a micro-batch of any rank with parameters and gradient buffers of `source`.
  /// The result equals the result in the step that begins next, or in the current step if it is abandoned.
  /// Training state does not change.
  void compute_again(model::ParameterSource& source, const runtime::HostBatch& batch);

  /// Returns the loss of this rank's label tokens in the last finished step.
  RankLoss own_loss() const;

  /// Computes the reference point of judged answers for later steps or evaluations (ops/judgement.h): the
  /// mean over all ranks of the log-probabilities of mismatched answers, relative to the reference, and at
  /// least 0. `mismatched(i)` returns the i-th of `count` batches of this rank, which may be null or empty.
  /// Between steps. All ranks pass the same count. The sums of batches are added in ascending order, so the
  /// result does not depend on the ranks of the batches.
  void set_reference_point(
      std::int64_t count,
      const std::function<std::shared_ptr<const runtime::HostBatch>(std::int64_t)>& mismatched);
  double reference_point() const { return reference_point_; }

  /// Returns the figures of this rank's pairs in the last finished step, in the order of
  /// ops::PreferenceFigure, of judged answers in the order of ops::JudgementFigure, or of label rows with a
  /// teacher in the order of ops::DistillationFigure.
  std::span<const double> own_figures() const { return staging_.host_figures(); }

  /// Computes the loss without gradients. Adds the sum of losses and the number of its terms (label tokens,
  /// or pairs) of this rank's batch, which may be empty. Adds further sums to `more` unless it is null. All
  /// ranks make the same number of calls.
  void evaluate(const runtime::HostBatch& batch, double* loss_sum, std::int64_t* terms,
                EvaluationSums* more = nullptr);

  /// Returns the natural logarithms of the probabilities of this rank's targets (runtime::log_probabilities).
  /// `batch` may be empty. Between steps. All ranks make the same number of calls.
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

  /// Returns the tensors of a checkpoint in the order of its file; equal on all ranks.
  std::vector<weights::TensorHeader> checkpoint_tensors();
  /// Sources of the copies of take_snapshot().
  SnapshotSources state_places();

 private:
  void plan_memory_checkpoints();
  void set_noise();
  /// Runs the passes of a micro-batch.
  void run_passes(model::ParameterSource& source, const model::MicroBatch& batch, double* loss_sum,
                  const model::LogitsHook& logits = {});
  /// Runs a micro-batch outside of steps.
  void train_alone(model::ParameterSource& source, const runtime::HostBatch& batch);
  /// Returns the sum over the answers of a batch of their log-probabilities relative to the reference.
  double relative_sum(const runtime::HostBatch& batch);

  runtime::Instance instance_;
  runtime::Staging staging_;
  std::optional<HostSnapshot> snapshot_;
  std::int64_t terms_ = 0;  ///< of the loss of the current step, on this rank
  int micro_batch_ = 0;     ///< of the current step
  double reference_point_ = 0;
  bool chooses_ = false;  ///< the next step chooses GEMM algorithms
  Watched watched_;
};

}  // namespace octet::train
