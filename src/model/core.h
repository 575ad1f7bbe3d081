// The parts of the transformer core: buffers (activations.cc), one block forward and backward (block_*.cc),
// the head (head.cc), and their order (transformer.cc).
#pragma once

#include <array>
#include <span>
#include <vector>

#include "octet/device/profile.h"
#include "octet/model/build.h"
#include "octet/model/transformer.h"
#include "octet/ops/gemm.h"
#include "octet/precision/quantizer.h"

namespace octet::model {

/// The four linear layers of a block, in the order of the layout.
enum Linear : std::size_t { kQkv, kOutput, kGateUp, kDown, kLinears };

/// Their names in plans and profiles.
inline constexpr std::array<const char*, kLinears> kLinearNames = {"qkv", "output", "gate_up", "down"};

/// Where a block's vectors stand in their segment; -1: the architecture has none.
inline constexpr int kInputNorm = 0, kMlpNorm = 1;
struct VectorIndex {
  int attention_output_norm = -1, mlp_output_norm = -1, q_norm = -1, k_norm = -1;
  std::array<int, kLinears> bias{-1, -1, -1, -1};
};

/// A linear layer's input between forward and backward.
struct SavedInput {
  ops::Matrix values;       ///< in the compute dtype; no data: only FP8 exists
  precision::Fp8Copy copy;  ///< FP8 copies; empty: the values are the operand
  ops::Operand operand;     ///< what the weight gradient reads; set by forward
};

/// What a block's backward pass needs. Buffers hold max_tokens rows.
struct BlockActivations {
  ops::Matrix input;   ///< [tokens, hidden]: the residual stream
  ops::Matrix middle;  ///< [tokens, hidden]: the residual stream after attention
  ops::Matrix qkv;     ///< rotated
  ops::Matrix gate_up;
  float* input_rstd = nullptr;
  float* mlp_rstd = nullptr;
  // With norms of queries and keys: the heads before them.
  ops::Matrix raw_heads;  ///< [tokens, (q_heads + kv_heads) * head_dim]
  float* head_rstd = nullptr;
  // With norms of what the sublayers add: what goes into them.
  ops::Matrix attention_output, mlp_output;  ///< [tokens, hidden]
  float* attention_output_rstd = nullptr;
  float* mlp_output_rstd = nullptr;
  float* lse = nullptr;
  std::array<SavedInput, kLinears> inputs;
};

/// Buffers that one block after the other uses.
struct Scratch {
  /// [tokens, hidden]: what a sublayer adds to the stream, if its product does not; gradient of a norm's
  /// output
  ops::Matrix delta;
  ops::Matrix gradient;         ///< [tokens, hidden]: gradient of the residual stream
  ops::Matrix wide;             ///< [tokens, max(hidden, q_width, intermediate)]
  ops::Matrix d_added;          ///< [tokens, hidden]: gradient of a sublayer's output before its norm
  ops::Matrix d_qkv;            ///< [tokens, qkv_width]
  precision::Fp8Copy x_copy;    ///< FP8 copies of the linear input at hand, where they are not kept
  precision::Fp8Copy d_copy;    ///< FP8 copy of one output gradient
  precision::Fp8Copy weight;    ///< FP8 copies of one weight, where they are made for each product
  ops::Matrix final_stream;     ///< [tokens, hidden]: input of the last norm
  ops::Matrix final_norm;       ///< [tokens, hidden]: its output, then its output's gradient
  float* final_rstd = nullptr;  ///< [tokens]
  ops::Matrix label_hidden;     ///< [labels, hidden], then its gradient
  ops::Matrix logits;           ///< [chunk, vocabulary]
  float* row_loss = nullptr;    ///< [chunk]
  ops::Workspace workspace;
};

/// The first `rows` rows of a buffer.
inline ops::Matrix top(ops::Matrix m, std::int64_t rows) {
  m.rows = rows;
  return m;
}

/// How attention of this pass sees the past: within documents, or through a cache.
struct AttentionInput {
  const std::int32_t* positions = nullptr;
  ops::Documents documents;
  const std::int32_t* slots = nullptr;
  KvCache* cache = nullptr;
};

/// Which products read the operands that a pass makes of linear inputs.
enum class Readers { all, forward, backward };

/// What a pass through the blocks does.
struct PassOptions {
  bool record = false;     ///< amaxes enter the histories
  bool keep = false;       ///< for a backward pass
  bool recompute = false;  ///< a forward pass inside backward: the input of the block is there already
  Readers readers = Readers::all;
};

class Transformer::Impl {
 public:
  Impl(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
       const TransformerOptions& options, precision::Audit* audit, PartialReduction* reduction);

  void train(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
             const LogitsHook& logits);
  void evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
                const LogitsHook& logits);
  void decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch, KvCache& cache,
              const ops::Matrix& logits);

  const Architecture architecture_;
  const TransformerOptions options_;
  const ParameterLayout layout_;
  precision::Quantizer quantizer_;

 private:
  // activations.cc
  void reserve_buffers(Arena& arena);
  void reserve_block(Arena& arena, std::size_t block);
  SavedInput reserve_input(Arena& arena, std::size_t block, Linear linear, std::int64_t width);
  void reserve_weight(Arena& arena);
  void reserve_gradients(Arena& arena);
  void reserve_head(Arena& arena);
  void reserve_workspace(Arena& arena);
  void make_rope_tables(Arena& arena);
  /// Of activations and gradients.
  ops::Scaling scaling() const {
    return quantizer_.recipe().blocks() ? ops::Scaling::rows : ops::Scaling::tensor;
  }
  ops::Matrix reserve_matrix(Arena& arena, const char* name, std::int64_t rows, std::int64_t cols) const;
  void plan_audit(const Device& device);
  /// What the device makes of the products of a linear layer, by their shapes: of each kind the worst of its
  /// parts.
  std::array<ops::GemmOutcome, 3> planned_products(const Device& device, const TensorSpec& weight) const;
  /// True when linear inputs are made again in backward, where they are read, in buffers that all share.
  bool remakes_inputs() const {
    return options_.training &&
           (options_.recompute == Recompute::norms || options_.recompute == Recompute::qkv);
  }
  bool remakes_qkv() const { return options_.training && options_.recompute == Recompute::qkv; }

  // block_forward.cc
  /// Whether products add what they make to the residual stream. Not where a norm or a sum over ranks comes
  /// in between: there it goes to scratch_.delta, and the next norm adds it.
  bool products_add() const { return !architecture_.sublayer_norms && reduction_ == nullptr; }
  /// The stream behind a block, where products add: the next block's input, or what the last norm reads.
  const ops::Matrix& stream_after(std::size_t block) const {
    return block + 1 < blocks_.size() ? blocks_[block + 1].input : scratch_.final_stream;
  }
  /// What a norm reads: the stream, or the stream and what is still to be added to it, and where the sum
  /// goes.
  struct NormInput {
    ops::ConstMatrix residual, delta;
    ops::Matrix sum;
  };
  /// Behind a sublayer, from the stream `before` it and the place of the stream `after` it.
  NormInput norm_input(const ops::Matrix& before, const ops::Matrix& after) const {
    if (products_add()) return {.residual = after, .delta = {}, .sum = {}};
    return {.residual = before, .delta = top(scratch_.delta, before.rows), .sum = after};
  }
  /// Leaves the stream in front of the MLP in the block's `middle`, and the stream behind it, or what the MLP
  /// adds, as forward_output says.
  void forward_block(Stream& stream, std::size_t block, const GroupParameters& parameters,
                     const NormInput& before, const AttentionInput& attention, const PassOptions& pass);
  void forward_norm(Stream& stream, std::size_t block, Linear next, const float* weight,
                    const NormInput& input, float* rstd, const PassOptions& pass);
  void attend(Stream& stream, std::size_t block, const AttentionInput& attention, const PassOptions& pass);
  /// Norms of the heads, where there are any, and the rotary embedding.
  void rotate(Stream& stream, std::size_t block, const GroupParameters& parameters, const ops::Matrix& qkv,
              const std::int32_t* positions, const PassOptions& pass);
  /// Product and bias of a linear layer whose input is ready, and `addend` if it has data. Runs of the
  /// weight's rows may have scales of their own: each makes its columns of `out`.
  void forward_linear(Stream& stream, std::size_t block, Linear linear, const GroupParameters& parameters,
                      const ops::Matrix& out, const ops::ConstMatrix& addend = {});
  /// The copies of a linear input that the readers of this pass need.
  precision::Fp8Copy copy_for(const SavedInput& saved, const PassOptions& pass) const;
  ops::Operand with_row(ops::Operand operand, const SavedInput& saved) const;
  /// The gated activation of the block's gate_up, as the input of its last linear layer.
  void activate(Stream& stream, std::size_t block, std::int64_t tokens, const PassOptions& pass);
  /// The operand of attention's output.
  void prepare_attended(Stream& stream, std::size_t block, std::int64_t tokens, const PassOptions& pass);
  /// The product of a sublayer's last linear layer, from the stream `before` the sublayer: leaves the stream
  /// `after` it where products add, else what is to be added in scratch_.delta.
  void forward_output(Stream& stream, std::size_t block, Linear linear, const GroupParameters& parameters,
                      const ops::Matrix& before, const ops::Matrix& after);

  // block_backward.cc
  /// Turns scratch_.gradient from the gradient of the stream after the block into that before it.
  /// `next_block` is the block whose backward pass follows, or -1.
  void backward_block(Stream& stream, std::size_t block, const GroupParameters& parameters,
                      const GroupGradients& gradients, const AttentionInput& attention,
                      std::int64_t next_block, const PassOptions& pass);
  /// Inputs of linear layers once more, before backward reads them; nothing when they were kept. The first
  /// norm's for qkv is made twice, because the gradient of attention's output takes its place in between.
  enum class Remade { activation, mlp_norm, qkv, attended, input_norm };
  void remake(Stream& stream, std::size_t block, Remade what, const GroupParameters& parameters,
              const AttentionInput& attention);
  /// Gradients of one linear layer: of its weight and bias, and of its input into `d_input`, which may lie
  /// where the layer's input does.
  void backward_linear(Stream& stream, std::size_t block, Linear linear, const GroupParameters& parameters,
                       const GroupGradients& gradients, const ops::ConstMatrix& d_output,
                       std::span<const ops::Operand> d_operands, const ops::Matrix& d_input);
  /// The weight of a linear layer as `product` reads it: as the source has it, or made now.
  std::vector<ops::Operand> weights_of(Stream& stream, std::size_t block, Linear linear,
                                       const GroupParameters& parameters, ops::Product product);
  /// What the weight gradient of a linear layer reads and writes.
  void weight_gradient(Stream& stream, std::size_t block, Linear linear,
                       std::span<const ops::Operand> d_operands, const ops::Matrix& d_weight, bool overwrite);
  struct NormBackward {
    ops::ConstMatrix dy, x;
    const float* rstd = nullptr;
    const float* weight = nullptr;
    float* d_weight = nullptr;  ///< null: not wanted
    ops::Matrix dx;
    bool accumulate = true;
    ops::QuantizeInto into;
  };
  void backward_norm(Stream& stream, const NormBackward& norm);
  /// The gradient of what a sublayer's last linear layer (kOutput or kDown) made, and its operand.
  struct OutputGradient {
    ops::Matrix values;
    std::vector<ops::Operand> operands;  ///< one for each scale, in the order of the columns
  };
  OutputGradient backward_output(Stream& stream, std::size_t block, Linear linear,
                                 const GroupParameters& parameters, const GroupGradients& gradients,
                                 std::int64_t tokens, const PassOptions& pass);
  void rotate_back(Stream& stream, std::size_t block, const GroupParameters& parameters,
                   const GroupGradients& gradients, const std::int32_t* positions, const ops::Matrix& d_qkv,
                   const ops::QuantizeInto& into);
  static float* vector_gradient(const GroupGradients& gradients, int index);
  /// Whether a linear layer's output gradient must exist in the compute dtype: for a bias, or because the
  /// recipe quantises finished matrices.
  bool wants_values(std::size_t block, Linear linear) const;
  /// What the producer of a linear layer's output gradient writes for the products that read it.
  ops::QuantizeInto fuse_gradient(std::int64_t block, Linear linear, const PassOptions& pass);
  /// The same for the producer of scratch_.gradient, which the last linear layer of a sublayer reads itself
  /// when no norm stands between.
  ops::QuantizeInto fuse_stream_gradient(std::int64_t block, Linear linear, const PassOptions& pass);

  // head.cc
  void forward_head(ParameterSource& source, Stream& stream, const MicroBatch& batch, bool training,
                    double* loss_sum, const LogitsHook& hook, const PassOptions& pass);
  void final_norm(Stream& stream, const GroupParameters& head, std::int64_t tokens);
  const ops::Operand& head_weight(const GroupParameters& head, const GroupParameters* embedding) const;

  // transformer.cc
  void check_batch(const MicroBatch& batch) const;
  void embed(ParameterSource& source, Stream& stream, const std::int32_t* ids, std::int64_t tokens);
  void forward_blocks(ParameterSource& source, Stream& stream, std::int64_t tokens,
                      const AttentionInput& attention, const PassOptions& pass);
  void backward_blocks(ParameterSource& source, Stream& stream, std::int64_t tokens,
                       const AttentionInput& attention, const PassOptions& pass);
  /// A product of the head.
  void product(Stream& stream, ops::Product product, const ops::Operand& a, const ops::Operand& b,
               const ops::Matrix& d, bool accumulate = false);
  /// One product, counted at its place.
  void multiply(Stream& stream, const precision::AuditPlace& place, const ops::GemmArgs& args);
  precision::AuditPlace place_of(std::size_t block, Linear linear) const {
    return {.row = linear, .layer = static_cast<std::int64_t>(block) + first_block_};
  }
  void reduce(Stream& stream, const ops::Matrix& part);

  /// Index of a linear layer's input or output gradient among the quantised tensors, or kPlain.
  std::int64_t input_tensor(std::size_t block, Linear linear) const;
  std::int64_t gradient_tensor(std::size_t block, Linear linear) const;
  /// A block's vector by its index; null for -1.
  static const float* vector(const GroupParameters& parameters, int index);
  std::size_t rope_of(std::size_t block) const;
  /// Rounded to the dtype of the table, as transformers rounds it.
  float embedding_scale() const;

  precision::Audit* audit_;
  PartialReduction* reduction_;
  std::int64_t first_block_ = 0, last_block_ = 0;  ///< [first, last)
  std::int64_t chunk_ = 0;                         ///< label rows of a chunk of logits
  VectorIndex vectors_;
  std::vector<BlockActivations> blocks_;  ///< by block - first_block_
  Scratch scratch_;
  std::vector<const float*> cosine_, sine_;  ///< by rope
  DType dtype_;
};

}  // namespace octet::model
