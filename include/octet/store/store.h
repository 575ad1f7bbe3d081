#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/host_copies.h"
#include "octet/model/parameter_source.h"
#include "octet/ops/step_checks.h"
#include "octet/precision/quantizer.h"
#include "octet/store/placement.h"

namespace octet::store {

/// Source of the scales of FP8 weights when compute copies are refreshed.
enum class Scales {
  from_weights,  ///< amax of the current masters, which is added to the history
  as_loaded      ///< scales of a checkpoint that was read into needed_slices()
};

/// With expert parallelism (model::Share::expert_size): how experts are shared by ranks.
struct ExpertAxis {
  /// The ranks with the same experts. Null: every rank has all experts.
  comm::Collectives* same_experts = nullptr;
  model::ParameterLayout all = {};  ///< the layout with the experts of all ranks
};

/// With sharding groups (Options::group): this rank's group, and the ranks with the same shards in all
/// groups.
struct GroupAxes {
  comm::Collectives* shards = nullptr;
  comm::Collectives* replicas = nullptr;
};

/// The parameters of a model, their gradients and optimizer state on this rank, as the placement table
/// specifies (placement.h).
///
/// One optimizer step, on every rank alike. All calls enqueue; only collect requires that the host has
/// waited.
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
/// Reductions: the reduction of a group's gradients starts at its give_back, on the reduce stream of the
/// collectives. It overlaps with compute. The order is fixed: head, last block, …, embedding. With delayed
/// scaling, the amaxes of activations are also reduced while compute continues. Amaxes of the forward pass
/// are due when the micro-batch ends; amaxes of gradients are due at the blocks_done of the next micro-batch.
///
/// finish sums token counts and losses over the ranks, measures and clips the norm, and updates masters and
/// moments. It makes compute copies and FP8 weights, and starts their gathers; acquire waits for these. If
/// every rank holds everything, a group's update overlaps with later compute until the group is acquired.
/// collect does not wait for the update, synchronize does. With one rank there is no collective and no copy.
///
/// All memory is reserved from the arena at construction, by name: parameters/copies, parameters/shards,
/// parameters/master, parameters/fixed, parameters/gathered, parameters/decoded, parameters/transposed,
/// gradients, gradients/sums, gradients/residuals, gradients/tree, optimizer/exp_avg, optimizer/exp_avg_sq
/// (and …_scale), step/…. With Options::state_home pinned, optimizer/… and masters that are not copies are in
/// pinned memory. acquire and release also work between steps (evaluation, generation). At stage 3 all ranks
/// must then acquire the groups in the same order; ranks without rows call pass_by. Not thread-safe. Calls
/// out of order throw std::logic_error.
class ParameterStore final : public model::ParameterSource {
 public:
  /// `collectives` connects all ranks that train different micro-batches. `arena` and all collectives must be
  /// of the same device and outlive the store. Segments with SegmentSpec::split_experts are sharded and
  /// reduced among the ranks of `experts`. `groups` is read if has_replicas(), and excludes `experts`. Throws
  /// as policy_of() and placements_of() do.
  ParameterStore(model::ParameterLayout layout, Arena& arena, comm::Collectives& collectives,
                 const Options& options, ExpertAxis experts = {}, GroupAxes groups = {});
  /// Waits for pending gathers and reductions, so all ranks must destroy their stores. Does not wait during
  /// stack unwinding.
  ~ParameterStore() override;

  const model::ParameterLayout& layout() const override;
  const model::GroupParameters& acquire(int group, model::Pass pass, Stream& compute) override;
  void release(int group, model::Pass pass, Stream& compute) override;
  const model::GroupGradients& gradients(int group, Stream& compute) override;
  void give_back(int group, Stream& compute) override;
  void blocks_done(Stream& compute) override;

  void begin_step(int micro_batches);
  /// `activations`: scales of this rank's activations and output gradients. They must outlive the store's
  /// work. Null: no scales. All micro-batches use the same scales.
  void begin_micro_batch(int index, Stream& compute, precision::ScaleSet* activations);
  /// Contributes zeros for a group without gradients on this rank in this micro-batch (a frozen or unused
  /// group).
  void contribute_nothing(int group, Stream& compute);
  /// Takes part in all collectives of this micro-batch, gathers included, for a rank without tokens.
  void contribute_nothing(Stream& compute);
  /// Checks that every group with trained segments was given back. With delayed scaling, updates the scales
  /// of activations by the amaxes of all ranks.
  void end_micro_batch(Stream& compute);
  void finish(const StepInput& input, Stream& compute);
  /// Returns the result of the last finish. `compute` must have been synchronised after that finish.
  StepResult collect();

  /// Sets limits for the steps, from the next finish on. A step that exceeds a limit changes nothing; it is
  /// skipped like a step with a non-finite norm. The limits must be the same on all ranks.
  void limit_steps(const ops::StepLimits& limits);

  /// Takes part in the gathers of a forward pass outside steps, for a rank without rows.
  void pass_by(Stream& compute);

  /// Returns a source for a rank that tests which work a step enqueues. It serves the parameters and gradient
  /// buffers with their present contents. Nothing is gathered, reduced or counted, and gradients are
  /// discarded. Use it between steps, while the store lives.
  std::unique_ptr<model::ParameterSource> rehearsal();

  /// Fills masters and weights that are not trained, and makes the compute copies. All ranks must call it.
  ///
  /// `fill` receives the slices of parameters that this rank needs (f32, by Hugging Face name, in host
  /// memory) and must write every element. It is called several times with a part of the slices, equally
  /// often on all ranks. Slices of FP8 weights that are not trained are requested twice, because their scales
  /// are made first.
  ///
  /// Ranks share the quantisation to NF4, so a rank then receives another part than it needs. With
  /// Nf4Weights::stored, `fill` receives arrays as in bitsandbytes files: whole one-dimensional tensors
  /// "<name>" (codes, u8) and "<name>.absmax" (f32). With double quantisation these are "<name>.absmax" (u8),
  /// "<name>.nested_absmax" (f32) and "<name>.nested_offset" (f32 [1]).
  void initialise(Stream& compute, const std::function<void(const std::vector<TensorSlice>&)>& fill);
  /// Like initialise(), but only for weights that are not trained, which no checkpoint holds. Call
  /// refresh_copies afterwards.
  void load_fixed(Stream& compute, const std::function<void(const std::vector<TensorSlice>&)>& fill);
  /// Fills masters in place and weights that are not trained with new random values (model::initialise), and
  /// makes the compute copies. All ranks must call it.
  void initialise(Stream& compute, std::uint64_t seed);
  /// Makes compute copies and FP8 weights from the masters, and gathers them if sharded. All ranks must call
  /// it.
  void refresh_copies(Stream& compute, Scales scales);

  /// The next functions return the state of trained segments as named slices of host memory, in their storage
  /// formats:
  /// - parameters by Hugging Face name, "exp_avg/<name>" and "exp_avg_sq/<name>";
  /// - scales of 8-bit moments: "exp_avg_scale/<stored tensor>" and "exp_avg_sq_scale/<stored tensor>", one
  ///   for each 128 elements of the tensor as the layout stores it;
  /// - "fp8_weights/scale" and "fp8_weights/amax_history" with delayed scaling;
  /// - "optimizer/step" (i64 [1]).
  ///
  /// Padding is left out. Call these functions, and read and write their slices, only after synchronize() and
  /// outside steps. If the host cannot address the device memory, the slices are copies. Copies to read are
  /// valid until the next of these calls or the next step. Copies to write are valid until refresh_copies.
  ///
  /// owned: every element belongs to exactly one rank, at every stage. The owned slices of all ranks form a
  /// checkpoint. `others`: further state in device memory that is saved too; it is appended.
  std::vector<TensorSlice> owned_slices(const std::vector<TensorSlice>& others = {}) const;
  /// Like owned_slices(), but in place, so that they can be copied while a step begins. Only
  /// finish() writes the slices in `still`. "residuals/", `others` and the count of steps may change earlier.
  SnapshotSources owned_places(const std::vector<TensorSlice>& others = {}) const;
  /// Returns the slices that this rank must read to resume. Then call refresh_copies(compute,
  /// Scales::as_loaded).
  std::vector<TensorSlice> needed_slices(const std::vector<TensorSlice>& others = {}) const;
  /// Returns name, dtype and shape of every tensor of a checkpoint, whole and without data. The result is the
  /// same on all ranks and at every stage. A tensor that is stored in several pieces occurs several times.
  std::vector<TensorSlice> state_tensors(const std::vector<TensorSlice>& others = {}) const;
  /// Returns the gradient sums that the last finish measured (not divided by the label tokens), by Hugging
  /// Face name. Every element is on exactly one rank. Valid until the next micro-batch.
  std::vector<TensorSlice> gradient_slices() const;
  /// Returns the bytes of this rank's device memory that the update of a step reads and writes.
  std::size_t update_bytes() const;
  /// Blocks until compute, gathers and reductions are done.
  void synchronize(Stream& compute);

  /// Returns the number of updates so far, without skipped steps.
  std::int64_t optimizer_steps() const;
  /// Returns the scales of trained FP8 weights; null without an FP8 recipe or such tensors.
  const precision::ScaleSet* weight_scales() const;

  /// Enables statistics about casts of weights to FP8, from the next update on. refresh_copies always
  /// collects them.
  void watch_casts(bool on);
  /// Enqueues the copy to the host of the statistics of the casts that made the present weights. Call it
  /// before finish.
  void collect_casts(Stream& compute);
  /// Returns the statistics of this rank's casts by name. Call it after collect_casts and a wait for
  /// `compute`.
  std::vector<precision::CastRow> cast_rows() const;

 private:
  friend class Hashes;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace octet::store
