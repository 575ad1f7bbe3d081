#pragma once

#include <string>
#include <vector>

#include "layers/linear.h"
#include "layers/norm.h"

namespace octet::model {

/// A latent of multi-head latent attention, from the GEMM that computes it to the GEMM that expands it: a
/// norm and a linear layer. The latent is a range of columns of a wider matrix.
class Latent {
 public:
  /// `name`: of the stored norm ("kv_norm"). `module`: the Hugging Face name of the norm. `first`: the first
  /// column of the latent.
  Latent(GroupBuilder& group, const Architecture& architecture, const std::string& name,
         const std::string& module, std::int64_t first, const LinearShape& up);

  Linear& up() { return up_; }
  const Linear& up() const { return up_; }
  bool trained() const { return norm_.trained() || up_.trained(); }
  /// Sets whether the gradient of the latent is needed.
  void set_passes_on(bool passes_on);
  /// Whether backward has work to do.
  bool runs_back() const { return up_.runs_back(); }
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  /// `again`: how often backward repeats the GEMM.
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& again) const;

  /// Computes the expanded latent `out` from its columns of `all`.
  void forward(const Call& call, const ops::Matrix& all, const ops::Matrix& out);
  /// Computes the gradients of weights and norm from the gradient of the expanded latent. Writes the gradient
  /// of the latent to its columns of `d_all` if it is needed.
  void backward(const Call& call, const ops::Matrix& all, const ops::Matrix& d_out, const ops::Matrix& d_all);

 private:
  ops::Matrix columns(const ops::Matrix& all) const { return columns_of(all, first_, up_.weight().cols()); }
  /// Computes the input of the GEMM.
  void normalise(const Call& call, const ops::Matrix& all);

  std::int64_t first_;
  Norm norm_;
  Linear up_;
};

}  // namespace octet::model
