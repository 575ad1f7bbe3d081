#pragma once

#include <optional>
#include <string>
#include <vector>

#include "layers/linear_operands.h"
#include "layers/norm.h"

namespace octet::model {

/// The norm between the residual stream and the first GEMM of a sublayer. An architecture may have none
/// (Architecture::input_norms). The GEMM then reads the stream.
class InputNorm {
 public:
  /// See Norm.
  InputNorm(GroupBuilder& group, const std::string& name, const std::string& module,
            const Architecture& architecture);
  /// `norm`: any norm of the group, if this one is missing. Its weight is an argument of kernels that only
  /// add.
  void set_other(const Norm& norm) { other_ = norm; }

  bool trained() const { return norm_ && norm_->trained(); }
  /// Sets whether the gradient of the stream is needed.
  void set_passes_on(bool passes_on);
  /// Whether backward has work to do.
  bool runs_back() const { return trained() || passes_on_; }
  void reserve(BlockBuffers& buffers);
  std::size_t workspace(const Device& device, const Common& common) const;
  /// Returns the operations of forward, of `again` repetitions in backward, and of backward if it runs.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& again) const;

  /// Computes the input of a linear layer from the stream, which is `stream` after a pending sum of `input`.
  void forward(const Call& call, const NormInput& input, const ops::Matrix& stream, LinearInput& to) const;
  /// See Norm::put_in_front().
  bool put_in_front(const Call& call, ops::DecodeGemmArgs& of) const;
  /// Computes only the pending sum of `input`.
  void add(const Call& call, const NormInput& input) const;
  /// Adds to the gradient of the stream, dx. See Norm::backward().
  void backward(const Call& call, const Norm::Gradient& gradient) const;

 private:
  std::int64_t width_;
  std::optional<Norm> norm_, other_;
  bool passes_on_ = true;
};

}  // namespace octet::model
