#pragma once

#include <cstdint>

#include "octet/ops/optimizer.h"

namespace octet::optim {

/// Hyper-parameters of AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), as the configuration has them.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  std::uint64_t seed = 0;  ///< of stochastic rounding, where anything is stored in less than fp32
};

/// Throws Error (usage) unless betas are in [0, 1), epsilon and weight decay at least 0 and finite.
void check_options(const AdamWOptions& options);

/// 1 - beta^step for update number `step` (the first one is 1), in double and then rounded: near one, a
/// power in float loses all its digits.
struct BiasCorrections {
  double first = 1;
  double second = 1;
};
BiasCorrections bias_corrections(const AdamWOptions& options, std::int64_t step);

/// The arguments of an update that the hyper-parameters decide; pointers, spans and scalars are the caller's.
ops::AdamWArgs adamw_args(const AdamWOptions& options);

/// The host-side facts of one optimizer step, set before the step is enqueued.
struct StepRates {
  std::int64_t step = 1;     ///< number of this update, from 1
  double learning_rate = 0;  ///< of this update
  double max_grad_norm = 0;  ///< 0: no clipping
};

/// The host's half of the device's step scalars; label_tokens is left at 0. The key of the rounding noise is
/// Philox4x32-10 of the step under the seed.
ops::StepScalars step_scalars(const AdamWOptions& options, const StepRates& rates);

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
