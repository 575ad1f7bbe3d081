#pragma once

#include <vector>

#include "layers/linear.h"
#include "layers/norm.h"

namespace octet::model {

/// The second sublayer of a block, from a norm to what it adds to the stream, whatever lies between: one
/// gated MLP, or several of which each token takes some.
class Mlp {
 public:
  Mlp() = default;
  virtual ~Mlp() = default;
  Mlp(const Mlp&) = delete;
  Mlp& operator=(const Mlp&) = delete;

  /// Those that FP8 recipes, adapters and audits know, in the order of the layout.
  virtual std::vector<Linear*> linears() = 0;
  virtual std::vector<const Linear*> linears() const = 0;
  virtual bool trained() const = 0;
  /// Whether the stream's gradient is wanted in front of it.
  virtual void set_passes_on(bool passes_on) = 0;
  /// Whether backward has anything to do.
  virtual bool runs_back() const = 0;
  virtual void reserve(BlockBuffers& buffers, const Common& common) = 0;
  virtual std::size_t workspace(const Device& device, const Common& common) const = 0;
  virtual std::vector<Operation> operations(std::int64_t tokens) const = 0;

  /// From the stream `before` (which is, or becomes, `stream`) to `after`, as SublayerOutput::forward says.
  virtual void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                       const ops::Matrix& after) = 0;
  /// Gradients of its tensors as far down as one is trained, or, where it is wanted, that of the stream,
  /// which lies in the scratch and is added to. `into`: what its reader wants.
  virtual void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) = 0;

  /// As those of SublayerOutput: whether a norm stands between what it makes and the stream, what a norm
  /// behind it reads, the sum made whole, and what the producer of the stream's gradient writes for it.
  virtual bool normed() const = 0;
  virtual NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const = 0;
  virtual void settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const = 0;
  virtual ops::QuantizeInto wanted(const Call& call) const = 0;

  /// Returns the rows of each expert in the micro-batches that were trained after the last call, and counts
  /// anew; empty without experts.
  virtual std::vector<std::int64_t> take_load() { return {}; }
};

}  // namespace octet::model
