#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/model/group_messages.h"
#include "octet/model/kv_cache.h"
#include "octet/model/parameter_source.h"
#include "octet/ops/distillation.h"
#include "octet/ops/judgement.h"
#include "octet/ops/preference.h"
#include "octet/ops/wire.h"
#include "octet/precision/audit.h"
#include "octet/precision/quantizer.h"
#include "octet/precision/scaling.h"

namespace octet::model {

/// Which activations are kept from forward to backward. Backward recomputes the others before it reads them.
/// All modes give the same bits. Recomputation neither records nor rolls amaxes.
/// none: all activations are kept.
/// norms: outputs of norms, outputs of the gated activation and FP8 copies of inputs are recomputed.
/// qkv: like norms, and rotated queries, keys and values are recomputed (the first GEMM of a block runs
/// again). full: only the input of each block is kept.
enum class Recompute { none, norms, qkv, full };

/// Upper limit of TransformerOptions::max_tokens.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

/// Changes to the cross-entropy of label rows, in training and evaluation (ops/cross_entropy.h).
struct TokenLoss {
  double smoothing = 0;                 ///< label smoothing
  bool by_probability = false;          ///< each row counts by the probability of its target (DFT)
  std::optional<double> entropy_power;  ///< each row counts by its entropy to this power (EAFT)
};

/// The loss of label rows that learn from the distributions of a teacher (ops/distillation.h).
struct TeacherLoss {
  ops::DistillationRule rule = {};
  std::int64_t ranks = 0;  ///< tokens that the teacher lists for each label row
};

/// Sizes and modes of a core. All buffers are reserved for these sizes.
struct TransformerOptions {
  std::int64_t max_tokens = 0;     ///< of a micro-batch (or of one decode call)
  std::int64_t max_length = 0;     ///< of a document
  std::int64_t max_positions = 0;  ///< length of the rotary tables; 0: max_length
  std::int64_t max_labels = 0;     ///< label rows of a micro-batch; 0: max_tokens
  bool training = true;            ///< false: no gradients, and activations of only one block
  Recompute recompute = Recompute::none;
  /// Coefficient of the z-loss of each router, which training adds (ops/routing.h); 0: none.
  double router_z_loss = 0;
  /// In training, an expert takes at most this factor times an even share of the rows of a micro-batch,
  /// rounded up (ops::limit_rows()); 0: no limit.
  double expert_capacity = 0;
  /// Micro-batches for training give the experts of their tokens (MicroBatch::experts).
  bool given_experts = false;
  DType gradient_dtype = DType::f32;  ///< dtype of the gradients of matrices: f32 or bf16
  /// Bytes of a chunk of logits. A chunk has at least one row. Each chunk reads and writes the whole gradient
  /// of the head, so this traffic limits the speed of small chunks of a large vocabulary. If the head is
  /// frozen, a chunk has half of these bytes.
  std::size_t logits_bytes = std::size_t{1} << 30;
  TokenLoss token_loss = {};
  /// The loss of a micro-batch is the loss of its pairs (MicroBatch::pairs) instead.
  std::optional<ops::PreferenceRule> preference = {};
  /// The loss of a micro-batch is the loss of its judged answers (MicroBatch::judged) instead. Excludes
  /// `preference`.
  std::optional<ops::JudgementRule> judgement = {};
  /// The loss of a label row also reads the teacher (MicroBatch::taught). Excludes `preference`, `judgement`,
  /// and changes by `token_loss`.
  std::optional<TeacherLoss> teacher_loss = {};
  /// evaluate() can count label rows with the target as the most probable token.
  bool counts_hits = false;
  /// Noise on the embeddings in training (ops/embedding_noise.h); 0: none. Needs MicroBatch::names.
  double embedding_noise = 0;
  /// Fixes the summation order of GEMMs and attention (GemmArgs::fixed_order, AttentionArgs::fixed_order).
  /// Results do not depend on the number of threads, and the logits of a token do not depend on other tokens
  /// of the batch: decode() returns the same bits as evaluate(). Not supported with FP8 on a GPU, or with a
  /// KV cache in E4M3.
  bool fixed_order = false;
  /// The core runs the blocks [first_block, last_block); last_block -1: up to the last block of the model.
  /// The core with the first block has the embedding. The core with the last block has the head.
  int first_block = 0;
  int last_block = -1;
  /// Sums the layers' outputs over the tensor group. Required if Share::sums(). Must outlive the core.
  PartialSums* partial_sums = nullptr;
  /// Brings tokens to experts of other ranks. Required if Share::splits_experts(). Must outlive the core. The
  /// ranks of the expert group then make the same calls; a rank without tokens calls with an empty
  /// micro-batch.
  TokenExchange* token_exchange = nullptr;
  /// With a TokenExchange: format of hidden values in transfer. Values that this rank's experts compute for
  /// this rank are rounded alike. f32: the compute dtype.
  ops::Wire exchange_wire = ops::Wire::f32;
  /// With a TokenExchange: buffers have room for this factor times the rows that a rank gets if all ranks get
  /// as many. A micro-batch with more rows throws Error on the ranks of the group. 0: room for every case.
  double exchange_room = 0;
  /// With a TokenExchange: the gradients of experts' weights for the tokens of each rank of the group are
  /// separate sums (GroupGradients::by_source), as without Share::splits_experts().
  bool sums_by_source = false;
};

/// Pairs of answers in a micro-batch, for TransformerOptions::preference (ops/preference.h).
struct Pairs {
  std::int64_t count = 0;
  /// [2 * count + 1], device: the first label row of each answer, and the number of label rows. Answers are
  /// chosen, rejected, chosen, …
  const std::int32_t* answers = nullptr;
  /// [2 * count], device: log-probabilities of the answers for the reference. Null if the loss reads none.
  double* references = nullptr;
  double* figures = nullptr;  ///< [ops::kPreferenceFigures], device: sums over pairs are added
};

/// Judged answers in a micro-batch, for TransformerOptions::judgement (ops/judgement.h).
struct Judged {
  std::int64_t count = 0;
  /// [count + 1], device: the first label row of each answer, and the number of label rows.
  const std::int32_t* answers = nullptr;
  const std::int32_t* desirable = nullptr;  ///< [count], device: 1, or 0 for undesirable answers
  double* references = nullptr;   ///< [count], device: log-probabilities of the answers for the reference
  const double* point = nullptr;  ///< device: the reference point z, one number
  double* figures = nullptr;      ///< [ops::kJudgementFigures], device: sums over answers are added
};

/// Tokens that a teacher lists for the label rows of a micro-batch, for TransformerOptions::teacher_loss. See
/// ops::DistillationArgs. All pointers are device memory, for the label rows in their order.
struct Taught {
  const std::int32_t* ids = nullptr;  ///< [labels, ranks]
  const float* logprobs = nullptr;    ///< [labels, ranks]
  const float* rest = nullptr;        ///< [labels]
  double* figures = nullptr;  ///< [ops::kDistillationFigures]: sums over label rows with a target are added
};

/// A flat micro-batch: the tokens of its documents are concatenated without padding. All pointers are device
/// memory, except host_cu_seqlens. Ids are below the vocabulary size, and positions below max_positions.
struct MicroBatch {
  const std::int32_t* ids = nullptr;         ///< [documents.tokens]
  const std::int32_t* positions = nullptr;   ///< [documents.tokens]
  const std::int32_t* label_rows = nullptr;  ///< [labels] distinct indices of tokens that need logits
  const std::int32_t* targets = nullptr;     ///< [labels] next token of each label row; below 0: no loss
  std::int64_t labels = 0;
  ops::Documents documents;
  /// [documents.tokens] or null: the random key of each token for the dropout of adapters. It is a number
  /// made of sample, position and step, so the noise does not depend on the rank. Null: no dropout.
  const std::uint64_t* names = nullptr;
  /// [blocks with experts, documents.tokens, experts per token] or null: the experts that the tokens take
  /// instead of the choice of the routers, in descending order of their weights. A first expert below 0: the
  /// router chooses. Not for evaluate().
  const std::int32_t* experts = nullptr;
  Pairs pairs = {};
  Judged judged = {};
  Taught taught = {};
};

/// Called with the logits of label rows [first_row, first_row + logits.rows) before the loss overwrites them.
/// The logits are soft-capped if the architecture caps them. The hook enqueues its work on `stream`.
using LogitsHook =
    std::function<void(Stream& stream, const ops::ConstMatrix& logits, std::int64_t first_row)>;

/// New tokens of sequences in a KvCache: a prompt, a part of a prompt, or one token of each of several
/// sequences. Tokens of one sequence are in order and follow the tokens in the cache without a gap.
struct DecodeBatch {
  /// [tokens], relative to the first id of the share's vocabulary (vocabulary_of_share). An id below 0 or
  /// past the end of the share belongs to another rank.
  const std::int32_t* ids = nullptr;
  const std::int32_t* slots = nullptr;      ///< [tokens]
  const std::int32_t* positions = nullptr;  ///< [tokens], below the cache's capacity
  std::int64_t tokens = 0;
  /// The first `alone` tokens are single-token sequences in this batch.
  std::int64_t alone = 0;
  const std::int32_t* rows = nullptr;  ///< [row_count] indices of tokens that need logits
  std::int64_t row_count = 0;
  /// [blocks with experts of this core, tokens, experts per token] or null: the core writes the chosen
  /// experts here, in descending order of their weights.
  std::int32_t* experts = nullptr;
};

/// The rows of a block's experts in some micro-batches.
struct BlockLoad {
  std::vector<std::int64_t> rows;  ///< of each expert
  std::int64_t dropped = 0;        ///< rows beyond the capacity of their expert
  bool operator==(const BlockLoad&) const = default;
};
/// Maps a block to the load of its experts. Blocks without experts have no entry.
using ExpertLoads = std::map<std::int64_t, BlockLoad>;
enum class LoadOf { training, evaluation };

/// The transformer core: explicit forward and backward passes, block by block. All calls enqueue on the given
/// stream and return. Every call must use the same stream. Nothing is allocated after construction. The core
/// reads parameters from a ParameterSource with the layout build_layout(architecture). It adds the gradients
/// of the sum of losses to the buffers of this source. A micro-batch without tokens makes the same acquire
/// and give_back calls as any other.
class Transformer {
 public:
  /// Reserves all buffers in `arena`. `audit` may be null and must outlive the core. Throws Error for
  /// impossible sizes.
  Transformer(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
              const TransformerOptions& options, precision::Audit* audit = nullptr);
  ~Transformer();
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  /// Forward and backward of one micro-batch; *loss_sum (device) += sum of the losses of its label rows.
  void train(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
             const LogitsHook& logits = {});
  /// The forward half of train(), for cores that run a part of the blocks. A core without the embedding reads
  /// the input of its first block from `in`. A core without the head writes the output of its last block to
  /// `out`. A core with the head computes the losses. `in` and `out`: [documents.tokens, hidden], dense, in
  /// the compute dtype. The next call must be backward() of the same micro-batch.
  void forward(ParameterSource& source, Stream& stream, const MicroBatch& batch, const ops::ConstMatrix& in,
               const ops::Matrix& out, double* loss_sum, const LogitsHook& logits = {});
  /// The backward half of train(). A core without the head reads the gradient of `out` from `d_out`. A core
  /// without the embedding writes the gradient of `in` to `d_in`. Backward stops at the lowest trained
  /// tensor: if no earlier block and no embedding is trained, `d_in` is not written.
  void backward(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                const ops::ConstMatrix& d_out, const ops::Matrix& d_in);
  /// Runs only forward. Records no amaxes into FP8 histories. *hits (device) += the number of label rows with
  /// their target as the most probable token. Requires TransformerOptions::counts_hits unless `hits` is null.
  void evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
                const LogitsHook& logits = {}, double* hits = nullptr);
  /// Runs only forward, like evaluate(), with adapters switched off, and writes batch.pairs.references or
  /// batch.judged.references. Without a change of weights, and with adapters that add nothing, the values
  /// have the bits of the log-probabilities that train() computes. May be called between the micro-batches of
  /// a step.
  void score_references(ParameterSource& source, Stream& stream, const MicroBatch& batch);
  /// Like score_references(), with adapters switched on, and writes the log-probabilities of all answers to
  /// `out`.
  void score_answers(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* out);
  /// Appends tokens to the cache and writes the logits of batch.rows, in their order: [row_count, vocabulary
  /// of the share], f32 or compute dtype. With fixed_order, logits in the compute dtype have the bits that
  /// evaluate() passes to its hook. A core without the first block reads hidden states from `in`. A core
  /// without the last block writes them to `out` and computes no logits. See forward() for `in` and `out`.
  void decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch, KvCache& cache,
              const ops::Matrix& logits, const ops::ConstMatrix& in = {}, const ops::Matrix& out = {});

  /// Returns the load of experts in the micro-batches that were trained, or evaluated, after the previous
  /// call with this argument. Resets these counts. Only for a core for training.
  ExpertLoads take_expert_loads(LoadOf of = LoadOf::training);

  /// Scales of activations and output gradients; null without FP8. With delayed scaling, the caller reduces
  /// amaxes() by MAX over the ranks and updates the scales once after each trained micro-batch. Amaxes of
  /// inputs are final at ParameterSource::blocks_done. Amaxes of gradients are recorded after it.
  precision::ScaleSet* activation_scales();
  /// Statistics of the FP8 casts of linear inputs and output gradients, and of weights if a cast precedes
  /// each GEMM. Null without FP8.
  precision::CastStatistics* casts();
  /// The statistics of casts() at the latest collection, by name.
  std::vector<precision::CastRow> cast_rows() const;

  const Architecture& architecture() const;
  const TransformerOptions& options() const;
  const precision::Recipe& recipe() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the largest number of tokens, up to `most`, of a decoding pass that needs no host synchronisation.
/// Without experts this is `most`. With experts, the pass must fit grouped GEMMs (ops/expert_gemm.h).
std::int64_t unwatched_tokens(const Device& device, const Architecture& architecture,
                              const precision::Recipe& recipe, bool fixed_order, std::int64_t most);

}  // namespace octet::model
