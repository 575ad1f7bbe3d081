// Sums of a run in its checkpoints, so that a resumed run continues them.
#pragma once

#include <vector>

#include "history.h"
#include "octet/base/json_fwd.h"
#include "window.h"

namespace octet::report {

/// Adds the steps in the rows of trainer_log.jsonl to `totals`. Rows are untrusted: invalid or out-of-range
/// values are ignored.
void add_rows(const std::vector<Json>& rows, Totals& totals);

/// Adds two fields to Hugging Face's trainer_state.json: `since_last_log`, the losses of `window`, and
/// `so_far`, the sums of the run.
void add_sums(Json& state, const Totals& totals, const Window& window);

/// Replaces the sums from add_rows() by the sums in a state from add_sums(). The state is untrusted, too.
void take_over_state(const Json& state, Totals& totals, Window& window);

}  // namespace octet::report
