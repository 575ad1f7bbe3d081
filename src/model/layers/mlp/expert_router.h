#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "layers/linear.h"
#include "layers/mlp/shared_expert.h"

namespace octet::model {

/// The router of a mixture of experts (ExpertShape). It selects the experts of each token, orders rows by
/// expert, and counts the rows. It is in the compute dtype, and its softmax is in fp32. Logits and the order
/// of rows are kept for backward. Training may drop rows beyond the capacity of an expert
/// (TransformerOptions::expert_capacity).
class ExpertRouter {
 public:
  ExpertRouter(GroupBuilder& group, const Architecture& architecture);

  bool trained() const { return gate_.trained(); }
  void reserve(BlockBuffers& buffers);
  /// Reserves the gradients of logits and of the rows' weights. Requires training.
  void reserve_gradients(BlockBuffers& buffers);
  std::size_t workspace(const Device& device, const Common& common) const;
  /// Returns the GEMMs. `passes_on`: the gradient of its input is needed.
  std::vector<Operation> operations(std::int64_t tokens, bool passes_on) const;

  /// Routes all tokens, and orders the rows. In training, also adds the sums that losses of routers read.
  /// `normed`: [tokens, hidden].
  void forward(const Call& call, const ops::Matrix& normed);
  /// Computes the gradient of the router from weight_gradients(), and adds the gradient of its input to
  /// `d_normed` if `passes_on`.
  void backward(const Call& call, const ops::Matrix& normed, const ops::Matrix& d_normed, bool passes_on);

  /// Copies to the host which rows belong to which expert, and waits for the copy.
  void read_begins(const Call& call);
  /// Sets the copy on the host to no rows.
  void clear_begins();
  /// The result of the latest read_begins(), [count + 1].
  std::span<const std::int32_t> host_begins() const { return host_begins_; }
  /// Adds the rows of a micro-batch to the load. Requires read_begins().
  void count_load(const Call& call);
  /// Returns the load after the previous such call, and resets it.
  BlockLoad take_load(LoadOf of) { return std::exchange(load(of), no_load()); }

  // From ops::deal(), on the device.
  const std::int32_t* begins() const { return begins_; }          ///< [count + 1]
  const std::int32_t* row_tokens() const { return row_tokens_; }  ///< [tokens * taken]
  const std::int32_t* places() const { return places_; }          ///< [tokens * taken]
  const float* weights() const { return weights_; }               ///< [tokens * taken]
  float* weight_gradients() const { return d_weights_; }          ///< [tokens * taken]

 private:
  /// Orders rows by expert.
  void deal(const Call& call);
  /// Drops rows beyond the capacity of their experts, and orders the others again.
  void limit(const Call& call);
  /// Adds the sums of this router that losses of training read.
  void add_to_losses(const Call& call, const ops::ConstMatrix& logits) const;
  BlockLoad no_load() const {
    return {.rows = std::vector<std::int64_t>(static_cast<std::size_t>(shape_.count))};
  }
  BlockLoad& load(LoadOf of) { return of == LoadOf::training ? trained_ : evaluated_; }

  ExpertShape shape_;
  std::int64_t hidden_;
  TokenGate gate_;            ///< [count, hidden]
  VectorHandle choice_bias_;  ///< [count], or none

  float* logits_ = nullptr;        ///< [tokens, count]
  std::int32_t* taken_ = nullptr;  ///< [tokens, taken], from ops::route()
  float* shares_ = nullptr;        ///< [tokens, taken], from ops::route()
  std::int32_t *begins_ = nullptr, *row_tokens_ = nullptr, *places_ = nullptr;
  float* weights_ = nullptr;
  ops::Matrix d_logits_;  ///< [tokens, count]
  float* d_weights_ = nullptr;
  std::vector<std::int32_t> host_begins_;
  BlockLoad trained_ = no_load(), evaluated_ = no_load();
};

}  // namespace octet::model
