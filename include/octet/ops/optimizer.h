#pragma once

#include <span>

#include "octet/ops/types.h"

namespace octet::ops {

/// Exact, order-independent sum of non-negative doubles: a fixed-point number of 64-bit limbs with 32
/// significant bits each (a small superaccumulator after Kulisch). Limb i counts units of 2^(32 * i - 512).
/// Adding the limbs of two ranks as integers adds their sums. So a norm has the same bits for any sharding.
inline constexpr int kExactLimbs = 32;

/// Adds Σ x² to `limbs`. Each block of 128 consecutive elements (blocks start at x) is summed in double and
/// then added exactly. Within a block, each group of eight consecutive elements is summed in index order. The
/// 16 group sums are then added in pairs that are 8, then 4, 2 and 1 apart. `count` need not be a multiple of
/// 128; missing elements count as zero. If an element is infinite or NaN, limbs[kExactLimbs] is set to
/// non-zero instead.
struct SquareSumArgs {
  const void* x = nullptr;
  DType dtype = DType::f32;  ///< f32 or bf16
  std::int64_t count = 0;
  std::int64_t* limbs = nullptr;  ///< [kExactLimbs + 1] device; zero it first
};
void square_sum(Stream& stream, const SquareSumArgs& args);

/// Inputs and results of one optimizer step. They are in device memory, so the host need not wait for them.
struct StepScalars {
  // Written by the host before the step.
  float learning_rate = 0;
  float max_grad_norm = 0;     ///< 0: no clipping
  float bias_correction1 = 1;  ///< 1 - beta1^step
  float bias_correction2 = 1;  ///< 1 - beta2^step
  double label_tokens = 0;     ///< label tokens of the whole step over all ranks
  std::uint64_t noise = 0;     ///< key of this step's stochastic rounding
  // Written by finish_norm.
  float grad_norm = 0;    ///< norm of the mean gradient before clipping; infinity or NaN if not finite
  float grad_scale = 0;   ///< factor for gradients: clip factor / label_tokens
  std::int32_t skip = 0;  ///< 1: the update changes nothing; see finish_norm() and limit_step()
  std::int32_t padding = 0;
};

/// Sets grad_norm = sqrt(limbs) / label_tokens and grad_scale = min(1, max_grad_norm / (grad_norm + 1e-6)) /
/// label_tokens, which clips like torch.nn.utils.clip_grad_norm_. Without label tokens (grad_norm is then 0),
/// or if the norm is not finite, sets `skip` to 1 and grad_scale to 0.
void finish_norm(Stream& stream, const std::int64_t* limbs, StepScalars* scalars);

/// Number of elements that share one scale in 8-bit moments. Blocks start at the first element of the slice.
/// Tensors and shards start at multiples of kMomentBlock, so they do not split blocks.
inline constexpr std::int64_t kMomentBlock = 128;

/// A range of one tensor inside the slice that adamw updates.
struct AdamWSpan {
  std::int64_t begin = 0;  ///< first element, from the start of the slice
  std::int64_t count = 0;
  bool decay = true;             ///< weight decay applies
  float rate = 1.0f;             ///< factor of the learning rate of the step
  std::int64_t amax_index = -1;  ///< `amax` entry to raise to max |w| of the updated master; -1: none
  // Selects the rounding noise. The noise of an element depends only on these two fields and on
  // StepScalars::noise, not on the split of the tensor.
  std::uint32_t tensor = 0;  ///< number of the tensor, below 2^30
  std::int64_t first = 0;    ///< index in the tensor of the element at `begin`
};

/// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) in PyTorch's order of operations, on a slice:
///   g = grad * grad_scale;  w -= lr * decay * w;  m = m + (1 - b1)(g - m);  v = b2 v + (1 - b2) g g;
///   w -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).
/// lr is the rate of the step times the rate of the span. Gemms and quotients are evaluated from left to
/// right in fp32. 1 - lr * decay, 1 - b1, 1 - b2, lr / c1 and sqrt(c2) are computed in double and rounded
/// once. The update of w uses the moments before they are rounded.
///
/// States that are stored in fewer bits than fp32 are rounded stochastically to one of the two neighbours.
/// The mean is then exact, and changes much smaller than a step of the format are not lost (Gupta et al.
/// 2015, arXiv:1502.02551). The 16 bits of noise are Philox4x32-7 of (element, tensor) under the key of the
/// step, mapped one to one for each state. On a GPU, a bf16 master is updated with the hardware's approximate
/// roots and reciprocals (2^-22). So it may be rounded to another neighbour than on the CPU.
///
/// moment_dtype u8: a block of kMomentBlock elements stores one byte per element and one scale. The scale is
/// a power of two, so the grid of values does not shift with the maximum of the block. exp_avg is in E4M3.
/// exp_avg_sq is in an unsigned E5M3 (bias 15, no infinities), with a range of 2^33, which is 2^16 in the
/// root. value = code * scale. A positive second moment never rounds to zero. A block with a maximum below
/// 2^-111 becomes zero.
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
  /// Host memory. Elements outside all spans (padding) are unchanged. Unless all three formats are f32,
  /// `begin` and `first` are multiples of kMomentBlock.
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
