#pragma once

#include <string>
#include <vector>

#include "layers/input_norm.h"
#include "layers/linear.h"
#include "layers/sublayer_output.h"
#include "octet/model/work.h"
#include "octet/ops/activation.h"

namespace octet::model {

/// The second sublayer of a block: from a norm to the sum with the stream. It is a gated MLP or a mixture of
/// experts.
class Mlp {
 public:
  Mlp() = default;
  virtual ~Mlp() = default;
  Mlp(const Mlp&) = delete;
  Mlp& operator=(const Mlp&) = delete;

  /// Returns the linear layers for FP8 recipes, adapters and audits, in the order of the layout.
  virtual std::vector<Linear*> linears() = 0;
  virtual std::vector<const Linear*> linears() const = 0;
  virtual bool trained() const = 0;
  /// Sets whether the gradient of its input is needed.
  virtual void set_passes_on(bool passes_on) = 0;
  /// Whether backward has work to do.
  virtual bool runs_back() const = 0;
  virtual void reserve(BlockBuffers& buffers, const Common& common) = 0;
  virtual std::size_t workspace(const Device& device, const Common& common) const = 0;
  virtual std::vector<Operation> operations(std::int64_t tokens) const = 0;

  /// Returns the exchanges with other ranks of a trained micro-batch.
  virtual Exchanges exchanges() const { return {}; }

  /// Computes the output from the stream `before`. If `before` has a pending sum, this first writes the sum
  /// to `stream`. See SublayerOutput::forward() for `after`.
  virtual void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                       const ops::Matrix& after) = 0;
  /// Computes the gradients of its tensors, down to the lowest trained tensor. If the input's gradient is
  /// needed, adds to the stream's gradient in the scratch. `into`: formats that the reader of that gradient
  /// needs.
  virtual void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) = 0;
  /// In a parallel block, backward() stops before the norm. This function then adds to the stream's gradient
  /// in the scratch, if that is needed.
  virtual void pass_on(const Call&, const ops::Matrix& /*stream*/, const ops::QuantizeInto& /*into*/) {}

  /// See the functions of SublayerOutput: post-norm, input of the next norm, pending sum, and the copies that
  /// the producer of the stream's gradient must write.
  virtual bool normed() const = 0;
  virtual NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const = 0;
  virtual void settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const = 0;
  virtual ops::QuantizeInto wanted(const Call& call) const = 0;

  /// Returns the load of its experts after the previous such call, and resets it. Empty without experts.
  virtual BlockLoad take_load(LoadOf) { return {}; }
};

/// Returns the Hugging Face name of the norm before an MLP.
std::string mlp_norm_name(const Architecture& architecture);

/// Norm, gate and up, gated activation, down (Shazeer 2020, arXiv:2002.05202). Without a gate: norm, up,
/// activation, down.
class GatedMlp final : public Mlp {
 public:
  /// `shared`: the norm of attention in a parallel block, which this MLP has, too; null otherwise.
  GatedMlp(GroupBuilder& group, const Architecture& architecture, std::int64_t layer,
           const InputNorm* shared);

  std::vector<Linear*> linears() override { return {&gate_up_, &output_.linear()}; }
  std::vector<const Linear*> linears() const override { return {&gate_up_, &output_.linear()}; }
  bool trained() const override {
    return norm_.trained() || gate_up_.trained() || alpha_p_.trained() || output_.trained();
  }
  void set_passes_on(bool passes_on) override;
  bool runs_back() const override { return output_.runs_back(); }
  void reserve(BlockBuffers& buffers, const Common& common) override;
  std::size_t workspace(const Device& device, const Common& common) const override;
  std::vector<Operation> operations(std::int64_t tokens) const override;
  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after) override;
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;
  void pass_on(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;
  bool normed() const override { return output_.normed(); }
  NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override {
    return output_.sum(call, before, after);
  }
  void settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override {
    if (output_.leaves_sum(call)) norm_.add(call, output_.sum(call, before, after));
  }
  ops::QuantizeInto wanted(const Call& call) const override { return output_.wanted(call); }

 private:
  /// Computes the input of the first GEMM from the stream.
  void normalise(const Call& call, const NormInput& input, const ops::Matrix& stream);
  /// Like forward(), but as two kernels for very few tokens. Returns false and enqueues nothing if this is
  /// not possible.
  bool forward_decode(const Call& call, const NormInput& before, const ops::Matrix& stream,
                      const ops::Matrix& after) const;
  /// Computes the input of the last GEMM from gate and up.
  void activate(const Call& call);
  /// Computes the gradient of gate and up, and of alphas.
  void activate_back(const Call& call, const ops::Matrix& d_activated, const Wanted& wanted) const;
  /// Whether the gradient of gate and up, or of alphas, is needed.
  bool activates_back() const { return gate_up_.runs_back() || alpha_p_.trained(); }
  ops::Xielu xielu(const Call& call) const;
  /// The gradient of the norm's output.
  ops::Matrix d_normed(const Call& call) const;

  std::int64_t width_;
  bool has_gate_, parallel_;
  ops::Activation activation_;
  InputNorm norm_;
  Linear gate_up_;
  VectorHandle alpha_p_, alpha_n_, beta_, eps_;  ///< of xIELU, or none
  SublayerOutput output_;
  ops::Matrix
      gated_;  ///< [tokens, 2 * width]: gate and up, then their gradient; [tokens, width] without gate
};

}  // namespace octet::model
