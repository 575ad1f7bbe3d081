#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gatherer.h"
#include "octet/ops/step_checks.h"
#include "octet/optim/adamw.h"
#include "octet/precision/quantizer.h"
#include "reducer.h"
#include "segments.h"
#include "state_carrier.h"

namespace octet::store {

/// Ends a step: totals over the ranks, norm, update, compute copies, FP8 weights.
class Updater {
 public:
  Updater(Segments& segments, Arena& arena, const Axes& axes, const Options& options);
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;

  /// Makes update number `step`, counted from 1. Work on `compute` produces result(). The update itself may
  /// overlap later work on `compute` until a group is acquired.
  void finish(const StepInput& input, std::int64_t step, Reducer& reducer, Gatherer& gatherer,
              Stream& compute);
  /// Makes compute copies and FP8 weights from the masters.
  void make_copies(Scales scales, Gatherer& gatherer, Stream& compute);

  /// Returns the bytes of device memory that an update reads and writes on this rank: masters and moments
  /// both ways, gradient sums and compute copies one way.
  std::size_t bytes() const;

  /// Blocks until updates are done.
  void synchronize() { beside_->synchronize(); }

  /// Sets limits for the steps, from the next finish on.
  void limit_steps(const ops::StepLimits& limits) { limits_ = limits; }

  /// Returns whether all masters of this rank are finite. Call it between steps. Waits for `compute`.
  bool masters_are_finite(Stream& compute);

  /// Returns the result of the last finish, from host memory.
  StepResult result() const;
  precision::ScaleSet* scales() { return scales_ ? &*scales_ : nullptr; }

  /// Enables statistics about the casts of later updates. make_copies always collects them.
  void watch_casts(bool on) { watches_ = on; }
  /// Enqueues the copy to the host of the statistics of the casts that made the present FP8 weights.
  void collect_casts(Stream& compute);
  /// Returns the last collected statistics of this rank's casts, by name.
  std::vector<precision::CastRow> cast_rows() const;

 private:
  /// Host memory that asynchronous copies read and write.
  struct HostStep {
    ops::StepScalars scalars_in;
    ops::StepScalars scalars_out;
    double label_tokens_in = 0;
  };
  void write_scalars(const StepInput& input, std::int64_t step, Stream& compute);
  void measure_norm(Reducer& reducer, Stream& compute);
  void sum_over_ranks(Stream& compute);
  /// Reduces the amaxes of weights by MAX over the ranks, on the reduction queue: the gather queue may still
  /// be busy with new copies.
  void reduce_amaxes(Stream& compute);
  std::size_t totals_bytes() const { return (1 + losses_) * sizeof(double); }
  bool delayed() const { return options_.recipe.kind == precision::RecipeKind::delayed; }
  void update(Segment& segment, Stream& stream);
  /// Update the masters, then their FP8 copies. update_slices does this for all groups, with the amaxes in
  /// one message. update_groups does it group by group, so that each group is ready as early as possible.
  void update_slices(Gatherer& gatherer, Stream& compute);
  void update_groups(Reducer& reducer, Gatherer& gatherer, Stream& compute);
  bool has_scales(std::size_t group) const { return segments_.group_scales[group].second > 0; }
  /// Raises the amaxes of masters. `parts_only`: only of tensors with several scales.
  void measure(const Segment& segment, Stream& stream, bool parts_only, const std::int32_t* skip);
  void measure_updated(const Segment& segment, Stream& stream);
  void quantise(Segment& segment, Stream& stream);
  void watch(bool on, Stream& stream);
  void quantise_both_ways(Segment& segment, Stream& stream);

  Segments& segments_;
  Axes axes_;
  comm::Collectives& collectives_;  ///< of all ranks
  Device& device_;
  Options options_;
  Policy policy_;
  optim::GradientNorm norm_;
  StateCarrier carrier_;
  std::optional<precision::ScaleSet> scales_;
  std::optional<precision::CastStatistics> casts_;  ///< indexed by scale
  bool watches_ = false;
  ops::StepScalars* scalars_ = nullptr;  ///< device
  /// Number of loss sums, which the host adds in order, so that the bits do not depend on the number of
  /// ranks. It is one, or with a tree one per micro-batch of all ranks.
  std::size_t losses_ = 1;
  double* totals_ = nullptr;  ///< device: label tokens, then losses_ sums of losses
  HostStep* host_ = nullptr;
  double* totals_out_ = nullptr;  ///< host memory, in the order of totals_
  double learning_rate_ = 0;
  ops::StepLimits limits_;
  std::unique_ptr<Event> ready_, reduced_;  ///< events of the small collectives
  /// Stream on which whole groups are updated while the next step computes. An update is limited by memory
  /// bandwidth, and GEMMs are not.
  std::unique_ptr<Stream> beside_;
  std::unique_ptr<Event> measured_;  ///< the norm is complete
  std::unique_ptr<Event> cast_;      ///< all FP8 weights are cast
};

}  // namespace octet::store
