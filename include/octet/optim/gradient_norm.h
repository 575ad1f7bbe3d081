#pragma once

#include <cstdint>

#include "octet/ops/optimizer.h"

namespace octet::optim {

/// The norm of gradients in several slices, summed exactly. Its bits do not depend on the order of the slices
/// or on the number of ranks, if each slice starts at a multiple of 128 elements of its segment. Enqueue on
/// one stream: zero, add …, (sum the limbs over the ranks as integers,) finish.
class GradientNorm {
 public:
  /// Reserves the limbs as "step/norm".
  explicit GradientNorm(Arena& arena);
  void zero(Stream& stream);
  /// Adds the squares of gradient[0, count), f32 or bf16.
  void add(Stream& stream, const void* gradient, DType dtype, std::int64_t count);
  /// Writes grad_norm, grad_scale and skip; reads label_tokens and max_grad_norm.
  void finish(Stream& stream, ops::StepScalars* scalars);
  /// Device memory, limb_count() integers: the sum over ranks of all of them is the limbs of the whole.
  std::int64_t* limbs() { return limbs_; }
  static constexpr std::int64_t limb_count() { return ops::kExactLimbs + 1; }

 private:
  Device& device_;
  std::int64_t* limbs_ = nullptr;
};

}  // namespace octet::optim
