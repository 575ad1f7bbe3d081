#include "faults/not_finite_steps.h"

#include <cmath>

#include "octet/base/json.h"

namespace octet::train {

bool was_skipped(const store::StepResult& result) {
  return result.skipped && result.label_tokens > 0;
}

bool NotFiniteSteps::add(const store::StepResult& result, bool spike) {
  const bool finite = spike || (!was_skipped(result) && std::isfinite(result.loss_sum));
  in_a_row_ = finite ? 0 : in_a_row_ + 1;
  return finite;
}

void NotFiniteSteps::restore(const Json& state, const std::string& where) {
  in_a_row_ = static_cast<int>(json_int(state, "not_finite_in_a_row", 0, 0, kMost - 1, where));
}

}  // namespace octet::train
