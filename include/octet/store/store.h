#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/host_snapshot.h"
#include "octet/model/parameter_source.h"
#include "octet/ops/step_limits.h"
#include "octet/precision/casts.h"
#include "octet/store/options.h"

namespace octet::store {

/// Where the scales of FP8 weights come from when compute copies are made anew.
enum class Scales {
  from_weights,  ///< amax of the masters now (which enters the history)
  as_loaded      ///< as a checkpoint had them that was read into needed_slices()
};

/// The parameters of a model, their gradients and optimizer state on this rank, as the table of placements
/// says (placement.h).
///
/// One optimizer step, on every rank alike (all calls enqueue, only collect needs the host to have waited):
///
///     store.begin_step(micro_batches);
///     for each micro-batch i:
///       store.begin_micro_batch(i, compute, &activation_scales);
///       the core: acquire, release, group by group forward; blocks_done before the last one; acquire,
///       gradients,
///         give_back, release backward
///         (a rank without label tokens in this micro-batch: contribute_nothing(compute) instead)
///       store.end_micro_batch(compute);
///     store.finish({rate, label_tokens, loss_sum}, compute);
///     compute.synchronize();
///     StepResult result = store.collect();
///
/// Gradients of a group start to be reduced at its give_back, on the reduce stream of the collectives, in the
/// fixed order head, last block, …, embedding, while compute goes on. With delayed scaling the amaxes of
/// activations, too, travel while compute goes on: those of the forward pass until the micro-batch ends,
/// those of gradients until the next one's blocks_done. finish sums counts and losses over the ranks,
/// measures and clips the norm, updates masters and moments, makes compute copies and FP8 weights, and starts
/// their gathers, which acquire waits for. Where every rank holds everything, a group's update goes on beside
/// the compute that follows, until the group is acquired; collect does not wait for it, synchronize does.
/// With one rank there is no collective and no copy.
///
/// Everything is reserved from the arena at construction, by name: parameters/copies, parameters/master,
/// parameters/fixed, parameters/gathered, parameters/decoded, parameters/transposed,
/// gradients, gradients/sums, gradients/tree,
/// optimizer/exp_avg, optimizer/exp_avg_sq (and …_scale), step/…; optimizer/… and masters that are no copies
/// from pinned memory where Options::state_home says so. acquire and release also work between steps
/// (evaluation, generation); at stage 3 all ranks then walk through the groups alike, those without rows by
/// pass_by. Not thread-safe; calls out of order throw std::logic_error.
class ParameterStore final : public model::ParameterSource {
 public:
  /// `arena` and `collectives`, those of the data axis, outlive the store; both are of one device. Throws
  /// as policy_of() and placements_of() do.
  ParameterStore(model::ParameterLayout layout, Arena& arena, comm::Collectives& collectives,
                 const Options& options);
  /// Waits for gathers and reductions that are under way (all ranks end their stores), but not while an
  /// error unwinds.
  ~ParameterStore() override;

  const model::ParameterLayout& layout() const override;
  const model::GroupParameters& acquire(int group, model::Pass pass, Stream& compute) override;
  void release(int group, model::Pass pass, Stream& compute) override;
  const model::GroupGradients& gradients(int group, Stream& compute) override;
  void give_back(int group, Stream& compute) override;
  void blocks_done(Stream& compute) override;

  void begin_step(int micro_batches);
  /// `activations`, scales of this rank's activations and output gradients, outlive the store's work; null:
  /// there are none. All micro-batches have the same.
  void begin_micro_batch(int index, Stream& compute, precision::ScaleSet* activations);
  /// This rank has no gradient for a group in this micro-batch (a frozen or unused one): it counts as zero.
  void contribute_nothing(int group, Stream& compute);
  /// This rank has no tokens in this micro-batch: takes part in all its collectives, gathers included.
  void contribute_nothing(Stream& compute);
  /// Checks that every group of which something is trained was given back. With delayed scaling, updates the
  /// scales of activations by the amaxes of all ranks.
  void end_micro_batch(Stream& compute);
  void finish(const StepInput& input, Stream& compute);
  /// Result of the last finish; `compute` must have been synchronised since.
  StepResult collect();

  /// What steps may show to be used, from the next finish on; one that shows more changes nothing and is
  /// skipped as one without a finite norm is. The same on all ranks.
  void limit_steps(const ops::StepLimits& limits);

  /// A rank without rows while others run a forward pass outside steps: takes part in its gathers.
  void pass_by(Stream& compute);

  /// The parameters and gradient buffers as they lie, for a rank that tries what a step enqueues: nothing is
  /// gathered, reduced or counted, and gradients are forgotten. For use between steps, while the store lives.
  std::unique_ptr<model::ParameterSource> rehearsal();

  /// Fills masters and what is not trained, and makes the compute copies. `fill` gets the slices of
  /// parameters that this rank needs (f32, by Hugging Face name, in host memory) and writes every element. It
  /// is called several times with a part of them, equally often on all ranks, and once more for what lies in
  /// FP8 and is not trained, whose scales are made first. What is quantised to NF4 is asked for by shares: a
  /// rank gets another part than it needs. With Nf4Weights::stored it is asked for as files of bitsandbytes
  /// have it: whole one-dimensional tensors "<name>" (codes, u8) and "<name>.absmax" (f32), or, with double
  /// quantisation, "<name>.absmax" (u8), "<name>.nested_absmax" (f32) and "<name>.nested_offset" (f32 [1]).
  /// All ranks call it.
  void initialise(Stream& compute, const std::function<void(const std::vector<TensorSlice>&)>& fill);
  /// The same of what is not trained alone, which no checkpoint holds; then refresh_copies.
  void load_fixed(Stream& compute, const std::function<void(const std::vector<TensorSlice>&)>& fill);
  /// Fills masters, where they lie, and what is not trained with fresh values (model::initialise), and makes
  /// the compute copies. All ranks call it.
  void initialise(Stream& compute, std::uint64_t seed);
  /// Makes compute copies and FP8 weights from the masters, gathered where needed. All ranks call it.
  void refresh_copies(Stream& compute, Scales scales);

  /// The state of what is trained, as named slices of host memory, in the formats in which it is stored:
  /// parameters by Hugging Face name, "exp_avg/<name>", "exp_avg_sq/<name>", with 8-bit moments their scales
  /// "exp_avg_scale/<stored tensor>" and "exp_avg_sq_scale/<stored tensor>" (one for each 128 elements of the
  /// tensor as the layout stores it), "fp8_weights/scale" and "fp8_weights/amax_history" with delayed
  /// scaling, "optimizer/step" (i64 [1]). Padding is left out. Call these, and read and write what they give,
  /// only after synchronize(), outside steps. Where the host does not reach their memory the slices are
  /// copies: those to be read last until the next of these calls or the next step, those to be written
  /// until refresh_copies.
  ///
  /// owned: every element belongs to exactly one rank, at every stage; together they are a checkpoint.
  /// `others`: more state of the device's memory that is saved with this, put at the end.
  std::vector<TensorSlice> owned_slices(const std::vector<TensorSlice>& others = {}) const;
  /// The same slices where they lie, to be copied while a step begins: all but those of "residuals/",
  /// `others` and the count of steps are written by finish() alone.
  SnapshotSources owned_places(const std::vector<TensorSlice>& others = {}) const;
  /// needed: what this rank must read to go on; then refresh_copies(compute, Scales::as_loaded).
  std::vector<TensorSlice> needed_slices(const std::vector<TensorSlice>& others = {}) const;
  /// Name, dtype and shape of every tensor of a checkpoint, the same on all ranks and at every stage: whole,
  /// without data. A tensor that lies in several pieces stands there several times.
  std::vector<TensorSlice> state_tensors(const std::vector<TensorSlice>& others = {}) const;
  /// The sums of gradients that the last finish measured (not divided by the label tokens), by Hugging Face
  /// name; every element on exactly one rank. Valid until the next micro-batch.
  std::vector<TensorSlice> gradient_slices() const;
  /// Bytes of this rank's device memory that the update of a step reads and writes.
  std::size_t update_bytes() const;
  /// Blocks until compute, gathers and reductions are done.
  void synchronize(Stream& compute);

  /// Updates made so far, skipped steps not counted.
  std::int64_t optimizer_steps() const;
  /// Scales of the FP8 weights that are trained; null without an FP8 recipe or such tensors.
  const precision::ScaleSet* weight_scales() const;

  /// Whether updates watch their casts of weights to FP8, from the next one on; those that make copies anew
  /// are watched.
  void watch_casts(bool on);
  /// Enqueues the copy to the host of what the casts met that made the weights as they are, before finish.
  void collect_casts(Stream& compute);
  /// The same by name, of what this rank cast; after collect_casts, once `compute` was waited for.
  std::vector<precision::CastRow> cast_rows() const;

 private:
  friend class Hashes;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace octet::store
