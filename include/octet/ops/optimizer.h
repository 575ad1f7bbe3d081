#pragma once

#include <span>

#include "octet/ops/types.h"

namespace octet::ops {

/// Exact, order-independent sum of non-negative doubles as a fixed-point number of 64-bit limbs with 32
/// significant bits each (a small superaccumulator after Kulisch): limb i counts units of 2^(32 * i - 512).
/// Adding the limbs of two ranks as integers adds the sums, so that a norm has the same bits at any sharding.
inline constexpr int kExactLimbs = 32;

/// Adds Σ x² to `limbs`: each block of 128 consecutive elements (blocks start at x) is summed in double, then
/// added exactly. Of a block, eight consecutive elements are summed in index order, and these 16 sums as
/// pairs 8, then 4, 2 and 1 apart. `count` need not divide by 128: what is missing counts as zero.
/// Infinities and NaNs set limbs[kExactLimbs] to non-zero instead.
struct SquareSumArgs {
  const void* x = nullptr;
  DType dtype = DType::f32;  ///< f32 or bf16
  std::int64_t count = 0;
  std::int64_t* limbs = nullptr;  ///< [kExactLimbs + 1] device; zero it first
};
void square_sum(Stream& stream, const SquareSumArgs& args);

/// What one optimizer step needs and what it found, in device memory so that the host need not wait.
struct StepScalars {
  // Written by the host before the step.
  float learning_rate = 0;
  float max_grad_norm = 0;     ///< 0: no clipping
  float bias_correction1 = 1;  ///< 1 - beta1^step
  float bias_correction2 = 1;  ///< 1 - beta2^step
  double label_tokens = 0;     ///< of the whole step, all ranks
  std::uint64_t noise = 0;     ///< key of this step's stochastic rounding
  // Written by finish_norm.
  float grad_norm = 0;    ///< of the mean gradient, before clipping; infinity or NaN when not finite
  float grad_scale = 0;   ///< what gradients are multiplied by: clip factor / label_tokens
  std::int32_t skip = 0;  ///< 1: the norm is not finite; the update leaves everything as it is
  std::int32_t padding = 0;
};

/// grad_norm = sqrt(limbs) / label_tokens; grad_scale = min(1, max_grad_norm / (grad_norm + 1e-6)) /
/// label_tokens, as torch.nn.utils.clip_grad_norm_ clips. Without label tokens (grad_norm is 0 then), or with
/// a norm that is not finite: skip, and grad_scale 0.
void finish_norm(Stream& stream, const std::int64_t* limbs, StepScalars* scalars);

/// Elements that share one scale in 8-bit moments. Blocks begin at the first element of the slice, so that
/// tensors and shards, which begin at its multiples, cut none.
inline constexpr std::int64_t kMomentBlock = 128;

/// A run of one tensor inside the slice that adamw updates.
struct AdamWSpan {
  std::int64_t begin = 0;  ///< first element, from the start of the slice
  std::int64_t count = 0;
  bool decay = true;             ///< weight decay applies
  float rate = 1.0f;             ///< its learning rate is so many times the step's
  std::int64_t amax_index = -1;  ///< where max |w| of the updated master goes (raised, not set); -1: nowhere
  // Which rounding noise: that of an element depends on these and on StepScalars::noise alone, not on how the
  // tensor is cut.
  std::uint32_t tensor = 0;  ///< number of the tensor, below 2^30
  std::int64_t first = 0;    ///< its element at `begin`
};

/// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) in PyTorch's order of operations, on a slice:
///   g = grad * grad_scale;  w -= lr * decay * w;  m = m + (1 - b1)(g - m);  v = b2 v + (1 - b2) g g;
///   w -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).
/// with lr the step's rate times the span's. Products and quotients go from left to right in fp32; 1 - lr *
/// decay, 1 - b1, 1 - b2, lr / c1 and sqrt(c2) are computed in double and rounded once. The step is that of
/// the moments before they are rounded.
///
/// What is stored in less than fp32 is rounded stochastically: to one of both neighbours, so that the mean is
/// exact and what is much smaller than a step of the format is not lost (Gupta et al. 2015,
/// arXiv:1502.02551). The 16 bits of noise are Philox4x32-7 of (element, tensor) under the step's key, mapped
/// one to one for each state. On a GPU a bf16 master is updated with the processor's own roots and
/// reciprocals (2^-22), so that it may be rounded to the other neighbour than on the CPU.
///
/// moment_dtype u8: a block of kMomentBlock elements holds a byte for each and one scale, a power of two, so
/// that the grid of values does not move with the block's maximum: exp_avg in E4M3, exp_avg_sq in an unsigned
/// E5M3 (bias 15, no infinities), whose range of 2^33 is that of 2^16 in the root. value = code * scale; a
/// second moment above zero never rounds to zero; a block whose maximum is below 2^-111 becomes zero.
struct AdamWArgs {
  void* master = nullptr;           ///< [count], in and out
  DType master_dtype = DType::f32;  ///< f32 or bf16
  const void* grad = nullptr;       ///< [count]
  DType grad_dtype = DType::f32;    ///< f32 or bf16
  void* exp_avg = nullptr;          ///< [count], in and out
  void* exp_avg_sq = nullptr;       ///< [count], in and out
  DType moment_dtype = DType::f32;  ///< of both moments: f32, bf16 or u8
  float* exp_avg_scale = nullptr;   ///< [count / kMomentBlock, rounded up], in and out, with u8
  float* exp_avg_sq_scale = nullptr;
  /// Host; elements outside all spans (padding) stay as they are. Unless all three formats are f32, `begin`
  /// and `first` are multiples of kMomentBlock.
  std::span<const AdamWSpan> spans;
  double beta1 = 0.9;  ///< in double: PyTorch rounds 1 - beta, not beta
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  const StepScalars* scalars = nullptr;  ///< device
  void* copy = nullptr;                  ///< [count] compute copy of the updated master; null: none
  DType copy_dtype = DType::bf16;        ///< bf16 or f32
  float* amax = nullptr;                 ///< device, indexed by amax_index; null: not wanted
};
void adamw(Stream& stream, const AdamWArgs& args);

}  // namespace octet::ops
