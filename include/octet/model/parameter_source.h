#pragma once

#include <span>
#include <vector>

#include "octet/model/layout.h"
#include "octet/ops/types.h"

namespace octet::model {

/// A group's parameters as the core reads them: weights[segment][tensor]. Matrices carry an operand (f32,
/// bf16 or FP8); vectors an operand in f32 with cols == 1. A matrix whose rows have several FP8 scales has no
/// data there, but `parts`[segment][tensor]: runs of its rows, in order, with a scale each.
struct GroupParameters {
  std::vector<std::vector<ops::Operand>> weights;
  std::vector<std::vector<std::vector<ops::Operand>>> parts;
  /// The matrix as operands of products: its parts, or itself.
  std::span<const ops::Operand> operands(std::size_t segment, std::size_t tensor) const {
    if (!parts.empty() && !parts[segment][tensor].empty()) return parts[segment][tensor];
    return {&weights[segment][tensor], 1};
  }
  const ops::Operand& operator()(std::size_t segment, std::size_t tensor) const {
    return weights[segment][tensor];
  }
};

/// Where a group's gradients go: matrices of the stored tensors' shapes, f32 or bf16 (vectors: f32 with
/// cols == 1), gradients of the *sum* of the losses. `overwrite`: this is the first micro-batch into these
/// buffers, so the first product into a tensor marked gradient_by_product overwrites instead of adding; all
/// other tensors were zeroed.
struct GroupGradients {
  std::vector<std::vector<ops::Matrix>> gradients;
  bool overwrite = false;
};

/// Which way the core walks through the blocks: what comes next can be gathered ahead.
enum class Pass { forward, backward };

/// Where the core gets parameters and leaves gradients. Which rank holds what, and when it travels, is the
/// source's affair; `store` implements it. All calls enqueue; the core calls from one thread, group by group:
/// acquire, use on `compute`, (gradients, use, give_back,) release.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  virtual const ParameterLayout& layout() const = 0;
  /// Makes a group's parameters readable for work enqueued on `compute` after this call, until release. A
  /// group may be acquired again while it is held (a tied head): each acquire has its release.
  virtual const GroupParameters& acquire(int group, Pass pass, Stream& compute) = 0;
  virtual void release(int group, Pass pass, Stream& compute) = 0;
  /// Whether parameters stay readable where they are after their release, for work that a pass enqueues
  /// later.
  virtual bool keeps() const { return false; }
  /// The forward pass of a micro-batch that trains is enqueued as far as the last block: what it left for
  /// other ranks may travel while the head and backward compute.
  virtual void blocks_done(Stream& compute) = 0;
  /// Buffers for the gradients of this micro-batch, writable for work enqueued on `compute` after this call.
  /// The same buffers come back until give_back. A group of which nothing is trained has none, and need not
  /// be asked for.
  virtual const GroupGradients& gradients(int group, Stream& compute) = 0;
  /// All gradients of this group and micro-batch are enqueued on `compute`: the source may reduce them.
  virtual void give_back(int group, Stream& compute) = 0;
};

}  // namespace octet::model
