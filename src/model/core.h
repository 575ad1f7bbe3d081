// The implementation of the core: the layers of a model and the order of a pass through them.
#pragma once

#include <functional>

#include "layers/model_layers.h"
#include "octet/model/transformer.h"

namespace octet::model {

/// Acquires the groups of a pass in order and hands matrices from layer to layer.
class Transformer::Impl {
 public:
  /// `options` must be checked and complete.
  Impl(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
       const TransformerOptions& options, precision::Audit* audit);

  void forward(ParameterSource& source, Stream& stream, const MicroBatch& batch, const ops::ConstMatrix& in,
               const ops::Matrix& out, const LossOutputs& losses);
  void backward(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                const ops::ConstMatrix& d_out, const ops::Matrix& d_in);
  void evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch, const LossOutputs& losses);
  /// Writes the log-probabilities of the answers to `out`, with or without adapters.
  void score(ParameterSource& source, Stream& stream, const MicroBatch& batch, bool adapters, double* out);
  void decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch, KvCache& cache,
              const ops::Matrix& logits, const ops::ConstMatrix& in, const ops::Matrix& out);
  ExpertLoads take_expert_loads(LoadOf of);
  /// Throws unless this core runs all blocks.
  void require_whole() const;

  const Architecture& architecture() const { return architecture_; }
  Common& common() { return common_; }

 private:
  /// The state of one pass of a micro-batch.
  struct Passing {
    ParameterSource& source;
    Stream& stream;
    AttentionInput attention;
    std::int64_t tokens = 0;
    PassOptions options;
    const std::uint64_t* names = nullptr;
    const std::int32_t* given_experts = nullptr;  ///< MicroBatch::experts
    std::int32_t* chosen_experts = nullptr;       ///< DecodeBatch::experts
  };

  bool has_embedding() const { return range_.first == 0; }
  bool has_head() const { return range_.last == architecture_.layers; }
  int embedding_group() const { return layers_.layout().embedding_group(); }
  int head_group() const { return layers_.layout().head_group(); }
  Call call(const Passing& pass, const GroupParameters& parameters,
            const GroupGradients* gradients = nullptr) {
    return {common_,        pass.stream, parameters,   gradients,
            pass.attention, pass.tokens, pass.options, pass.names};
  }
  /// Returns the call of a block of this core.
  Call call_of_block(const Passing& pass, int layer, const GroupParameters& parameters);
  Passing training_pass(ParameterSource& source, Stream& stream, const MicroBatch& batch) const;

  void reserve(Arena& arena);
  /// Reserves Common::ones.
  void reserve_ones(Arena& arena);
  void reserve_router_sums(Arena& arena);
  /// Zeroes the sums of routers before a micro-batch.
  void clear_router_sums(Stream& stream);
  /// Adds the load-balancing loss and the z-loss, and computes their gradients.
  void add_router_losses(const Passing& pass, const MicroBatch& batch, double* loss_sum);
  /// Plans an audit row for each name and shape of linear layers, and sets it as the place of these layers.
  void plan_audit(const Device& device);
  /// Plans the audit row of the adapters of `linears`, which share one row of linear layers.
  void plan_adapters(const LinearLayer& facts, const std::vector<std::pair<Linear*, std::int64_t>>& linears);
  void check_batch(const MicroBatch& batch) const;
  /// Sets the input of the first block: `in`, or the embedding of `ids`.
  void enter(const Passing& pass, const std::int32_t* ids, const ops::ConstMatrix& in);
  void forward_blocks(const Passing& pass, const ops::Matrix& out);
  /// Calls `use` with the head's group and the weight of the head. A tied weight is in the embedding's group.
  void with_head(const Passing& pass, bool training,
                 const std::function<void(const Call&, const HeadWeight&)>& use);
  void lose(const Passing& pass, bool training, const MicroBatch& batch, const LossOutputs& losses);
  /// The pass of an evaluation.
  Passing forward_pass(ParameterSource& source, Stream& stream, const MicroBatch& batch) const;
  /// Copies `d_out`, the gradient of the last block's output, to the scratch, like the head does.
  void take_gradient(const Call& call, const ops::ConstMatrix& d_out);
  void backward_blocks(const Passing& pass, const ops::ConstMatrix& d_out);
  /// Passes on the gradient of the first block's input if an earlier tensor is trained: to `d_in`, or to the
  /// embedding.
  void leave(const Passing& pass, const std::int32_t* ids, const ops::Matrix& d_in);

  const Architecture architecture_;
  ModelLayers layers_;
  BlockRange range_;
  Common common_;
};

}  // namespace octet::model
