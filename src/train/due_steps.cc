#include "due_steps.h"

#include "octet/config/derive.h"

namespace octet::train {

bool is_turn(const Turn& turn, std::int64_t step, std::int64_t total, bool ends_epoch) {
  if (turn.when == setup::When::steps) return step % config::interval_steps(turn.interval, total) == 0;
  return turn.when == setup::When::epoch && ends_epoch;
}

bool is_planned(const Turn& turn, std::int64_t step, std::int64_t total, std::int64_t epoch) {
  return is_turn(turn, step, total, epoch > 0 && step % epoch == 0);
}

}  // namespace octet::train
