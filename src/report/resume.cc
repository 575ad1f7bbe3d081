#include "resume.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "octet/base/json.h"
#include "run_log.h"

namespace octet::report {
namespace {

void take_double(const Json& from, const char* key, double& to) {
  if (const double x = number_of(from, key); std::isfinite(x)) to = x;
}
void take_seconds(const Json& from, const char* key, double& to) {
  if (const double x = number_of(from, key); x >= 0 && x < 9e15) to = x;
}
void take_count(const Json& from, const char* key, std::int64_t& to) {
  if (const double x = number_of(from, key); x >= 0 && x < 9e18) to = static_cast<std::int64_t>(x);
}

/// Bounds step counts, so that sums over all rows of a log do not overflow.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 48;

Json part_of(const Json& state, const char* name) {
  const auto found = state.find(name);
  return found != state.end() && found->is_object() ? *found : Json::object();
}

}  // namespace

void add_rows(const std::vector<Json>& rows, Totals& totals) {
  std::int64_t counted = 0;
  for (const Json& row : rows) {
    if (!row.contains("loss")) continue;
    std::int64_t step = counted;  // a row without a step adds no steps
    take_count(row, "current_steps", step);
    step = std::min(step, kMostSteps);
    if (const double loss = number_of(row, "loss"); std::isfinite(loss)) {
      totals.loss_sum += loss * static_cast<double>(step - counted);
      totals.loss_steps += step - counted;
    }
    counted = step;
    take_double(row, "epoch", totals.epoch);
    take_count(row, "total_tokens", totals.tokens);
    take_count(row, "skipped_steps", totals.skipped);
    take_seconds(row, "elapsed_seconds", totals.elapsed);
  }
}

void add_sums(Json& state, const Totals& totals, const Window& window) {
  state["since_last_log"] = {{"loss_sum", window.loss}, {"steps", window.steps}};
  state["so_far"] = {{"elapsed_seconds", totals.elapsed},
                     {"device_seconds", totals.device_seconds},
                     {"skipped_steps", totals.skipped},
                     {"loss_sum", totals.loss_sum},
                     {"loss_steps", totals.loss_steps}};
}

void take_over_state(const Json& state, Totals& totals, Window& window) {
  take_count(state, "num_input_tokens_seen", totals.tokens);
  take_double(state, "epoch", totals.epoch);
  const Json since = part_of(state, "since_last_log"), so_far = part_of(state, "so_far");
  std::int64_t steps = -1;
  take_count(since, "steps", steps);
  if (steps >= 0 && steps <= totals.step) {
    window.loss = number_of(since, "loss_sum");  // null if one of them was not finite
    window.steps = window.steps_before = steps;
    if (std::isfinite(window.loss)) totals.loss_sum += window.loss, totals.loss_steps += steps;
  }
  take_seconds(so_far, "elapsed_seconds", totals.elapsed);
  take_seconds(so_far, "device_seconds", totals.device_seconds);
  take_count(so_far, "skipped_steps", totals.skipped);
  take_double(so_far, "loss_sum", totals.loss_sum);
  take_count(so_far, "loss_steps", totals.loss_steps);
}

}  // namespace octet::report
