#include "plateau_state.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "octet/base/json.h"

namespace octet::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMost = INT64_C(1) << 60;

// JSON has no infinities, and the initial best value is infinite.
Json best_json(double best) {
  if (std::isfinite(best)) return best;
  return best > 0 ? "inf" : "-inf";
}

double read_best(const Json& saved, const std::string& mode, const std::string& where) {
  const auto found = saved.find("best");
  if (found == saved.end() || !found->is_string())
    return json_number(saved, "best", mode == "max" ? -kInfinity : kInfinity, where);
  return *found == "-inf" ? -kInfinity : kInfinity;
}

}  // namespace

Json plateau_json(const optim::Plateau::State& state) {
  return {{"mode", state.mode},
          {"peak", state.peak},
          {"learning_rate", state.learning_rate},
          {"best", best_json(state.best)},
          {"bad", state.bad},
          {"cooldown", state.cooldown}};
}

optim::Plateau::State read_plateau(const Json& saved, const std::string& where) {
  optim::Plateau::State from;
  from.mode = json_string(saved, "mode", "min", where);
  from.peak = json_number(saved, "peak", 0, where);
  from.learning_rate = json_number(saved, "learning_rate", 0, where);
  from.best = read_best(saved, from.mode, where);
  from.bad = json_int(saved, "bad", 0, 0, kMost, where);
  from.cooldown = json_int(saved, "cooldown", 0, 0, kMost, where);
  return from;
}

}  // namespace octet::train
