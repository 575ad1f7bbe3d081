// The optim room: the arithmetic of the optimizer, without the storage of gradients. Learning rates,
// hyper-parameters and bias corrections are computed on the host in double precision. They depend only on
// the step, except a learning rate that follows evaluations. So any rank can compute them for any step. The
// update and the norm of a slice are enqueued (update.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace octet::optim {

// A learning rate that falls when evaluations stop improving. It is the only schedule that is not a function
// of the step, because it depends on evaluations. Its state is part of a checkpoint.

/// Options with the names and defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct PlateauOptions {
  std::string mode = "min";    ///< max: larger values are better
  double factor = 0.1;         ///< each reduction multiplies the rate by it; below 1
  std::int64_t patience = 10;  ///< values in a row without improvement before a reduction
  double threshold = 1e-4;     ///< smallest improvement that counts
  std::string threshold_mode =
      "rel";                  ///< rel: `threshold` is a fraction of the best value; abs: a difference
  std::int64_t cooldown = 0;  ///< values after a reduction that do not count as values without improvement
  double min_lr = 0;
  double eps = 1e-8;  ///< a reduction by at most this is not made
};

/// Reduces the learning rate when values stop improving, with the arithmetic of torch. All ranks must add the
/// same values.
class Plateau {
 public:
  struct State {
    std::string mode;  ///< PlateauOptions::mode of `best`
    double peak = 0;   ///< the initial rate
    double learning_rate = 0;
    double best = 0;  ///< infinite before the first value
    std::int64_t bad = 0, cooldown = 0;
  };

  Plateau(double learning_rate, const PlateauOptions& options);
  double learning_rate() const { return state_.learning_rate; }
  /// Adds a value. Returns true if this reduces the rate. NaN is never an improvement.
  bool take(double value);
  const State& state() const { return state_; }
  /// Continues from the state of another plateau. If the other plateau had another peak, the rate is scaled
  /// by the ratio of the peaks. If it had another mode, the best value is reset.
  void restore(const State& state);

 private:
  bool is_better(double value) const;

  PlateauOptions options_;
  State state_;
};

/// Named arguments of a schedule (`lr_scheduler_kwargs`): numbers, or words such as "cosine".
using ScheduleArguments = std::map<std::string, std::variant<double, std::string>>;

/// The parameters of a schedule, with Hugging Face's names.
struct ScheduleOptions {
  std::string name = "linear";  ///< one of schedule_names()
  double learning_rate = 5e-5;  ///< the peak; positive
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< optimizer steps of the whole run, warm-up included
  ScheduleArguments arguments;
};

/// The learning rate as a function of the step (transformers/optimization.py, formula for formula). With
/// step s, warm-up w, total T and p = (s - w) / max(1, T - w), the peak is multiplied during warm-up by
/// s / max(1, w), and then by
///   constant, constant_with_warmup   1 (the former has no warm-up)
///   linear                           max(0, (T - s) / max(1, T - w))
///   cosine                           max(0, (1 + cos(2 pi c p)) / 2), c = num_cycles, 0.5
///   cosine_with_restarts             (1 + cos(pi (c p mod 1))) / 2, 0 from T on; c = num_cycles, 1
///   cosine_with_min_lr               cosine * (1 - r) + r, r = min_lr_rate, or min_lr / peak
///   cosine_warmup_with_min_lr        the same one step ahead: p = (s - w + 1) / max(1, T - w); warm-up
///                                    (s + 1) / w, or from warmup_lr_rate up in w - 1 steps
///   polynomial                       ((peak - lr_end) (1 - p)^power + lr_end) / peak; lr_end 1e-7, power 1
///   inverse_sqrt                     1 / sqrt((s - w + timescale) / timescale); timescale w, or 10000
///   warmup_stable_decay              1 for num_stable_steps, then num_decay_steps from 1 to min_lr_ratio by
///                                    decay_type (linear, cosine, 1-sqrt), then min_lr_ratio; warmup_type
///                                    likewise. Without either count, a third of the steps after the warm-up
///                                    is stable, as in LLaMA-Factory; with one, the other is the rest
/// The schedules of DeepSpeed (deepspeed/runtime/lr_schedules.py) count like its engine: i = s - 1 is 0 at
/// the second update. w is at least 2. The lowest factor is m = warmup_min_lr / peak (cosine:
/// warmup_min_ratio). At s = 0 the factor is m (cosine: 0). During warm-up it is m + (1 - m) g, with g = ln(i
/// + 1) / ln w, or g = i / w with warmup_type linear. T is total_num_steps, or else the steps of the run.
/// After warm-up it is
///   deepspeed_warmup                 1
///   deepspeed_warmup_decay           m + (1 - m) max(0, (T - i) / max(1, T - w))
///   deepspeed_warmup_cosine          r + (1 - r) (1 + cos(pi min(1, (i - w + 1) / max(1, T - w)))) / 2,
///                                    r = cos_min_ratio, 0.0001
/// reduce_lr_on_plateau has no warm-up and does not depend on the step: plateau() gives its rate.
class Schedule {
 public:
  /// Throws Error (usage) for an unknown name or argument, an argument of the wrong type or out of range.
  explicit Schedule(const ScheduleOptions& options);
  /// The rate of the update that follows `step` completed updates; the first one has step 0.
  double learning_rate(std::int64_t step) const {
    return plateau_ ? plateau_->learning_rate() : options_.learning_rate * factor(step);
  }
  /// Returns learning_rate(step) as a fraction of the peak.
  double factor(std::int64_t step) const;
  const ScheduleOptions& options() const { return options_; }
  /// Returns the state of reduce_lr_on_plateau, which takes evaluations; null for other schedules.
  Plateau* plateau() { return plateau_ ? &*plateau_ : nullptr; }
  const Plateau* plateau() const { return plateau_ ? &*plateau_ : nullptr; }

 private:
  enum class Course { linear, cosine, one_minus_sqrt, log };
  double number(const std::string& key, double fallback, double low, double high) const;
  std::int64_t steps(const std::string& key, std::int64_t fallback) const;
  Course course(const std::string& key, Course fallback) const;
  std::string word(const std::string& key, const std::vector<std::string>& words) const;
  void allow(const std::vector<std::string>& keys) const;
  void read_min_lr();
  void read_polynomial();
  void read_stable_decay();
  void read_deepspeed();
  void read_plateau();
  double warm_up(std::int64_t step) const;
  double stable_decay(std::int64_t step) const;
  double deepspeed(std::int64_t step) const;

  ScheduleOptions options_;
  double cycles_ = 0.5;
  double floor_ = 0;  ///< of the factor
  double power_ = 1;
  double timescale_ = 1;
  double warmup_floor_ = -1;  ///< factor at the start of the warm-up; negative: not given
  std::int64_t stable_steps_ = 0, decay_steps_ = 0;
  Course warmup_course_ = Course::linear, decay_course_ = Course::cosine;
  std::optional<Plateau> plateau_;
};

/// Returns the names of all schedules, for messages and help.
const std::vector<std::string>& schedule_names();

}  // namespace octet::optim
