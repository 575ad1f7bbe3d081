#include "octet/optim/gradient_norm.h"

namespace octet::optim {

GradientNorm::GradientNorm(Arena& arena)
    : device_(arena.device()),
      limbs_(arena.reserve_as<std::int64_t>("step/norm", static_cast<std::size_t>(limb_count()))) {}

void GradientNorm::zero(Stream& stream) {
  device_.zero(stream, limbs_, static_cast<std::size_t>(limb_count()) * sizeof(std::int64_t));
}

void GradientNorm::add(Stream& stream, const void* gradient, DType dtype, std::int64_t count) {
  ops::square_sum(stream, {.x = gradient, .dtype = dtype, .count = count, .limbs = limbs_});
}

void GradientNorm::finish(Stream& stream, ops::StepScalars* scalars) {
  ops::finish_norm(stream, limbs_, scalars);
}

}  // namespace octet::optim
