#include "octet/optim/plateau.h"

#include <algorithm>
#include <limits>

namespace octet::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Plateau::Plateau(double learning_rate, const PlateauOptions& options)
    : options_(options),
      state_{.mode = options.mode,
             .peak = learning_rate,
             .learning_rate = learning_rate,
             .best = options.mode == "max" ? -kInfinity : kInfinity} {}

bool Plateau::is_better(double value) const {
  const double best = state_.best, threshold = options_.threshold;
  const bool relative = options_.threshold_mode == "rel";
  if (options_.mode == "max") return value > (relative ? best * (threshold + 1.0) : best + threshold);
  return value < (relative ? best * (1.0 - threshold) : best - threshold);
}

bool Plateau::take(double value) {
  if (is_better(value)) {
    state_.best = value;
    state_.bad = 0;
  } else {
    ++state_.bad;
  }
  if (state_.cooldown > 0) {
    --state_.cooldown;
    state_.bad = 0;
  }
  if (state_.bad <= options_.patience) return false;
  state_.bad = 0;
  state_.cooldown = options_.cooldown;
  const double before = state_.learning_rate;
  const double after = std::max(before * options_.factor, options_.min_lr);
  if (!(before - after > options_.eps)) return false;
  state_.learning_rate = after;
  return true;
}

void Plateau::restore(const State& state) {
  const State fresh = Plateau(state_.peak, options_).state_;
  state_ = state;
  state_.peak = fresh.peak;
  if (state.peak != fresh.peak)
    state_.learning_rate = state.peak > 0 ? fresh.peak * (state.learning_rate / state.peak) : fresh.peak;
  if (state.mode == fresh.mode) return;
  state_.mode = fresh.mode;
  state_.best = fresh.best;
  state_.bad = 0;
}

}  // namespace octet::optim
