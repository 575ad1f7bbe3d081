#pragma once

#include <vector>

#include "layers/input_norm.h"
#include "layers/sublayer_output.h"
#include "octet/model/work.h"

namespace octet::model {

/// The first sublayer of a block: from a norm to the sum with the stream. It mixes the tokens of a document,
/// by attention or by a delta rule.
class TokenMixer {
 public:
  TokenMixer() = default;
  virtual ~TokenMixer() = default;
  TokenMixer(const TokenMixer&) = delete;
  TokenMixer& operator=(const TokenMixer&) = delete;

  /// Returns the linear layers for FP8 recipes, adapters and audits, in the order of the layout.
  virtual std::vector<Linear*> linears() = 0;
  virtual std::vector<const Linear*> linears() const = 0;
  virtual const SublayerOutput& output() const = 0;
  virtual const InputNorm& norm() const = 0;
  virtual bool trained() const = 0;
  /// Sets whether the gradient of its input is needed.
  virtual void set_passes_on(bool passes_on) = 0;
  /// Whether backward has work to do.
  bool runs_back() const { return output().runs_back(); }
  virtual void reserve(BlockBuffers& buffers, const Common& common) = 0;
  virtual std::size_t workspace(const Device& device, const Common& common) const = 0;
  virtual std::vector<Operation> operations(std::int64_t tokens, std::int64_t length) const = 0;

  /// Computes the output from the stream `before`. If `before` has a pending sum, this first writes the sum
  /// to `stream`. See SublayerOutput::forward() for `after`.
  virtual void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                       const ops::Matrix& after) = 0;
  /// Computes the gradients of its tensors, down to the lowest trained tensor. If the input's gradient is
  /// needed, adds to the stream's gradient in the scratch. `into`: copies that the reader of it needs.
  virtual void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) = 0;
};

}  // namespace octet::model
