#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layers/expert_adapters.h"
#include "layers/expert_room.h"
#include "layers/linear_operands.h"
#include "layers/low_rank.h"
#include "layers/weight.h"
#include "octet/model/work.h"

namespace octet::model {

/// The description of a linear layer.
struct LinearShape {
  /// "qkv": used in names of tensors, plans and profiles. Profiles keep the pointer.
  const char* name = "";
  const char* title = "";     ///< "attention q, k, v": name in messages and tables
  std::int64_t inputs = 0;    ///< input dimension of the whole model
  std::vector<Part> modules;  ///< "self_attn.q_proj" with its outputs, …
  bool bias = false;
  double init_std = 0.02;
  bool reads_stream = false;    ///< its input is the residual stream, in the buffers of the block
  bool kept_values = false;     ///< the producer of its input reads the values again in backward
  SplitRule inputs_split = {};  ///< how ranks split its inputs; its outputs are then partial sums
  bool adds_bias = true;        ///< false: another rank adds the bias to the sum
  /// In a mixture, `modules` lists the modules of the first expert, then of the second, …
  std::int64_t experts = 0;  ///< experts on this rank; 0: no mixture
  std::int64_t taken = 1;    ///< experts per token
  std::int64_t sources = 1;  ///< ranks that send their tokens to these experts
  std::int64_t first = 0;    ///< the number of the first of these experts in the whole mixture
  /// In a mixture: the name of all modules of an expert as one module, which can have one adapter.
  const char* joined = "";
};

/// A linear layer y = x · Wᵀ + b: a weight, an optional bias, adapters, and the operands of its GEMMs. The
/// layer declares the formats that it needs. The producers of its input and of its output's gradient write
/// them.
class Linear {
 public:
  Linear(GroupBuilder& group, const LinearShape& shape);

  const char* name() const { return name_; }
  /// Whether it has the weights of experts.
  bool of_mixture() const { return mixture_; }
  /// Whether any of its tensors is trained.
  bool trained() const;
  /// Sets whether the gradient of its input is needed.
  void set_passes_on(bool passes_on) { passes_on_ = passes_on; }
  /// Whether backward has work to do.
  bool runs_back() const { return trained() || passes_on_; }
  const Weight& weight() const { return weight_; }
  Weight& weight() { return weight_; }
  const LowRank& adapters() const { return adapters_; }
  LowRank& adapters() { return adapters_; }
  /// In a mixture: the adapters of each expert; empty without adapters.
  std::vector<LowRank>& expert_adapters() { return expert_adapters_.each(); }
  const std::vector<LowRank>& expert_adapters() const { return expert_adapters_.each(); }
  /// The layer's row of the work table, and its operations with `tokens` tokens (work.h). In a mixture,
  /// `tokens` are the rows of all experts.
  LinearLayer facts() const;
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& forward_again) const;

  LinearInput& input() { return input_; }
  const LinearInput& input() const { return input_; }
  OutputGradient& output_gradient() { return output_gradient_; }
  /// Returns the formats that the producer of the output's gradient must write: `values` if the compute dtype
  /// is needed, and FP8 copies. The compute dtype is needed for a bias, for adapters, and if the recipe
  /// quantises a matrix only after all of it was written.
  Wanted wanted_gradient(const Call& call, const ops::Matrix& values) const;
  /// Returns the operands for backward, after the producer wrote `d_output` and the wanted copies.
  std::vector<ops::Operand> gradient_written(const Call& call, const ops::ConstMatrix& d_output) const;
  /// Likewise, if the producer wrote only the values.
  std::vector<ops::Operand> gradient_values_written(const Call& call, const ops::ConstMatrix& d_output) const;

  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;

  /// Computes `out` from input(), which must be written. Adds `addend` if it has data.
  void forward(const Call& call, const ops::Matrix& out, const ops::ConstMatrix& addend = {}) const;
  /// forward_decode() is the variant of forward() for very few tokens, fused with adjacent ops. `args` has
  /// all members except weight and bias. Not for training. takes_decode() returns whether it is possible, and
  /// enqueues nothing.
  bool takes_decode(const Call& call, const ops::DecodeGemmArgs& args) const;
  void forward_decode(const Call& call, const ops::DecodeGemmArgs& args) const;
  /// Recomputes the intermediate results that backward reads, from a recomputed input. Used if backward does
  /// not read the output of the layer.
  void remake(const Call& call) const;
  /// Computes the gradients of weight, bias and adapters if they are trained. Writes the gradient of the
  /// input to `d_input` if it is needed. `d_input` may alias the input. `operands`: from gradient_written().
  void backward(const Call& call, const ops::ConstMatrix& d_output, std::span<const ops::Operand> operands,
                const ops::Matrix& d_input) const;

  /// In a mixture: reserves the buffers of adapters.
  void reserve_expert_adapters(BlockBuffers& buffers, const Common& common);
  /// In a mixture: whether backward reads results of the layer for its own outputs (DoRA).
  bool scales_experts() const;
  /// In a mixture: whether adapters have dropout.
  bool drops_experts() const { return expert_adapters_.drops(); }

  // In a mixture: the GEMMs of all experts with the rows of their tokens, as one kernel or one by one. These
  // functions make FP8 copies in the scratch. With current scaling, all rows share one scale if one
  // kernel multiplies them. Otherwise the rows of each expert share one scale.

  /// Returns the largest number of rows with FP8 copies that these functions make at once.
  std::int64_t copied_rows(const Device& device, const Common& common) const;
  /// The weights of all experts for grouped GEMMs; see Weight::stored().
  const ops::Operand& stored(const Call& call) const { return weight_.stored(call); }
  /// Whether gradients of the weight or of adapters are computed, which read inputs and output gradients. A
  /// bias is trained together with its weight.
  bool learns() const { return weight_.trained() || !expert_adapters_.empty(); }
  /// Computes the outputs of the rows x[i] = tokens[rows.tokens[i]]. `x` is overwritten: by the rows, or by
  /// FP8 copies if only kernels in FP8 read them.
  void forward_tokens(const Call& call, const ExpertRows& rows, const ops::Matrix& tokens,
                      const ops::Matrix& x, const ops::Matrix& out) const;
  /// Returns the outputs that the producer of `x` must write before forward_experts().
  Wanted wanted_rows(const Call& call, const ops::Matrix& x) const;
  /// Computes the outputs of rows x, which the producer wrote in the formats of wanted_rows().
  void forward_experts(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                       const ops::Matrix& out) const;
  /// Adds the biases of experts, if there are any, to outputs of the grouped GEMMs. forward_tokens() and
  /// forward_experts() do this themselves. `begins`: ExpertRows::begins.
  void add_biases(const Call& call, const std::int32_t* begins, const ops::Matrix& out) const;
  /// Adds the part of the biases to the gradients of the weights of rows, [rows]. `d_tokens`: as for
  /// input_gradient_of_tokens().
  void add_biases_to_weights(const Call& call, const ExpertRows& rows, const ops::Matrix& d_tokens,
                             float* d_weights) const;
  /// Writes the gradient of x to `d_x` if it is needed, for gradients d_output[i] = d_tokens[rows.tokens[i]].
  /// `d_output` is overwritten: by these rows if the layer learns(), otherwise by rows or FP8 copies. Delayed
  /// scaling records the amax.
  void input_gradient_of_tokens(const Call& call, const ExpertRows& rows, const ops::Matrix& d_tokens,
                                const ops::Matrix& d_output, const ops::Matrix& d_x) const;
  /// Returns how many rows x and d_output must have in the two functions below. This is `rows`, or a larger
  /// number up to `room` with which one kernel computes the weight gradients of all experts. The additional
  /// rows belong to no expert and must be zero.
  std::int64_t padded_rows(const Call& call, std::int64_t rows, std::int64_t room) const;
  /// Returns the outputs that the producer of `d_output` must write before experts_gradients().
  Wanted wanted_row_gradients(const Call& call, const ops::Matrix& d_output) const;
  /// Computes the gradients of the weight and of adapters if the layer learns(), then the gradient of x if it
  /// is needed. The producer wrote `d_output` in the formats of wanted_row_gradients(). `d_x` may be x. x is
  /// not read if the layer does not learn.
  void experts_gradients(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                         const ops::Matrix& d_output, const ops::Matrix& d_x) const;
  /// Returns the matrix with the rows that the caller must multiply by the router weights of these rows. The
  /// caller does this after input_gradient_of_tokens() and before experts_weight_gradient(). The matrix is
  /// `d_output`, or the smaller A x with its gradient. It is empty if the layer does not learn.
  ops::Matrix unweighted(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                         const ops::Matrix& d_output) const;
  /// Computes the gradients of the weight and of adapters if they are trained, after unweighted() with the
  /// same arguments.
  void experts_weight_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                               const ops::Matrix& d_output) const;

 private:
  void add_expert_adapters(GroupBuilder& group, const LinearShape& shape);
  /// Returns the random keys of tokens (MicroBatch::names) in the order of rows, for dropout. Null without
  /// it.
  const std::uint64_t* names_of_rows(const Call& call, const ExpertRows& rows) const;
  const LowRank* adapters_of(std::int64_t expert) const {
    if (expert_adapters_.empty()) return nullptr;
    const LowRank& one = expert_adapters_.each()[static_cast<std::size_t>(expert)];
    return one ? &one : nullptr;
  }
  /// The rows of this rank's experts.
  ExpertRoom room() const { return {.taken = taken_, .experts = experts_, .sources = sources_}; }
  /// Whether a GEMM of the weight reads the output's gradient.
  bool multiplies_gradient() const { return passes_on_ || weight_.trained(); }
  /// The bias that this rank adds to each row; null: none.
  const float* added_bias(const Call& call) const { return adds_bias_ ? bias_.in(call.parameters) : nullptr; }
  std::optional<ops::DecodeGemmArgs> decode_args(const Call& call, const ops::DecodeGemmArgs& args) const;
  bool multiplies_together(const Call& call, ops::GemmKind gemm_kind, std::int64_t rows) const;
  /// Whether one kernel multiplies the rows of all experts in `gemm_kind`, and reads them in FP8. Adapters
  /// read the rows in the compute dtype.
  bool reads_fp8(const Call& call, ops::GemmKind gemm_kind, std::int64_t rows) const;
  /// Whether dgrad and wgrad read the same FP8 copies of the output gradient.
  bool shares_row_gradients(const Call& call, std::int64_t rows) const;
  /// Computes outputs, including the outputs of adapters. `operand`: x for one kernel; null: x is copied if
  /// needed.
  void forward_rows(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                    const ops::Operand* operand, const ops::Matrix& out) const;
  /// Likewise for the gradient of x. `follows`: rows_weight_gradient() was called just before, with the same
  /// gradient.
  void rows_input_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& d_output,
                           const ops::Operand* operand, const ops::Matrix& d_x, bool follows = false) const;
  void rows_weight_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                            const ops::Matrix& d_output, const ops::Operand* operand) const;
  /// Returns the matrices of adapters if the caller can weight the rows of A x and of its gradient instead of
  /// the rows of the output gradient.
  std::optional<ExpertAdapters::Matrices> with_inner(const Call& call, std::int64_t rows) const;
  /// Computes the input of DoRA's scaling: W x plus the output of adapters.
  void make_unscaled(const Call& call) const;

  const char* name_;
  const char* title_;
  std::int64_t experts_, taken_, sources_;
  bool mixture_;
  bool reads_stream_;
  bool kept_values_;
  bool adds_bias_;
  bool passes_on_ = true;
  Weight weight_;
  VectorHandle bias_;
  LowRank adapters_;
  ExpertAdapters expert_adapters_;
  std::uint64_t* row_names_ = nullptr;  ///< [tokens * taken] with dropout on experts
  LinearInput input_;
  OutputGradient output_gradient_;
};

}  // namespace octet::model
