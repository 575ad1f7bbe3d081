#include "saves/best_checkpoint.h"

#include <cmath>
#include <utility>

#include "octet/base/json.h"

namespace octet::train {

bool BestCheckpoint::is_beaten_by(const Evaluated& latest, std::int64_t step) const {
  // Equal losses keep the earlier one; a loss that is not a number is never the best.
  return wanted_ && latest.step == step && std::isfinite(latest.loss) &&
         (best_.step < 0 || latest.loss < best_.loss);
}

void BestCheckpoint::replace(const EvaluatedCheckpoint& best) {
  second_best_ = std::exchange(best_, best);
}

bool BestCheckpoint::drop(std::int64_t step) {
  if (best_.step < 0 || best_.step != step) return false;
  best_ = second_best_;
  return true;
}

void BestCheckpoint::add_to(Json& state) const {
  if (best_.step >= 0) state["best"] = best_entry(best_.step, best_.loss);
}

Json best_entry(std::int64_t step, double loss) {
  return {{"step", step}, {"loss", loss}};
}

}  // namespace octet::train
