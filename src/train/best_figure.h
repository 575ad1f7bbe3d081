// The best evaluation of a run so far, and the evaluations since then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/config/keys.h"

namespace octet::train {

/// The figure that metric_for_best_model names.
struct FigureChoice {
  std::string name = "loss";  ///< without eval_
  bool greater = false;       ///< a larger value is better
  /// Whether `value` is finite and better than `best`, or the first value.
  bool improves(double value, std::optional<double> best) const;
  /// Returns the value of the figure in an evaluation. NaN if the evaluation does not have it.
  double value_in(double loss, const std::vector<std::pair<std::string, double>>& extra) const;
};
FigureChoice figure_choice(const config::EvaluationKeys& config);

/// Follows the figure over evaluations, for save_strategy: best and early_stopping_steps. Like transformers'
/// EarlyStoppingCallback with a threshold of 0.
class BestFigure {
 public:
  /// `patience`: evaluations in a row without an improvement that end the run.
  BestFigure(FigureChoice choice, std::optional<std::int64_t> patience)
      : choice_(std::move(choice)), patience_(patience) {}

  /// Takes the value of an evaluation after `step`.
  void take(double value, std::int64_t step);
  /// Whether the evaluation after `step` was taken and is the best so far.
  bool improved_at(std::int64_t step) const { return improved_ == step; }
  /// Whether the run has seen `patience` evaluations in a row without an improvement.
  bool ends_run() const { return patience_ && stale_ >= *patience_; }
  std::int64_t stale() const { return stale_; }
  std::optional<double> best() const { return best_; }
  const FigureChoice& choice() const { return choice_; }

  /// Returns the state for a checkpoint.
  Json json() const;
  /// Takes over the state of a checkpoint, unless it belongs to another figure. Throws Error for other
  /// values; `where` names them.
  void restore(const Json& saved, const std::string& where);

 private:
  FigureChoice choice_;
  std::optional<std::int64_t> patience_;
  std::optional<double> best_;
  std::int64_t stale_ = 0, improved_ = -1;
};

}  // namespace octet::train
