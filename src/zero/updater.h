#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gatherer.h"
#include "octet/optim/gradient_norm.h"
#include "reducer.h"

namespace octet::zero {

/// The end of a step: totals over the ranks, norm, update, compute copies, FP8 weights.
class Updater {
 public:
  Updater(Segments& segments, Arena& arena, comm::Communicator& communicator, const Options& options);
  ~Updater();
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;

  /// Update number `step`, from 1. Sums must be complete on `compute`.
  void finish(const StepInput& input, std::int64_t step, Gatherer& gatherer, Stream& compute);
  /// Compute copies and FP8 weights from the masters.
  void make_copies(Scales scales, Gatherer& gatherer, Stream& compute);
  /// MAX over the ranks of `count` amaxes, on a queue that is not behind the gradients.
  void reduce_amaxes(float* amaxes, std::int64_t count, Stream& compute);

  /// What the last finish left in host memory.
  StepResult result() const;
  precision::ScaleSet* scales() { return scales_ ? &*scales_ : nullptr; }

 private:
  /// Host memory that transfers touch while the host goes on.
  struct HostStep {
    ops::StepScalars scalars_in;
    ops::StepScalars scalars_out;
    double label_tokens_in = 0;
  };
  void write_scalars(const StepInput& input, std::int64_t step, Stream& compute);
  void sum_over_ranks(Stream& compute);
  std::size_t totals_bytes() const { return (1 + losses_) * sizeof(double); }
  void update(Segment& segment, Stream& compute);
  /// Raises amaxes of masters: all of them, or those of tensors with several scales.
  void measure_weights(Stream& compute, bool parts_only, const std::int32_t* skip);
  void quantise_weights(Stream& compute);
  void quantise_both_ways(Segment& segment, Stream& compute);

  Segments& segments_;
  comm::Communicator& communicator_;
  Device& device_;
  Options options_;
  Policy policy_;
  optim::GradientNorm norm_;
  std::optional<precision::ScaleSet> scales_;
  ops::StepScalars* scalars_ = nullptr;  ///< device
  /// Sums of losses that are added up on the host, in order, so that nobody's share decides the bits: one, or
  /// with a tree those of all micro-batches of all ranks.
  std::size_t losses_ = 1;
  double* totals_ = nullptr;  ///< device: label tokens, then losses_ sums of losses
  HostStep* host_ = nullptr;
  double* totals_out_ = nullptr;  ///< host memory, as totals_
  double learning_rate_ = 0;
  std::unique_ptr<Event> ready_, reduced_;  ///< of the small collectives
};

}  // namespace octet::zero
