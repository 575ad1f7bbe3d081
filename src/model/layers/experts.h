#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layers/mlp.h"

namespace octet::model {

/// A mixture of experts: norm, router, and gated MLPs of which each token takes some (ExpertShape). Forward
/// alone. Which token goes where is decided on the device; the host waits for it, sorts the tokens by their
/// experts, and enqueues for each expert that was taken its two products. Where layers are split among ranks,
/// each has a part of every expert's width and the whole router.
class Experts final : public Mlp {
 public:
  Experts(GroupBuilder& group, const Architecture& architecture);

  std::vector<Linear*> linears() override { return {}; }
  std::vector<const Linear*> linears() const override { return {}; }
  bool trained() const override { return false; }
  void set_passes_on(bool) override {}
  bool runs_back() const override { return false; }
  void reserve(BlockBuffers& buffers, const Common& common) override;
  std::size_t workspace(const Device& device, const Common& common) const override;
  std::vector<Operation> operations(std::int64_t tokens) const override;
  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after) override;
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;
  bool normed() const override { return false; }
  NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override;
  void settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override;
  ops::QuantizeInto wanted(const Call&) const override { return {}; }

 private:
  /// The experts of all tokens and their weights, on the host; waits for the stream.
  void pick(const Call& call);
  /// Tokens in the order of their experts, and where what each makes of them will lie.
  void sort(std::int64_t tokens);
  /// What the experts make of their tokens, in that order, into `made_`.
  void compute(const Call& call);
  /// Rows [begin, begin + count) of a weight.
  static ops::Operand rows_of(const Call& call, const MatrixHandle& weight, std::int64_t begin,
                              std::int64_t count);
  void multiply(const Call& call, const ops::Matrix& a, const ops::Operand& b, const ops::Matrix& d) const;

  ExpertShape shape_;  ///< its width is that of the rank's share
  bool sums_;          ///< over ranks
  std::int64_t hidden_;
  ops::Activation activation_;
  Norm norm_;
  MatrixHandle router_;   ///< [count, hidden]
  MatrixHandle gate_up_;  ///< [count * 2 * width, hidden]: of each expert gate, then up
  MatrixHandle down_;     ///< [count * hidden, width]

  ops::Matrix normed_;       ///< [tokens, hidden]
  ops::Matrix made_;         ///< [tokens * taken, hidden]: rows by expert, what goes in and what comes out
  ops::Matrix gated_;        ///< [tokens * taken, 2 * width]
  ops::Matrix activated_;    ///< [tokens * taken, width]
  float* logits_ = nullptr;  ///< [tokens, count]
  std::int32_t* taken_ = nullptr;   ///< [tokens, taken], as route() gives them, then by number: rows of made_
  float* weights_ = nullptr;        ///< [tokens, taken] of the same
  std::int32_t* tokens_ = nullptr;  ///< [tokens * taken]: of each row of made_ its token

  /// The same on the host, which the stream may still read when the next block has begun, and of each expert
  /// its first row: [count + 1].
  std::vector<std::int32_t> host_taken_, host_tokens_;
  std::vector<float> host_weights_;
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> next_;                   ///< rows that are still free, while they are dealt out
  std::vector<std::pair<std::int32_t, float>> own_;  ///< experts and weights of one token
};

}  // namespace octet::model
