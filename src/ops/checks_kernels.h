// Both sides of the ops that check a step, for dispatch.h.
#pragma once

#include "octet/ops/hash.h"
#include "octet/ops/step_limits.h"

namespace octet::ops {
namespace cpu {
void add_hash(const HashArgs& args);
void limit_step(const LimitStepArgs& args);
}  // namespace cpu
namespace cuda {
void add_hash(Stream& stream, const HashArgs& args);
void limit_step(Stream& stream, const LimitStepArgs& args);
}  // namespace cuda
}  // namespace octet::ops
