// The store room: where parameters, gradients and optimizer state lie, and when they travel (Rajbhandari et
// al. 2020, "ZeRO: memory optimizations toward training trillion parameter models"). The four stages are
// four policies of one store (store.h): what is cut into slices, when shards are gathered, when gradients
// are reduced. Every segment of the layout is cut alike: rank r's slice is [r, r + 1) * padded / world, a
// whole number of 128-element blocks, so that FP8 scales and norms never see where a boundary lies.
//
// What makes the bits equal at every stage, with overlap or without: sums over ranks are made by one
// collective in rank order; the norm is summed exactly; the update of an element depends on that element
// alone; FP8 scales come from amaxes reduced by MAX.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/optim/adamw.h"
#include "octet/precision/scaling.h"

namespace octet::store {

/// When transposed copies of FP8 weights exist, where the device's products read them: the gradients of
/// inputs do, on GPUs. The bits are the same.
enum class TransposedWeights {
  kept,   ///< made with the weights, or when they have been gathered
  at_use  ///< made when the backward pass acquires a group, in a buffer that all blocks share
};

/// When messages go by nodes: sums inside a node first, in full precision, gathered slices to a node once.
enum class ByNode {
  off,
  automatic,  ///< among several nodes of several ranks: gathers, and reductions whose wire is narrow
  on          ///< all of them
};

/// In which formats masters, gradients and moments of matrices lie; those of vectors (norms, biases) are few
/// and always f32.
struct Storage {
  /// f32; or bf16, rounded stochastically at each update: then compute is bf16, and where it is also the
  /// format of the compute copies a master is its own copy.
  DType parameters = DType::f32;
  /// f32; or bf16, where parameters are: what products write and what of it is kept. Sums over micro-batches
  /// and ranks are kept in it too, but deterministic ones, which are f32 beside it.
  DType gradients = DType::f32;
  /// f32; bf16, rounded stochastically; or u8: 8-bit blocks with a scale each (ops::AdamWArgs).
  DType moments = DType::f32;
};

/// How the elements of a weight are written.
enum class Format {
  f32,
  bf16,
  fp8,  ///< the recipe's format of weights, with a scale for each tensor or part
  nf4   ///< half a byte, with a scale for each 64 elements; decoded where a group is used
};

/// Where weights lie between their uses, and the optimizer's state.
enum class Home {
  device,
  pinned,  ///< host memory that the device reads and writes. Of weights that are not trained: not built
  file     ///< Not built
};

/// Weights in NF4 (ops/nf4.h): each Hugging Face tensor is quantised by itself.
struct Nf4Weights {
  bool double_quantization = true;  ///< scales have 8 bits themselves
  /// Codes and scales are there already, and are asked for as such (ParameterStore::initialise); else tensors
  /// are quantised when they are loaded, from their values in the compute dtype.
  bool stored = false;
  /// Names of tensors that stay as products read them, among others of their segment.
  std::set<std::string> unquantised = {};
};

/// How weights lie that are not trained.
struct FixedWeights {
  /// Of matrices; nothing: as the recipe's products read them, so that FP8-eligible ones lie in FP8 where it
  /// scales tensors, and all others in the compute dtype. nf4: of the weights of blocks' linear layers, and
  /// all others as with nothing. Vectors are always f32.
  std::optional<Format> format;
  Home home = Home::device;
  Nf4Weights nf4;
};

struct Options {
  /// 0: every rank holds everything. 1: masters and moments are cut into slices. 2: sums of gradients too,
  /// gradient buffers are shared between blocks. 3: compute copies too, gathered before their use.
  int stage = 0;
  /// Every stage reduces every micro-batch into an fp32 sum, in rank order: all stages give the same bits.
  /// Without it stages 0 and 1 accumulate locally and reduce once a step.
  bool deterministic = true;
  /// The bits do not depend on the number of ranks either, for the same micro-batches in the same order, rank
  /// after rank: gradients are summed in a binary tree over all micro-batches of the step. A rank sums its
  /// own in whole gradient buffers, one per level of the tree ("gradients/tree"), and reduces once a step.
  /// Not with a narrow wire or delayed scaling, whose roundings and scales depend on who sums what.
  bool strict = false;
  int micro_batches = 1;  ///< strict: of every step, on each rank; every rank plans for as many
  /// Collectives run beside compute. Without it compute waits after each of them; the bits are the same.
  bool overlap = true;
  /// false: every segment is for inference, for evaluation and generation: weights only, no steps. Else what
  /// the layout calls trainable is trained, and the rest is frozen.
  bool training = true;
  FixedWeights fixed;
  comm::Wire wire = comm::Wire::f32;  ///< of gradients of large matrices, at stage 0 of their sums as well
  /// Every rank keeps what a narrow wire lost of its gradients (bf16, whole: "gradients/residuals") and adds
  /// it to the next reduction. It is state: owned_slices() has "residuals/<name>", [world, ...] a tensor. A
  /// skipped step, and a state of another number of ranks, begin again at zero.
  bool error_feedback = false;
  /// bf16, fp8: the format in which large matrices are gathered where the compute copy is wider; the core
  /// then computes with the decoded values on every rank, the owner included. f32: as the copy lies. Nothing
  /// is gathered at stage 0, nor by a lone rank.
  comm::Wire gather_wire = comm::Wire::f32;
  ByNode by_node = ByNode::automatic;
  TransposedWeights transposed = TransposedWeights::kept;
  precision::Recipe recipe;
  Storage storage;
  /// device or pinned: where moments lie, and masters that no pass reads, neither itself nor to gather it. An
  /// update then reads and writes them over the link between host and device. On a CPU both are its memory.
  Home state_home = Home::device;
  /// Elements of state in the host's memory that travel at a time, a multiple of ops::kMomentBlock: 48 MiB in
  /// fp32, which is long for the link and little beside what a GPU holds.
  std::int64_t state_piece = std::int64_t{1} << 22;
  optim::AdamWOptions adamw;
  double max_grad_norm = 1.0;  ///< 0: no clipping
};

/// What a stage means among `world` ranks; one rank has nothing to cut.
struct Policy {
  bool shard_state = false;       ///< masters and moments: own slice only
  bool shard_gradients = false;   ///< full gradients live from gradients() to their reduction only
  bool shard_parameters = false;  ///< whole compute copies live from acquire() to release() only
  bool reduce_each = false;       ///< every micro-batch is reduced into the sums
  bool tree = false;              ///< micro-batches are summed in a tree, reduced with the last
};

/// Throws std::logic_error for a stage outside 0 … 3, an unusable norm limit, or formats that do not go
/// together, none of which a configuration can ask for; Error (usage) for unusable hyper-parameters.
Policy policy_of(const Options& options, int world);

/// Whether a gather goes by nodes among ranks that stand like this one.
bool gathers_by_node(const Options& options, const comm::Place& place);
/// Whether a reduction in that format does. It decides about the order of the sum, and is the same at every
/// stage, with overlap or without.
bool reduces_by_node(const Options& options, const comm::Place& place, comm::Wire wire);

/// What the trainer knows when all micro-batches of a step are enqueued.
struct StepInput {
  double learning_rate = 0;
  std::int64_t label_tokens = 0;  ///< of this rank, over all its micro-batches
  /// Device: sum of this rank's losses; strict: [micro_batches] the sum of each. Null: none.
  const double* loss_sum = nullptr;
  bool update = true;  ///< false: gradients are reduced and measured, nothing else changes
};

/// What a step found, the same on all ranks.
struct StepResult {
  double loss_sum = 0;
  std::int64_t label_tokens = 0;
  double grad_norm = 0;  ///< of the mean gradient, before clipping
  bool skipped = false;  ///< no label tokens, or a norm that is not finite: nothing was updated
  double learning_rate = 0;
};

}  // namespace octet::store
