// What a run had summed up when its checkpoint was made, so that a resumed run counts on.
#pragma once

#include <vector>

#include "history.h"
#include "octet/base/json_fwd.h"
#include "window.h"

namespace octet::report {

/// Raises `totals` by what the rows of trainer_log.jsonl tell of the steps behind them. Rows are hostile:
/// what is no number in range is left out.
void add_rows(const std::vector<Json>& rows, Totals& totals);

/// Adds to Hugging Face's fields of trainer_state.json what they do not hold: `since_last_log`, the losses of
/// `window`, and `so_far`, the sums of the run.
void add_sums(Json& state, const Totals& totals, const Window& window);

/// The sums of a state that add_sums() wrote, over what the rows told. Hostile, as they are.
void take_over_state(const Json& state, Totals& totals, Window& window);

}  // namespace octet::report
