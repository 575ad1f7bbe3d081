// Checks of a step: hashes of memory, and limits of the loss and the gradient norm.
#pragma once

#include <limits>

#include "octet/ops/optimizer.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// A hash of 128 bits as two sums, each modulo 2^64. The hash of the whole is the sum of the hashes of its
/// parts, in any order. So threads, slices and pieces can be hashed independently.
struct Hash {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  bool operator==(const Hash&) const = default;
};

/// Adds to `to` the contribution of `bytes` of device memory to the hash of a larger range. The memory starts
/// at byte `at` of that range, a multiple of 8. Each 8-byte word (the last is padded with zeros) contributes
/// a function of its value and position, which is one-to-one for each position. So any change of one word
/// changes the hash. Changes of several words go unnoticed with a probability of at most 2^-64. The hash
/// gives no protection against deliberate manipulation. The CPU and the CUDA side give the same hash.
struct HashArgs {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  std::uint64_t at = 0;
  Hash* to = nullptr;  ///< device memory; zero it first
};
void add_hash(Stream& stream, const HashArgs& args);

/// Limits of the loss and the gradient norm of a step. The update of a step above a limit is skipped.
/// Infinity: any finite value is accepted.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();       ///< mean over the label tokens
  double grad_norm = std::numeric_limits<double>::infinity();  ///< before clipping
  bool any() const {
    return loss < std::numeric_limits<double>::infinity() ||
           grad_norm < std::numeric_limits<double>::infinity();
  }
};

/// Runs after finish_norm. If the mean loss or the norm is above its limit, sets `skip` to 1 and grad_scale
/// to 0. The sums of losses are added in order, like on the host, so that both get the same bits.
struct LimitStepArgs {
  StepLimits limits;
  const double* loss_sums = nullptr;  ///< device, [losses]
  std::int64_t losses = 0;
  StepScalars* scalars = nullptr;  ///< device
};
void limit_step(Stream& stream, const LimitStepArgs& args);

}  // namespace octet::ops
