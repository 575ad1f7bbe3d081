// Two logs of numbers for commands that compare runs. The first has 20 steps; its last tenth is two steps.
// The second has every second step, and a spike at step 8.
#pragma once

#include <string>

#include "octet/base/json.h"

namespace octet::test {

struct TwoLogs {
  std::string one, other;
};

inline TwoLogs two_logs() {
  TwoLogs logs;
  for (int n = 1; n <= 20; ++n) {
    Json row{
        {"current_steps", n},    {"loss", 10.0 - 0.25 * n}, {"grad_norm", n},  {"seconds_per_step", 0.5 * n},
        {"throughput", 100 * n}, {"mfu", 0.01 * n},         {"tflops", 2 * n}, {"vram_allocated", n}};
    logs.one += row.dump() + "\n";
    if (n == 10) logs.one += Json{{"current_steps", n}, {"eval_loss", 7.5}}.dump() + "\n";
    row["loss"] = n == 8 ? 12.0 : 10.0 - 0.25 * n;  // 8 in the first log
    row.erase("mfu");
    if (n % 2 == 0) logs.other += row.dump() + "\n";
  }
  return logs;
}

}  // namespace octet::test
