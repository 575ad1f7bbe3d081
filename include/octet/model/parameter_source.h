#pragma once

#include <span>
#include <vector>

#include "octet/model/layout.h"
#include "octet/ops/types.h"

namespace octet::model {

/// The parameters of a group for the core: weights[segment][tensor]. A matrix is an operand in f32, bf16 or
/// FP8. A vector is an operand in f32 with cols == 1. A matrix with several FP8 scales has no data in
/// `weights`. It has `parts`[segment][tensor] instead: runs of its rows, in order, with one scale each. Runs
/// are contiguous, and their scales are equally spaced.
struct GroupParameters {
  std::vector<std::vector<ops::Operand>> weights;
  std::vector<std::vector<std::vector<ops::Operand>>> parts;
  /// Returns the matrix as operands of GEMMs: its parts, or the whole matrix.
  std::span<const ops::Operand> operands(std::size_t segment, std::size_t tensor) const {
    if (!parts.empty() && !parts[segment][tensor].empty()) return parts[segment][tensor];
    return {&weights[segment][tensor], 1};
  }
  const ops::Operand& operator()(std::size_t segment, std::size_t tensor) const {
    return weights[segment][tensor];
  }
};

/// Gradient buffers of a group. Matrices have the shapes of the stored tensors, in f32 or bf16. Vectors are
/// f32 with cols == 1. They hold gradients of the *sum* of the losses. `overwrite`: this is the first
/// micro-batch into these buffers. The first GEMM into a tensor marked gradient_by_gemm then overwrites
/// it, and all other tensors are zero.
struct GroupGradients {
  std::vector<std::vector<ops::Matrix>> gradients;
  bool overwrite = false;
  /// Empty, or by rank of the expert group: the buffers for gradients of the tokens of this rank. They differ
  /// in segments with SegmentSpec::split_experts. The source then sums them in rank order.
  std::vector<GroupGradients> by_source = {};

  void set_overwrite(bool on) {
    overwrite = on;
    for (GroupGradients& source : by_source) source.overwrite = on;
  }
};

/// The direction of the core through the blocks. It lets a source gather the next group ahead.
enum class Pass { forward, backward };

/// Supplies parameters to the core and takes its gradients. The source decides which rank stores a shard and
/// when it is sent; `store` implements it. All calls enqueue. The core makes them from one thread, group by
/// group: acquire, use on `compute`, (gradients, use, give_back,) release.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  virtual const ParameterLayout& layout() const = 0;
  /// Makes a group's parameters readable for work enqueued on `compute` after this call, until release. A
  /// group may be acquired again while it is held (a tied head): each acquire has its release.
  virtual const GroupParameters& acquire(int group, Pass pass, Stream& compute) = 0;
  virtual void release(int group, Pass pass, Stream& compute) = 0;
  /// Whether parameters stay readable at their addresses after release, for later work of the pass.
  virtual bool keeps() const { return false; }
  /// Called when the forward pass of a training micro-batch is enqueued up to its last block. The source may
  /// exchange results of this pass with other ranks while the head and backward run.
  virtual void blocks_done(Stream& compute) = 0;
  /// Returns the buffers for the gradients of this micro-batch, writable for work enqueued on `compute` after
  /// this call. Returns the same buffers until give_back. A frozen group has none and needs no call.
  virtual const GroupGradients& gradients(int group, Stream& compute) = 0;
  /// Called when all gradients of this group and micro-batch are enqueued on `compute`. The source may reduce
  /// them.
  virtual void give_back(int group, Stream& compute) = 0;
};

}  // namespace octet::model
