#pragma once

#include <optional>
#include <string>
#include <vector>

#include "layers/linear.h"
#include "layers/norm.h"

namespace octet::model {

/// The end of a sublayer (attention, MLP): a linear layer whose output is added to the residual stream, in
/// some architectures after a norm. Without a norm the product adds to the stream itself, or a sum over ranks
/// that can. Otherwise the sum is left to who reads the stream next, which is a norm, too.
class SublayerOutput {
 public:
  /// `norm`: Hugging Face's name of the norm; `name`: that of the stored tensor. Used where the architecture
  /// has such norms.
  SublayerOutput(GroupBuilder& group, const Architecture& architecture, const LinearShape& linear,
                 const std::string& name, const std::string& norm);

  Linear& linear() { return linear_; }
  const Linear& linear() const { return linear_; }
  bool normed() const { return norm_.has_value(); }
  /// Whether the sum is left to who reads the stream next.
  bool leaves_sum(const Call& call) const { return norm_ || (sums_ && !sums_add(call)); }
  bool trained() const { return linear_.trained() || (norm_ && norm_->trained()); }
  /// Whether the linear layer's input's gradient is wanted.
  void set_passes_on(bool passes_on);
  /// Whether backward has anything to do.
  bool runs_back() const { return linear_.runs_back() || (norm_ && norm_->trained()); }
  void reserve(BlockBuffers& buffers, const Common& common);
  /// `again`: how often backward makes the product again.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& again) const;

  /// Of the linear layer's input that is ready: adds to the stream `before` and puts the sum into `after`, or
  /// leaves in the scratch what is to be added.
  void forward(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const;
  /// The same of very few tokens `x`, the input's values in bf16, by a kernel that takes them as they are.
  bool takes_lone(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                  const ops::Matrix& after) const;
  void forward_lone(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                    const ops::Matrix& after) const;
  /// What a norm behind the sublayer reads, of the same two.
  NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const;

  /// Puts the sum into `after` where it is not there yet; `any`: a norm of the stream, which adds.
  void settle(const Call& call, const Norm& any, const ops::Matrix& before, const ops::Matrix& after) const;

  /// What the producer of the stream's gradient writes for this sublayer, beside the values.
  ops::QuantizeInto wanted(const Call& call) const;
  /// Gradients of norm, weight and bias, and, where it is wanted, that of the linear layer's input into
  /// `d_input`, from the stream's gradient in the scratch.
  void backward(const Call& call, const ops::Matrix& d_input);

 private:
  ops::LoneGemmArgs lone(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                         const ops::Matrix& after) const;
  /// Whether the product goes elsewhere first, and where it goes.
  bool made_apart() const { return norm_ || sums_; }
  ops::Matrix made(const Call& call) const;
  /// Whether sums over ranks add to the stream.
  bool sums_add(const Call& call) const;
  /// Sums that product over ranks, where they have shares, and norms it, where there is a norm.
  void finish_made(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const;

  bool sums_;  ///< over ranks
  Linear linear_;
  std::optional<Norm> norm_;
  ops::Matrix made_;  ///< with a norm: what goes into it
};

}  // namespace octet::model
