// The placement table. A row describes how the weights of a segment are stored and sharded. It determines
// which segments are gathered, reduced and updated.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/comm/collectives.h"
#include "octet/comm/mesh.h"
#include "octet/model/layout.h"
#include "octet/optim/adamw.h"
#include "octet/precision/scaling.h"

namespace octet::store {

// Options of the parameter store, which implements ZeRO (Rajbhandari et al. 2020, "ZeRO: memory optimizations
// toward training trillion parameter models"). The four stages are four policies of one store (store.h). A
// policy selects which state is sharded, when shards are gathered and when gradients are reduced. Every
// segment of the layout is sharded alike: rank r's slice is [r, r + 1) * padded / world. A slice is a whole
// number of 128-element blocks, so that no FP8 scale and no norm depends on slice boundaries. With sharding
// groups (Options::group), r and world are counted in the group.
//
// Results are bitwise equal at every stage, with overlap or without, for four reasons:
// - one collective sums over ranks in rank order;
// - the norm is summed exactly;
// - the update of an element depends on that element alone;
// - FP8 scales come from amaxes reduced by MAX.

/// When transposed copies of FP8 weights exist. GEMMs for input gradients need them on GPUs. The results are
/// bitwise equal.
enum class TransposedWeights {
  kept,   ///< made with the weights, or after their gather
  at_use  ///< made when the backward pass acquires a group, in a buffer shared by all blocks
};

/// When collectives are hierarchical. Sums are then first made inside a node, in full precision. Gathered
/// slices are then sent to each node once.
enum class Hierarchical {
  off,
  automatic,  ///< for several nodes with several ranks each: gathers, and reductions with a narrow wire
  on          ///< all gathers and reductions
};

/// Storage formats of the masters, gradients and moments of matrices. State of vectors (norms, biases) is
/// small and always f32.
struct Storage {
  /// f32, or bf16 with stochastic rounding at each update. bf16 requires bf16 compute. If compute copies are
  /// also bf16, a master is its own compute copy.
  DType parameters = DType::f32;
  /// f32, or bf16 if `parameters` is bf16. This is the format of the gradient buffers. Sums over
  /// micro-batches and ranks have it too, except deterministic sums, which are stored separately in f32.
  DType gradients = DType::f32;
  /// f32, bf16 with stochastic rounding, or u8: 8-bit blocks with one scale each (ops::AdamWArgs).
  DType moments = DType::f32;
};

/// Storage format of the elements of a weight.
enum class Format {
  f32,
  bf16,
  fp8,  ///< the recipe's weight format, with one scale per tensor or part
  nf4   ///< 4 bits, with one scale per 64 elements; decoded when a group is acquired
};

/// Memory that holds the state of the optimizer.
enum class Home {
  device,
  pinned  ///< host memory that the device reads and writes
};

/// Options of weights in NF4 (ops/nf4.h). Each Hugging Face tensor is quantised separately.
struct Nf4Weights {
  bool double_quantization = true;  ///< scales are quantised to 8 bits
  /// true: the checkpoint has codes and scales, and ParameterStore::initialise requests these. false: tensors
  /// are quantised when they are loaded, from their values in the compute dtype.
  bool stored = false;
  /// Names of tensors that stay in the format that GEMMs read, although their segment is in NF4.
  std::set<std::string> unquantised = {};
};

/// Storage of weights that are not trained.
struct FixedWeights {
  /// Format of matrices; vectors are always f32. Without a value, weights have the format that the recipe's
  /// GEMMs read: FP8-eligible weights are FP8 if the recipe scales tensors, and all others have the compute
  /// dtype. nf4 applies to weights of linear layers in blocks; all others are stored as without a value.
  std::optional<Format> format;
  Nf4Weights nf4;
};

struct Options {
  /// 0: every rank holds everything. 1: masters and moments are sharded. 2: gradient sums are sharded too,
  /// and blocks share gradient buffers. 3: compute copies are sharded too, and gathered before use.
  int stage = 0;
  /// Ranks of a sharding group. Groups consist of adjacent ranks, and every group holds all shards. Gradients
  /// are summed inside a group, then among the ranks with the same shard. Needs stage 1, 2 or 3. 1: nothing
  /// is sharded, as at stage 0. 0: all ranks form one group.
  int group = 0;
  /// true: every stage reduces every micro-batch into an fp32 sum, in rank order, so all stages give the same
  /// bits. false: stages 0 and 1 accumulate locally and reduce once per step.
  bool deterministic = true;
  /// true: the bits do not depend on the number of ranks either, for the same micro-batches in the same
  /// order, rank after rank. Gradients are summed in a binary tree over all micro-batches of the step. A rank
  /// sums its own gradients in whole gradient buffers, one per tree level ("gradients/tree"), and reduces
  /// once per step. Not allowed with narrow wires or delayed scaling: their rounding and scales depend on how
  /// the micro-batches are distributed.
  bool strict = false;
  int micro_batches = 1;  ///< strict: micro-batches of every step on each rank; equal on all ranks
  /// true: collectives overlap with compute. false: compute waits after each collective. The bits are the
  /// same.
  bool overlap = true;
  /// false: every segment is for inference (evaluation, generation); the store has weights only and takes no
  /// steps. true: trainable segments of the layout are trained, and the others are frozen.
  bool training = true;
  FixedWeights fixed;
  comm::Wire wire = comm::Wire::f32;  ///< for gradients of large matrices; at stage 0 also for their sums
  /// Every rank keeps the rounding errors of narrow wires for its gradients and adds them to the next
  /// reduction (bf16, whole: "gradients/residuals"). Residuals are state: owned_slices() has
  /// "residuals/<name>", of shape [world, ...] per tensor. They restart at zero after a skipped step, and for
  /// state from another number of ranks.
  bool error_feedback = false;
  /// Format in which large matrices are gathered if the compute copy is wider: bf16 or fp8. Every rank,
  /// including the owner, then computes with the decoded values. f32: copies are gathered unconverted.
  /// Nothing is gathered at stage 0, or with one rank.
  comm::Wire gather_wire = comm::Wire::f32;
  Hierarchical hierarchical = Hierarchical::automatic;
  TransposedWeights transposed = TransposedWeights::kept;
  precision::Recipe recipe;
  Storage storage;
  /// device or pinned: where moments are stored, and masters that no pass reads, directly or through a
  /// gather. With pinned, an update reads and writes them over the link between host and device. On a CPU,
  /// both are its memory.
  Home state_home = Home::device;
  /// Elements of offloaded state per transfer, a multiple of ops::kMomentBlock. The default is 48 MiB in
  /// fp32: large enough for full link bandwidth, and small compared with GPU memory.
  std::int64_t state_piece = std::int64_t{1} << 22;
  optim::AdamWOptions adamw;
  double max_grad_norm = 1.0;  ///< 0: no clipping
};

/// Effect of a stage for `world` ranks. With one rank, nothing is sharded.
struct Policy {
  bool shard_state = false;       ///< a rank holds only its slice of masters and moments
  bool shard_gradients = false;   ///< full gradients live from gradients() to their reduction only
  bool shard_parameters = false;  ///< whole compute copies live from acquire() to release() only
  bool reduce_each = false;       ///< every micro-batch is reduced into the sums
  bool tree = false;              ///< micro-batches are summed in a tree, reduced with the last
};

/// Returns the number of ranks among which state is sharded. Throws std::logic_error if it does not divide
/// `world`.
int shards_of(const Options& options, int world);
/// Returns whether several groups of several ranks hold the same shards (Options::group).
bool has_replicas(const Options& options, int world);
/// Returns whether groups of `ranks` ranks can sum in the order of Options::strict: the gradients of a group
/// are a node of the strict tree, or there is one group, or groups have one rank. True without
/// Options::strict.
bool keeps_order(const Options& options, std::int64_t ranks, int world);
/// Returns the grid of the sharding groups: kReplicaAxis x kShardAxis.
comm::Mesh group_mesh(const Options& options, int world);
inline constexpr const char* kShardAxis = "shard";      ///< the ranks of a group
inline constexpr const char* kReplicaAxis = "replica";  ///< the ranks with the same shards

/// Returns the policy of the options. Throws std::logic_error for a stage outside 0 … 3, an invalid norm
/// limit, or incompatible formats; configurations cannot request these. Throws Error (usage) for invalid
/// hyper-parameters.
Policy policy_of(const Options& options, int world);

/// Returns whether gathers are hierarchical for ranks placed as in `place`.
bool gathers_hierarchically(const Options& options, const comm::Place& place);
/// Returns whether reductions in the wire format `wire` are hierarchical. This determines the order of
/// summation. It is the same at every stage, with overlap or without.
bool reduces_hierarchically(const Options& options, const comm::Place& place, comm::Wire wire);
/// Like reduces_hierarchically(), for the sums inside a sharding group. Sums inside a node are in full
/// precision there, unless Options::hierarchical is off. `place` is the place in the group.
bool reduces_group_hierarchically(const Options& options, const comm::Place& place, comm::Wire wire);

/// Input of ParameterStore::finish, when all micro-batches of a step are enqueued.
struct StepInput {
  double learning_rate = 0;
  std::int64_t label_tokens = 0;  ///< of this rank, summed over its micro-batches
  /// Device memory: the sum of this rank's losses, or with `strict` [micro_batches] sums, one each. Null: no
  /// losses.
  const double* loss_sum = nullptr;
  bool update = true;  ///< false: gradients are only reduced and measured
};

/// Result of a step, the same on all ranks.
struct StepResult {
  double loss_sum = 0;
  std::int64_t label_tokens = 0;
  double grad_norm = 0;  ///< of the mean gradient, before clipping
  bool skipped =
      false;  ///< nothing was updated: no label tokens, a non-finite norm, or limit_steps() exceeded
  double learning_rate = 0;
};

/// Use of a segment. A segment that is not trained has no master, gradient or moment. It sends nothing after
/// loading, except gathers of sharded weights, and is not in checkpoints. Its weights are stored once, in the
/// format of the row.
enum class Role {
  trained,
  frozen,    ///< read by forward and backward passes
  inference  ///< read by forward passes only
};

/// The ranks over which a segment is sharded into equal slices.
enum class Axis { none, data };

/// A row of the table, for one segment.
struct Placement {
  Role role = Role::trained;
  Format format = Format::f32;  ///< storage format of the weights
  DType weights = DType::f32;   ///< dtype that GEMMs read: f32, bf16, or the recipe's FP8
  /// Axis of the weights that GEMMs read. Sharded weights are gathered before each use, unconverted unless
  /// Options::gather_wire selects a narrower format.
  Axis axis = Axis::none;

  // Trained segments only.
  Axis state_axis =
      /// Axis of master and moments. If it is `data` and the weights are whole, a gather follows each update.
      Axis::none;
  Axis gradient_axis = Axis::none;  ///< if `data`, whole gradients exist only until their reduction
  Home state_home = Home::device;   ///< of moments, and of masters that no pass reads
  DType master = DType::f32;
  DType gradient = DType::f32;
  DType moments = DType::f32;

  bool trained() const { return role == Role::trained; }
  /// Returns whether the weights are decoded for GEMMs when a group is acquired.
  bool decoded() const { return format == Format::nf4; }
  /// Returns whether a backward pass reads the weights.
  bool backward() const { return role != Role::inference; }
  /// Returns the axis of the memory kept between steps: the state, or the weights if not trained.
  Axis kept_axis() const { return trained() ? state_axis : axis; }
  /// Returns whether the weights are gathered, after each update or at each use.
  bool gathered() const { return kept_axis() == Axis::data; }
};

/// Returns one row per segment, by group. Throws as policy_of() does. Throws Error (usage) for formats
/// that GEMMs cannot read.
using Placements = std::vector<std::vector<Placement>>;
/// `same_experts`: number of ranks that share segments with SegmentSpec::split_experts.
Placements placements_of(const model::ParameterLayout& layout, const Options& options, int world,
                         int same_experts = 1);

}  // namespace octet::store
