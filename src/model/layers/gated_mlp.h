#pragma once

#include <vector>

#include "layers/sublayer_output.h"

namespace octet::model {

/// The second sublayer of a block: norm, gate and up, gated activation, down (Shazeer 2020,
/// arXiv:2002.05202).
class GatedMlp {
 public:
  GatedMlp(GroupBuilder& group, const Architecture& architecture, std::int64_t layer);

  std::vector<Linear*> linears() { return {&gate_up_, &output_.linear()}; }
  std::vector<const Linear*> linears() const { return {&gate_up_, &output_.linear()}; }
  const SublayerOutput& output() const { return output_; }
  bool trained() const { return norm_.trained() || gate_up_.trained() || output_.trained(); }
  /// Whether the stream's gradient is wanted in front of it.
  void set_passes_on(bool passes_on);
  /// Whether backward has anything to do.
  bool runs_back() const { return output_.runs_back(); }
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens) const;

  /// From the stream `before` (which is, or becomes, `stream`) to `after`, as SublayerOutput::forward says.
  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after);
  /// Gradients of its tensors as far down as one is trained, or, where it is wanted, that of the stream,
  /// which lies in the scratch and is added to. `into`: what its reader wants.
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into);

 private:
  /// The input of the first product, from the stream.
  void normalise(const Call& call, const NormInput& input);
  /// The input of the last product, from gate and up.
  void activate(const Call& call);

  std::int64_t width_;
  ops::Activation activation_;
  Norm norm_;
  Linear gate_up_;
  SublayerOutput output_;
  ops::Matrix gated_;  ///< [tokens, 2 * width]: gate and up, then their gradient
};

}  // namespace octet::model
