#pragma once

#include <string>
#include <string_view>

#include "layers/buffers.h"
#include "layers/group_builder.h"
#include "layers/pass.h"
#include "layers/work_list.h"
#include "octet/ops/decode_gemm.h"

namespace octet::model {

/// The input of a norm of the stream. `residual` is the stream. With a pending sum, `delta` is added first,
/// and the sum is written to `sum`.
struct NormInput {
  ops::ConstMatrix residual, delta;
  ops::Matrix sum;
};

/// Returns a name of ModuleNames, or the usual name if it is empty.
inline std::string named_or(std::string_view name, const char* usual) {
  return name.empty() ? usual : std::string(name);
}

/// A root-mean-square norm of rows, or a layer norm. It keeps the reciprocal root mean squares (the means and
/// the reciprocal deviations) for backward.
class Norm {
 public:
  /// `name`: the name of the stored tensor. `module`: the Hugging Face name ("input_layernorm").
  /// `of_stream`: its input is the residual stream.
  Norm(GroupBuilder& group, const std::string& name, const std::string& module, std::int64_t width,
       const Architecture& architecture, bool of_stream = true);

  /// Replaces the epsilon of the architecture.
  void set_eps(double eps) { eps_ = static_cast<float>(eps); }
  bool trained() const { return weight_.trained() || bias_.trained(); }
  /// Sets whether the gradient of its input is needed.
  void set_passes_on(bool passes_on) { passes_on_ = passes_on; }
  /// Whether backward has work to do.
  bool runs_back() const { return trained() || passes_on_; }
  /// Returns the number of floats that are kept for each row.
  std::int64_t kept() const { return layer_norm_ ? 2 : 1; }
  /// `rstd`: [kept(), tokens] f32.
  void reserve(float* rstd) { rstd_ = rstd; }
  void reserve(BlockBuffers& buffers) {
    rstd_ = buffers.floats("activations/norms", kept(), Kept::activations);
  }
  std::size_t workspace(const Device& device, const Common& common) const;
  /// Returns the operations of forward, of `again` repetitions in backward, and of backward if it runs.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& again) const;

  void forward(const Call& call, const NormInput& input, const Wanted& out) const;
  /// Fuses this norm into a GEMM of few tokens, as the norm of its input. Returns false and leaves `of`
  /// unchanged for a layer norm.
  bool put_in_front(const Call& call, ops::DecodeGemmArgs& of) const;

  /// Computes only the pending sum of `input`.
  void add(const Call& call, const NormInput& input) const;

  struct Gradient {
    ops::ConstMatrix dy;
    ops::ConstMatrix x;      ///< input of forward
    ops::Matrix dx;          ///< gradient of x
    bool accumulate = true;  ///< adds to dx; false: overwrites it
    ops::QuantizeInto into;  ///< formats that the reader of dx needs
  };
  void backward(const Call& call, const Gradient& gradient) const;

 private:
  /// The means, after the reciprocal deviations.
  float* means(const Call& call) const { return rstd_ == nullptr ? nullptr : rstd_ + call.tokens; }

  VectorHandle weight_;
  VectorHandle bias_;
  bool layer_norm_;
  std::int64_t width_;
  float eps_;
  bool one_plus_weight_;
  bool passes_on_ = true;
  float* rstd_ = nullptr;
};

}  // namespace octet::model
