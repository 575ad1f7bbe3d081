#pragma once

#include <optional>
#include <string>
#include <vector>

#include "layers/linear.h"
#include "layers/norm.h"

namespace octet::model {

/// The end of a sublayer (attention, MLP): a linear layer and the addition of its output to the residual
/// stream. Some architectures have a post-norm before the addition. Without a post-norm, the GEMM or the sum
/// over ranks adds to the stream. Otherwise the sum is pending: the next norm of the stream computes it.
class SublayerOutput {
 public:
  /// `norm`: the Hugging Face name of the post-norm. `name`: the name of its stored tensor. Both are used
  /// only if the architecture has post-norms.
  SublayerOutput(GroupBuilder& group, const Architecture& architecture, const LinearShape& linear,
                 const std::string& name, const std::string& norm);

  Linear& linear() { return linear_; }
  const Linear& linear() const { return linear_; }
  bool normed() const { return norm_.has_value(); }
  /// The post-norm, if there is one.
  const std::optional<Norm>& norm() const { return norm_; }
  /// Whether forward() leaves a pending sum.
  bool leaves_sum(const Call& call) const { return norm_ || (sums_ && !sums_add(call)); }
  bool trained() const { return linear_.trained() || (norm_ && norm_->trained()); }
  /// Sets whether the gradient of the linear layer's input is needed.
  void set_passes_on(bool passes_on);
  /// Whether backward has work to do.
  bool runs_back() const { return linear_.runs_back() || (norm_ && norm_->trained()); }
  void reserve(BlockBuffers& buffers, const Common& common);
  /// `again`: how often backward repeats the GEMM.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& again) const;

  /// Computes the sublayer's output from the linear layer's input, which must be written. Writes its sum with
  /// the stream `before` to `after`, or leaves the output in the scratch (a pending sum).
  void forward(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const;
  /// forward_decode() is the variant of forward() for very few tokens. `x`: the input's values in bf16,
  /// without FP8 copies. takes_decode() returns whether it is possible.
  bool takes_decode(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                    const ops::Matrix& after) const;
  void forward_decode(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                      const ops::Matrix& after) const;
  /// Returns the input of the norm after the sublayer: `after`, or a pending sum of `before` and the output.
  NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const;

  /// Formats that the producer of the stream's gradient must write for this sublayer besides the values.
  ops::QuantizeInto wanted(const Call& call) const;
  /// Computes the gradients of norm, weight and bias from the stream's gradient in the scratch. Writes the
  /// gradient of the linear layer's input to `d_input` if it is needed.
  void backward(const Call& call, const ops::Matrix& d_input);

 private:
  ops::DecodeGemmArgs decode_args(const Call& call, const ops::ConstMatrix& x, const ops::Matrix& before,
                                  const ops::Matrix& after) const;
  /// Whether the GEMM writes to a separate buffer, and this buffer.
  bool made_apart() const { return norm_ || sums_; }
  ops::Matrix made(const Call& call) const;
  /// Whether the sum over ranks also adds to the stream.
  bool sums_add(const Call& call) const;
  /// Sums the GEMM's result over ranks if inputs are cut, and applies the post-norm if there is one.
  void finish_made(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const;

  bool sums_;  ///< over ranks
  Linear linear_;
  std::optional<Norm> norm_;
  ops::Matrix made_;  ///< with a post-norm: its input
};

}  // namespace octet::model
