#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gatherer.h"
#include "octet/ops/step_limits.h"
#include "octet/optim/gradient_norm.h"
#include "octet/precision/casts.h"
#include "reducer.h"
#include "state_carrier.h"

namespace octet::store {

/// The end of a step: totals over the ranks, norm, update, compute copies, FP8 weights.
class Updater {
 public:
  Updater(Segments& segments, Arena& arena, comm::Collectives& collectives, const Options& options);
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;

  /// Update number `step`, from 1. What result() gives is enqueued on
  /// `compute`; the update itself may go on beside what comes after it there, until a group is acquired.
  void finish(const StepInput& input, std::int64_t step, Reducer& reducer, Gatherer& gatherer,
              Stream& compute);
  /// Compute copies and FP8 weights from the masters.
  void make_copies(Scales scales, Gatherer& gatherer, Stream& compute);

  /// Of the device's memory, what an update reads and writes on this rank: masters and moments both ways,
  /// sums of gradients and compute copies one way.
  std::size_t bytes() const;

  /// Blocks until updates are done.
  void synchronize() { beside_->synchronize(); }

  /// What steps may show to be used, from the next finish on.
  void limit_steps(const ops::StepLimits& limits) { limits_ = limits; }

  /// Returns whether all masters of this rank are finite. Between steps; waits for `compute`.
  bool masters_are_finite(Stream& compute);

  /// What the last finish left in host memory.
  StepResult result() const;
  precision::ScaleSet* scales() { return scales_ ? &*scales_ : nullptr; }

  /// Whether the casts of the next updates are watched. Those of make_copies are.
  void watch_casts(bool on) { watches_ = on; }
  /// Enqueues the copy to the host of what the casts met that made the FP8 weights as they are now.
  void collect_casts(Stream& compute);
  /// By name, as collected last; on this rank, of what it cast.
  std::vector<precision::CastRow> cast_rows() const;

 private:
  /// Host memory that transfers touch while the host goes on.
  struct HostStep {
    ops::StepScalars scalars_in;
    ops::StepScalars scalars_out;
    double label_tokens_in = 0;
  };
  void write_scalars(const StepInput& input, std::int64_t step, Stream& compute);
  void measure_norm(Reducer& reducer, Stream& compute);
  void sum_over_ranks(Stream& compute);
  /// MAX over the ranks of the amaxes of weights, on the queue of reductions: that of gathers may have some
  /// of the new copies under way.
  void reduce_amaxes(Stream& compute);
  std::size_t totals_bytes() const { return (1 + losses_) * sizeof(double); }
  bool delayed() const { return options_.recipe.kind == precision::RecipeKind::delayed; }
  void update(Segment& segment, Stream& stream);
  /// Masters, then their FP8 copies: of everything, with amaxes of all ranks in one message; or group after
  /// group, so that each is ready as soon as may be.
  void update_slices(Gatherer& gatherer, Stream& compute);
  void update_groups(Reducer& reducer, Gatherer& gatherer, Stream& compute);
  bool has_scales(std::size_t group) const { return segments_.group_scales[group].second > 0; }
  /// Raises amaxes of masters: all of them, or those of tensors with several scales.
  void measure(const Segment& segment, Stream& stream, bool parts_only, const std::int32_t* skip);
  void measure_updated(const Segment& segment, Stream& stream);
  void quantise(Segment& segment, Stream& stream);
  void watch(bool on, Stream& stream);
  void quantise_both_ways(Segment& segment, Stream& stream);

  Segments& segments_;
  comm::Collectives& collectives_;
  Device& device_;
  Options options_;
  Policy policy_;
  optim::GradientNorm norm_;
  StateCarrier carrier_;
  std::optional<precision::ScaleSet> scales_;
  std::optional<precision::CastStatistics> casts_;  ///< by scale
  bool watches_ = false;
  ops::StepScalars* scalars_ = nullptr;  ///< device
  /// Sums of losses that are added up on the host, in order, so that nobody's share decides the bits: one, or
  /// with a tree those of all micro-batches of all ranks.
  std::size_t losses_ = 1;
  double* totals_ = nullptr;  ///< device: label tokens, then losses_ sums of losses
  HostStep* host_ = nullptr;
  double* totals_out_ = nullptr;  ///< host memory, as totals_
  double learning_rate_ = 0;
  ops::StepLimits limits_;
  std::unique_ptr<Event> ready_, reduced_;  ///< of the small collectives
  /// Where whole groups are updated while the next step computes: an update waits for memory, products do
  /// not.
  std::unique_ptr<Stream> beside_;
  std::unique_ptr<Event> measured_;  ///< the norm
  std::unique_ptr<Event> cast_;      ///< the FP8 weights of the last group
};

}  // namespace octet::store
