#include "../src/report/run_log.h"

#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::fuzz {

// Reads the sums of a run from the state of a checkpoint.
void run_state(std::string_view bytes) {
  try {
    const Json state = parse_json(bytes, "state");
    report::Totals totals;
    report::Window window;
    if (state.is_object()) report::take_over_state(state, totals, window);
    if (state.is_array()) report::add_rows(std::vector<Json>(state.begin(), state.end()), totals);
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
