#pragma once

#include <string>

#include "layers/buffers.h"
#include "layers/group_builder.h"
#include "layers/pass.h"
#include "layers/work.h"
#include "octet/ops/lone_gemm.h"

namespace octet::model {

/// What a norm of the stream reads: the stream, or the stream and what is still to be added to it, and where
/// the sum goes.
struct NormInput {
  ops::ConstMatrix residual, delta;
  ops::Matrix sum;
};

/// A root-mean-square norm of rows, and what its backward pass needs but its input.
class Norm {
 public:
  /// `name` is that of the stored tensor, `module` the one that Hugging Face has ("input_layernorm").
  Norm(GroupBuilder& group, const std::string& name, const std::string& module, std::int64_t width,
       const Architecture& architecture);

  bool trained() const { return weight_.trained(); }
  /// Whether its input's gradient is wanted.
  void set_passes_on(bool passes_on) { passes_on_ = passes_on; }
  /// Whether backward has anything to do.
  bool runs_back() const { return trained() || passes_on_; }
  /// `rstd`: [tokens] f32.
  void reserve(float* rstd) { rstd_ = rstd; }
  void reserve(BlockBuffers& buffers) { rstd_ = buffers.floats("activations/norms", 1, Kept::activations); }
  std::size_t workspace(const Device& device, const Common& common) const;
  /// Forward, `again` times more in backward, and backward where it runs.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& again) const;

  void forward(const Call& call, const NormInput& input, const Wanted& out) const;
  /// Asks a GEMM of few tokens to make this norm of what it reads.
  void put_in_front(const Call& call, ops::LoneGemmArgs& of) const;

  /// The sum alone that forward would make of its input.
  void add(const Call& call, const NormInput& input) const;

  struct Gradient {
    ops::ConstMatrix dy;
    ops::ConstMatrix x;      ///< what forward normed
    ops::Matrix dx;          ///< added to, or overwritten
    bool accumulate = true;  ///< into dx
    ops::QuantizeInto into;  ///< what who reads dx wants
  };
  void backward(const Call& call, const Gradient& gradient) const;

 private:
  VectorHandle weight_;
  std::int64_t width_;
  float eps_;
  bool one_plus_weight_;
  bool passes_on_ = true;
  float* rstd_ = nullptr;
};

}  // namespace octet::model
