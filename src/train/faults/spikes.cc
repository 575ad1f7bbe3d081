#include "faults/spikes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/median.h"
#include "octet/report/number.h"

namespace octet::train {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

double limit(const std::deque<double>& values, double factor) {
  if (factor == 0 || values.size() < Spikes::kLeast) return kNone;
  return factor * lower_median({values.begin(), values.end()});
}

void take_in(std::deque<double>& values, double value) {
  if (!std::isfinite(value)) return;
  values.push_back(value);
  if (values.size() > Spikes::kMost) values.pop_front();
}

std::string above(const char* name, double value, double most, double factor) {
  return std::string("its ") + name + " of " + report::python_number(value, 6) + " is more than " +
         report::python_number(factor, 6) + " times the median of the last steps, " +
         report::python_number(most / factor, 6);
}

void read(const Json& state, const char* key, std::deque<double>& values, const std::string& where) {
  const auto found = state.find(key);
  const bool usable = found != state.end() && found->is_array() && found->size() <= Spikes::kMost &&
                      std::ranges::all_of(*found, [](const Json& x) { return x.is_number(); });
  if (!usable) {
    throw Error(
        {.what = "the checkpoint's window of spikes cannot be used",
         .expected = std::string("'") + key + "', at most " + std::to_string(Spikes::kMost) + " numbers",
         .where = where,
         .fix = "take another checkpoint"});
  }
  values.assign(found->begin(), found->end());
}

}  // namespace

double mean_loss(const store::StepResult& result) {
  return result.loss_sum / static_cast<double>(std::max<std::int64_t>(1, result.label_tokens));
}

ops::StepLimits Spikes::limits() const {
  return {.loss = limit(losses_, options_.loss_factor), .grad_norm = limit(norms_, options_.norm_factor)};
}

ops::StepLimits Spikes::limits_of_update() const {
  return options_.action == setup::SpikeAction::skip ? limits() : ops::StepLimits{};
}

std::string Spikes::look(const store::StepResult& result) {
  if (result.label_tokens == 0) return "";
  const ops::StepLimits most = limits();
  const double loss = mean_loss(result);
  std::string what;
  if (loss > most.loss) {
    what = above("loss", loss, most.loss, options_.loss_factor);
  } else if (result.grad_norm > most.grad_norm) {
    what = above("gradient norm", result.grad_norm, most.grad_norm, options_.norm_factor);
  }
  take_in(losses_, loss);
  take_in(norms_, result.grad_norm);
  in_a_row_ = what.empty() ? 0 : in_a_row_ + 1;
  found_ += what.empty() ? 0 : 1;
  return what;
}

Json Spikes::state() const {
  if (options_.loss_factor == 0 && options_.norm_factor == 0) return nullptr;
  return {{"found", found_}, {"in_a_row", in_a_row_}, {"losses", losses_}, {"grad_norms", norms_}};
}

void Spikes::restore(const Json& state, const std::string& where) {
  *this = Spikes(options_);
  if (state.is_null()) return;
  const std::string place = where + ", its window of spikes";
  read(state, "losses", losses_, place);
  read(state, "grad_norms", norms_, place);
  found_ = json_int(state, "found", 0, 0, INT64_C(1) << 60, place);
  in_a_row_ = static_cast<int>(json_int(state, "in_a_row", 0, 0, 1000, place));
}

}  // namespace octet::train
