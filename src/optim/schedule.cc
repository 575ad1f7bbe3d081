#include "octet/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>

#include "octet/base/error.h"

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

namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
/// Upper limit of step counts (2^53): a double represents them exactly.
constexpr double kMostSteps = 9007199254740992.0;

std::string list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

std::string to_text(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}

std::string spelled(const std::variant<double, std::string>& value) {
  if (const auto* word = std::get_if<std::string>(&value)) return "'" + *word + "'";
  return to_text(std::get<double>(value));
}

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found,
                         const std::string& key) {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = key,
               .fix = "correct " + key,
               .code = ExitCode::usage});
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"linear",
                                                 "cosine",
                                                 "constant",
                                                 "constant_with_warmup",
                                                 "polynomial",
                                                 "cosine_with_restarts",
                                                 "inverse_sqrt",
                                                 "cosine_with_min_lr",
                                                 "cosine_warmup_with_min_lr",
                                                 "warmup_stable_decay",
                                                 "reduce_lr_on_plateau",
                                                 "deepspeed_warmup",
                                                 "deepspeed_warmup_decay",
                                                 "deepspeed_warmup_cosine"};
  return names;
}

double Schedule::number(const std::string& key, double fallback, double low, double high) const {
  const auto found = options_.arguments.find(key);
  if (found == options_.arguments.end()) return fallback;
  const auto* value = std::get_if<double>(&found->second);
  // This form of the comparison refuses NaN, too.
  if (value == nullptr || !(*value >= low && *value <= high) || !std::isfinite(*value)) {
    refuse("an argument of the schedule is out of range",
           "a number from " + to_text(low) + " to " + to_text(high), spelled(found->second),
           "lr_scheduler_kwargs." + key);
  }
  return *value;
}

std::int64_t Schedule::steps(const std::string& key, std::int64_t fallback) const {
  const double value = number(key, static_cast<double>(fallback), 0, kMostSteps);
  if (value != std::floor(value)) {
    refuse("a number of steps is not whole", "a whole number", to_text(value), "lr_scheduler_kwargs." + key);
  }
  return static_cast<std::int64_t>(value);
}

Schedule::Course Schedule::course(const std::string& key, Course fallback) const {
  const auto found = options_.arguments.find(key);
  if (found == options_.arguments.end()) return fallback;
  const auto* word = std::get_if<std::string>(&found->second);
  const bool deepspeed = options_.name.starts_with("deepspeed_");
  if (word != nullptr && *word == "linear") return Course::linear;
  if (word != nullptr && *word == "log" && deepspeed) return Course::log;
  if (word != nullptr && *word == "cosine" && !deepspeed) return Course::cosine;
  if (word != nullptr && *word == "1-sqrt" && !deepspeed) return Course::one_minus_sqrt;
  refuse("the shape of a phase of the schedule is unknown",
         deepspeed ? "log or linear" : "linear, cosine or 1-sqrt", spelled(found->second),
         "lr_scheduler_kwargs." + key);
}

std::string Schedule::word(const std::string& key, const std::vector<std::string>& words) const {
  const auto found = options_.arguments.find(key);
  if (found == options_.arguments.end()) return words.front();
  const auto* given = std::get_if<std::string>(&found->second);
  if (given != nullptr && std::find(words.begin(), words.end(), *given) != words.end()) return *given;
  refuse("an argument of the schedule has an unknown value", list(words), spelled(found->second),
         "lr_scheduler_kwargs." + key);
}

void Schedule::allow(const std::vector<std::string>& keys) const {
  for (const auto& [key, value] : options_.arguments) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    refuse("schedule '" + options_.name + "' has no argument '" + key + "'", list(keys),
           key + "=" + spelled(value), "lr_scheduler_kwargs");
  }
}

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {
  const std::string& name = options_.name;
  const double peak = options_.learning_rate;
  if (!std::isfinite(peak) || peak < 0) {
    refuse("the learning rate is not usable", "a finite number of at least 0", to_text(peak),
           "learning_rate");
  }
  if (options_.warmup_steps < 0) {
    refuse("the warm-up is negative", "at least 0 steps", std::to_string(options_.warmup_steps),
           "warmup_steps");
  }
  if (options_.total_steps < 0) {
    refuse("the number of steps is negative", "at least 0 steps", std::to_string(options_.total_steps),
           "max_steps");
  }
  if (name == "linear" || name == "constant" || name == "constant_with_warmup") {
    allow({});
  } else if (name == "cosine") {
    allow({"num_cycles"});
    cycles_ = number("num_cycles", 0.5, 0, 1e6);
  } else if (name == "cosine_with_restarts") {
    allow({"num_cycles"});
    cycles_ = static_cast<double>(steps("num_cycles", 1));
  } else if (name == "cosine_with_min_lr" || name == "cosine_warmup_with_min_lr") {
    read_min_lr();
  } else if (name == "polynomial") {
    read_polynomial();
  } else if (name == "inverse_sqrt") {
    allow({"timescale"});
    const std::int64_t usual = options_.warmup_steps > 0 ? options_.warmup_steps : 10000;
    timescale_ = number("timescale", static_cast<double>(usual), 1, kMostSteps);
  } else if (name == "warmup_stable_decay") {
    read_stable_decay();
  } else if (name == "reduce_lr_on_plateau") {
    read_plateau();
  } else if (name.starts_with("deepspeed_")) {
    read_deepspeed();
  } else {
    refuse("unknown schedule '" + name + "'", list(schedule_names()), name, "lr_scheduler_type");
  }
}

void Schedule::read_min_lr() {
  const std::string& name = options_.name;
  const double peak = options_.learning_rate;
  const bool ahead = name == "cosine_warmup_with_min_lr";
  ahead ? allow({"num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"})
        : allow({"num_cycles", "min_lr", "min_lr_rate"});
  const bool absolute = options_.arguments.contains("min_lr");
  const bool relative = options_.arguments.contains("min_lr_rate");
  if (absolute == relative) {
    refuse("schedule '" + name + "' needs its lowest rate", "one of min_lr and min_lr_rate",
           absolute ? "both" : "neither", "lr_scheduler_kwargs");
  }
  cycles_ = number("num_cycles", 0.5, 0, 1e6);
  floor_ = number("min_lr_rate", 0, 0, 1);
  if (absolute) {
    const double lowest = number("min_lr", 0, 0, peak);
    floor_ = peak > 0 ? lowest / peak : 0;
  }
  warmup_floor_ = number("warmup_lr_rate", -1, 0, 1);
}

void Schedule::read_polynomial() {
  const double peak = options_.learning_rate;
  allow({"lr_end", "power"});
  const double last = number("lr_end", 1e-7, 0, kNoLimit);
  if (!(peak > last)) {
    refuse("the last rate is not below the first one", "lr_end below learning_rate " + to_text(peak),
           to_text(last), "lr_scheduler_kwargs.lr_end");
  }
  power_ = number("power", 1, 0, 1e6);
  floor_ = last;
}

void Schedule::read_deepspeed() {
  const std::string& name = options_.name;
  const double peak = options_.learning_rate;
  if (name == "deepspeed_warmup_cosine") {
    allow({"warmup_type", "warmup_min_ratio", "cos_min_ratio", "total_num_steps"});
    warmup_floor_ = number("warmup_min_ratio", 0, 0, 1);
    floor_ = number("cos_min_ratio", 0.0001, 0, 1);
  } else if (name == "deepspeed_warmup" || name == "deepspeed_warmup_decay") {
    name == "deepspeed_warmup" ? allow({"warmup_type", "warmup_min_lr"})
                               : allow({"warmup_type", "warmup_min_lr", "total_num_steps"});
    const double lowest = number("warmup_min_lr", 0, 0, peak);
    warmup_floor_ = peak > 0 ? lowest / peak : 0;
  } else {
    refuse("unknown schedule '" + name + "'", list(schedule_names()), name, "lr_scheduler_type");
  }
  options_.warmup_steps = std::max<std::int64_t>(2, options_.warmup_steps);
  options_.total_steps = steps("total_num_steps", options_.total_steps);
  warmup_course_ = course("warmup_type", Course::log);
}

void Schedule::read_plateau() {
  allow({"mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"});
  PlateauOptions plateau;
  plateau.mode = word("mode", {"min", "max"});
  plateau.factor = number("factor", plateau.factor, 0, std::nextafter(1.0, 0.0));
  plateau.patience = steps("patience", plateau.patience);
  plateau.threshold = number("threshold", plateau.threshold, 0, kNoLimit);
  plateau.threshold_mode = word("threshold_mode", {"rel", "abs"});
  plateau.cooldown = steps("cooldown", plateau.cooldown);
  plateau.min_lr = number("min_lr", plateau.min_lr, 0, kNoLimit);
  plateau.eps = number("eps", plateau.eps, 0, kNoLimit);
  plateau_.emplace(options_.learning_rate, plateau);
}

void Schedule::read_stable_decay() {
  allow({"num_stable_steps", "num_decay_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"});
  const std::int64_t rest = std::max<std::int64_t>(0, options_.total_steps - options_.warmup_steps);
  if (options_.arguments.contains("num_decay_steps")) {
    decay_steps_ = steps("num_decay_steps", 0);
    stable_steps_ = steps("num_stable_steps", std::max<std::int64_t>(0, rest - decay_steps_));
  } else {
    stable_steps_ = steps("num_stable_steps", rest / 3);
    decay_steps_ = std::max<std::int64_t>(0, rest - stable_steps_);
  }
  warmup_course_ = course("warmup_type", Course::linear);
  decay_course_ = course("decay_type", Course::cosine);
  floor_ = number("min_lr_ratio", 0, 0, 1);
  cycles_ = number("num_cycles", 0.5, 0, 1e6);
}

double Schedule::warm_up(std::int64_t step) const {
  const double s = static_cast<double>(step), w = static_cast<double>(options_.warmup_steps);
  if (options_.name == "cosine_warmup_with_min_lr") {
    if (warmup_floor_ < 0) return (s + 1.0) / std::max(1.0, w);
    return warmup_floor_ + (1.0 - warmup_floor_) * s / std::max(1.0, w - 1.0);
  }
  const double progress = s / std::max(1.0, w);
  if (options_.name != "warmup_stable_decay") return progress;
  double factor = progress;
  if (warmup_course_ == Course::cosine) factor = 0.5 * (1.0 - std::cos(kPi * progress));
  if (warmup_course_ == Course::one_minus_sqrt) factor = 1.0 - std::sqrt(1.0 - progress);
  return std::max(0.0, factor * (1.0 - floor_) + floor_);
}

double Schedule::stable_decay(std::int64_t step) const {
  const std::int64_t after = step - options_.warmup_steps;
  if (after < stable_steps_) return 1.0;
  if (after - stable_steps_ >= decay_steps_) return floor_;
  const double progress = static_cast<double>(after - stable_steps_) / static_cast<double>(decay_steps_);
  double factor = 1.0 - progress;
  if (decay_course_ == Course::cosine) factor = 0.5 * (1.0 + std::cos(kPi * cycles_ * 2.0 * progress));
  if (decay_course_ == Course::one_minus_sqrt) factor = 1.0 - std::sqrt(progress);
  return std::max(0.0, factor * (1.0 - floor_) + floor_);
}

// DeepSpeed's engine steps its schedule after each update, and the schedule begins at iteration -1. The first
// update has the lowest rate, and the second update has the rate of iteration 0.
double Schedule::deepspeed(std::int64_t step) const {
  const bool cosine = options_.name == "deepspeed_warmup_cosine";
  if (step == 0) return cosine ? 0.0 : warmup_floor_;
  const double i = static_cast<double>(step - 1), w = static_cast<double>(options_.warmup_steps);
  const double total = static_cast<double>(options_.total_steps);
  const auto above = [](double floor, double share) { return floor + (1.0 - floor) * share; };
  if (i < w) {
    return above(warmup_floor_, warmup_course_ == Course::log ? std::log(i + 1.0) / std::log(w) : i / w);
  }
  if (options_.name == "deepspeed_warmup") return 1.0;
  const double span = std::max(1.0, total - w);
  if (!cosine) return above(warmup_floor_, std::max(0.0, (total - i) / span));
  const double progress = std::min(1.0, (i - w + 1.0) / span);
  return above(floor_, 0.5 * (1.0 + std::cos(kPi * progress)));
}

double Schedule::factor(std::int64_t step) const {
  check(step >= 0, "the step of a schedule is at least 0");
  const std::string& name = options_.name;
  if (plateau_) return options_.learning_rate > 0 ? plateau_->learning_rate() / options_.learning_rate : 1.0;
  if (name == "constant") return 1.0;
  if (name.starts_with("deepspeed_")) return deepspeed(step);
  if (step < options_.warmup_steps) return warm_up(step);
  if (name == "constant_with_warmup") return 1.0;
  if (name == "warmup_stable_decay") return stable_decay(step);

  const double s = static_cast<double>(step), w = static_cast<double>(options_.warmup_steps);
  const double total = static_cast<double>(options_.total_steps);
  const double span = std::max(1.0, total - w);
  if (name == "inverse_sqrt") return 1.0 / std::sqrt((s + (timescale_ - w)) / timescale_);
  if (name == "linear") return std::max(0.0, (total - s) / span);
  if (name == "polynomial") {
    const double peak = options_.learning_rate;
    // At s = T = w, Hugging Face divides by zero. The decay then has no steps, so its final rate is used.
    if (step >= options_.total_steps) return floor_ / peak;
    return ((peak - floor_) * std::pow(1.0 - (s - w) / (total - w), power_) + floor_) / peak;
  }
  if (name == "cosine_with_restarts") {
    const double progress = (s - w) / span;
    if (progress >= 1.0) return 0.0;
    return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * std::fmod(cycles_ * progress, 1.0))));
  }
  const double ahead = name == "cosine_warmup_with_min_lr" ? 1.0 : 0.0;
  const double progress = (s - w + ahead) / span;
  const double wave = 0.5 * (1.0 + std::cos(kPi * cycles_ * 2.0 * progress));
  return std::max(0.0, wave * (1.0 - floor_) + floor_);
}

}  // namespace octet::optim
