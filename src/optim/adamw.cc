#include "octet/optim/adamw.h"

#include <cmath>
#include <string>

#include "octet/base/error.h"
#include "octet/base/random.h"

namespace octet::optim {
namespace {

void require(bool condition, const char* key, const char* expected, double found) {
  if (condition) return;
  throw Error({.what = "a hyper-parameter of AdamW is not valid",
               .expected = expected,
               .found = std::to_string(found),
               .where = key,
               .fix = std::string("correct ") + key,
               .code = ExitCode::usage});
}

}  // namespace

void check_options(const AdamWOptions& options) {
  require(options.beta1 >= 0 && options.beta1 < 1, "adam_beta1", "a number in [0, 1)", options.beta1);
  require(options.beta2 >= 0 && options.beta2 < 1, "adam_beta2", "a number in [0, 1)", options.beta2);
  require(options.epsilon >= 0 && std::isfinite(options.epsilon), "adam_epsilon",
          "a finite number of at least 0", options.epsilon);
  require(options.weight_decay >= 0 && std::isfinite(options.weight_decay), "weight_decay",
          "a finite number of at least 0", options.weight_decay);
}

BiasCorrections bias_corrections(const AdamWOptions& options, std::int64_t step) {
  check(step >= 1, "updates are counted from 1");
  const auto t = static_cast<double>(step);
  // -expm1(t log b) keeps the digits that 1 - pow(b, t) would cancel for b near 1; log(0) gives exactly 1.
  return {-std::expm1(t * std::log(options.beta1)), -std::expm1(t * std::log(options.beta2))};
}

ops::AdamWArgs adamw_args(const AdamWOptions& options) {
  ops::AdamWArgs args;
  args.beta1 = options.beta1;
  args.beta2 = options.beta2;
  args.eps = options.epsilon;
  args.weight_decay = options.weight_decay;
  return args;
}

ops::StepScalars step_scalars(const AdamWOptions& options, const StepRates& rates) {
  const BiasCorrections corrections = bias_corrections(options, rates.step);
  ops::StepScalars scalars;
  scalars.learning_rate = static_cast<float>(rates.learning_rate);
  scalars.max_grad_norm = static_cast<float>(rates.max_grad_norm);
  scalars.bias_correction1 = static_cast<float>(corrections.first);
  scalars.bias_correction2 = static_cast<float>(corrections.second);
  const auto words = philox(options.seed, RandomUse::rounding, static_cast<std::uint64_t>(rates.step));
  scalars.noise = static_cast<std::uint64_t>(words[1]) << 32 | words[0];
  return scalars;
}

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
