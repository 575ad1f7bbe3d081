#include "best_figure.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "octet/base/json.h"
#include "octet/config/derive.h"

namespace octet::train {

bool FigureChoice::improves(double value, std::optional<double> best) const {
  return std::isfinite(value) && (!best || (greater ? value > *best : value < *best));
}

double FigureChoice::value_in(double loss, const std::vector<std::pair<std::string, double>>& extra) const {
  if (name == "loss") return loss;
  if (name == "perplexity") return std::exp(loss);
  const auto found = std::ranges::find(extra, name, &std::pair<std::string, double>::first);
  return found == extra.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

FigureChoice figure_choice(const config::EvaluationKeys& config) {
  return {.name = config::best_figure_name(config), .greater = config::greater_is_better(config)};
}

void BestFigure::take(double value, std::int64_t step) {
  if (!choice_.improves(value, best_)) {
    ++stale_;
    return;
  }
  best_ = value;
  stale_ = 0;
  improved_ = step;
}

Json BestFigure::json() const {
  Json state = {{"figure", choice_.name}, {"greater", choice_.greater}, {"stale", stale_}};
  if (best_) state["best"] = *best_;
  return state;
}

void BestFigure::restore(const Json& saved, const std::string& where) {
  best_.reset();
  stale_ = 0;
  improved_ = -1;
  if (json_string(saved, "figure", "loss", where) != choice_.name ||
      json_bool(saved, "greater", false, where) != choice_.greater)
    return;
  stale_ = json_int(saved, "stale", 0, 0, INT64_C(1) << 60, where);
  if (saved.find("best") != saved.end()) best_ = json_number(saved, "best", 0, where);
}

}  // namespace octet::train
