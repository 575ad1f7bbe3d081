#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/model/kv_cache.h"
#include "octet/model/parameter_source.h"
#include "octet/model/partial_sums.h"
#include "octet/precision/audit.h"
#include "octet/precision/casts.h"
#include "octet/precision/scaling.h"

namespace octet::model {

/// Which activations are kept from forward to backward; what is not is computed again where backward reads
/// it. All give the same bits, and recomputation neither records nor rolls amaxes. none: all are kept. norms:
/// not the outputs of norms and of the gated activation, and no FP8 copies of inputs. qkv: nor the rotated
/// queries, keys and values (the first product of a block is made again). full: only the input of each block.
enum class Recompute { none, norms, qkv, full };

/// The most tokens of a micro-batch that the core can be built for.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

/// What the core is built for; all buffers are reserved for these sizes.
struct TransformerOptions {
  std::int64_t max_tokens = 0;     ///< of a micro-batch (or of one decode call)
  std::int64_t max_length = 0;     ///< of a document
  std::int64_t max_positions = 0;  ///< length of the rotary tables; 0: max_length
  std::int64_t max_labels = 0;     ///< label rows of a micro-batch; 0: max_tokens
  bool training = true;            ///< false: no gradients, activations of one block only
  Recompute recompute = Recompute::none;
  DType gradient_dtype = DType::f32;  ///< of the gradients of matrices: f32 or bf16
  /// Of the chunk of logits; at least one row is kept. Each chunk adds to the whole gradient of the head once
  /// more, so that small chunks of a large vocabulary would move little else; half of it where the head is
  /// frozen.
  std::size_t logits_bytes = std::size_t{1} << 30;
  /// The bits of products do not depend on the number of threads, and a token's logits not on what stands
  /// beside it: decode() gives those of evaluate() (GemmArgs::fixed_order, AttentionArgs::fixed_order). On a
  /// GPU not with FP8. Not from a cache in E4M3.
  bool fixed_order = false;
  /// The blocks [first_block, last_block) that this core runs; last_block -1: all from the first one on. The
  /// core with the first block has the embedding, that with the last one the head.
  int first_block = 0;
  int last_block = -1;
  /// Of a share whose layers make parts of sums; outlives the core.
  PartialSums* partial_sums = nullptr;
};

/// One micro-batch, flat: the tokens of its documents one behind the other, without padding. All pointers are
/// device memory but host_cu_seqlens. Ids are below the vocabulary, positions below max_positions.
struct MicroBatch {
  const std::int32_t* ids = nullptr;         ///< [documents.tokens]
  const std::int32_t* positions = nullptr;   ///< [documents.tokens]
  const std::int32_t* label_rows = nullptr;  ///< [labels] distinct tokens whose logits are wanted
  const std::int32_t* targets = nullptr;     ///< [labels] the next token of each, below 0: no loss
  std::int64_t labels = 0;
  ops::Documents documents;
  /// [documents.tokens] or null: what dropout of adapters knows a token by (a number of its sample, position
  /// and step), so that its noise does not depend on who computes it. Without it nothing is dropped.
  const std::uint64_t* names = nullptr;
};

/// Gets the logits of label rows [first_row, first_row + logits.rows), capped where the architecture caps
/// them, before the loss overwrites them. What it enqueues goes to `stream`.
using LogitsHook =
    std::function<void(Stream& stream, const ops::ConstMatrix& logits, std::int64_t first_row)>;

/// New tokens of sequences in a KvCache: a prompt, a part of it, or one token of each of several sequences.
/// Tokens of one sequence come in order, without a gap after what the cache holds.
struct DecodeBatch {
  /// [tokens], counted from the first id of the share's vocabulary (vocabulary_of_share): below 0 and above
  /// its end where another rank has the token's row.
  const std::int32_t* ids = nullptr;
  const std::int32_t* slots = nullptr;      ///< [tokens]
  const std::int32_t* positions = nullptr;  ///< [tokens], below the cache's capacity
  std::int64_t tokens = 0;
  /// The first so many tokens are each the only one of their sequence here.
  std::int64_t alone = 0;
  const std::int32_t* rows = nullptr;  ///< [row_count] tokens whose logits are wanted
  std::int64_t row_count = 0;
};

/// Rows of each expert, by block; blocks without experts are left out.
using ExpertLoads = std::map<std::int64_t, std::vector<std::int64_t>>;

/// The transformer core: forward and backward, block by block, explicitly. All calls enqueue on the given
/// stream, always the same one, and return; nothing is allocated after construction. Parameters come from a
/// ParameterSource whose layout is build_layout(architecture); gradients of the sum of losses go back to it.
/// A micro-batch without tokens takes part in every acquire and give_back.
class Transformer {
 public:
  /// Reserves all buffers in `arena`. `audit` may be null and must outlive the core. Throws Error for sizes
  /// that are impossible.
  Transformer(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
              const TransformerOptions& options, precision::Audit* audit = nullptr);
  ~Transformer();
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  /// Forward and backward of one micro-batch; *loss_sum (device) += sum of the losses of its label rows.
  void train(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
             const LogitsHook& logits = {});
  /// The two halves of train, for cores that run a part of the blocks each. Forward reads the hidden states
  /// in front of the first block from `in`, unless this core has the embedding, and leaves those behind the
  /// last one in `out`, unless it has the head: then it makes the losses. `in` and `out`: [documents.tokens,
  /// hidden], dense, in the compute dtype. Backward of the same micro-batch comes next.
  void forward(ParameterSource& source, Stream& stream, const MicroBatch& batch, const ops::ConstMatrix& in,
               const ops::Matrix& out, double* loss_sum, const LogitsHook& logits = {});
  /// Reads the gradient of `out` and leaves that of `in`, in the same way. Backward ends below the lowest
  /// tensor that is trained: where no block or embedding in front of this core has any, `d_in` stays as it
  /// is.
  void backward(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                const ops::ConstMatrix& d_out, const ops::Matrix& d_in);
  /// Forward alone; nothing is recorded into FP8 histories.
  void evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
                const LogitsHook& logits = {});
  /// Appends tokens to the cache; logits [row_count, vocabulary of the share] (f32 or compute dtype) are
  /// those of batch.rows, in their order. In a fixed order those in the compute dtype have the bits that
  /// evaluate() hands out. A core without the first block reads hidden states from `in`, one without the last
  /// block leaves them in `out` and makes no logits: both as forward() has them.
  void decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch, KvCache& cache,
              const ops::Matrix& logits, const ops::ConstMatrix& in = {}, const ops::Matrix& out = {});

  /// Returns the load of experts in the micro-batches that were trained after the last call, and counts anew.
  ExpertLoads take_expert_loads();

  /// Scales of activations and output gradients, or null without FP8. With delayed scaling the caller reduces
  /// amaxes() by MAX over the ranks and updates the scales once after each trained micro-batch; those of
  /// inputs are raised until the source's blocks_done, those of gradients after it.
  precision::ScaleSet* activation_scales();
  /// What casts of linear inputs and output gradients to FP8 meet, and those of weights where products make
  /// them; null without FP8.
  precision::CastStatistics* casts();
  /// The same by name, as collected last.
  std::vector<precision::CastRow> cast_rows() const;

  const Architecture& architecture() const;
  const TransformerOptions& options() const;
  const precision::Recipe& recipe() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Of how many tokens, at most `most`, a decoding pass is enqueued without a look of the host's at what
/// became of it: of all, or of a mixture of experts of as many as have grouped products (ops/grouped_gemm.h).
std::int64_t unwatched_tokens(const Device& device, const Architecture& architecture,
                              const precision::Recipe& recipe, bool fixed_order, std::int64_t most);

}  // namespace octet::model
