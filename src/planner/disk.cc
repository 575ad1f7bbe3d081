#include "octet/planner/disk.h"

#include <algorithm>

#include "octet/base/json.h"
#include "octet/model/shapes.h"
#include "octet/setup/adapters.h"
#include "octet/setup/run_options.h"

namespace octet::planner {
namespace {

std::optional<train::CheckpointCount> count_of(const config::Config& config) {
  const setup::When when = setup::saves_when(config);
  const bool steps = when == setup::When::steps && !config.mtbf_hours && config.max_steps > 0;
  if (when == setup::When::never || steps) {
    const std::int64_t saves = train::saves_of_run(config, {.done = 0, .total = config.max_steps});
    return train::checkpoints_of_run(config, saves);
  }
  // Assumes that the run saves often enough to reach save_total_limit.
  if (config.save_total_limit) return train::checkpoints_of_run(config, INT64_MAX / 2);
  return std::nullopt;
}

}  // namespace

DiskPlan plan_disk(const PlanReport& report, const PlanTarget& target) {
  config::Resolved resolved{.config = report.config};
  config::Config& config = resolved.config;
  config.model_name_or_path = report.model;
  const model::Architecture architecture = model::find_shape(report.model);
  train::RunOutline outline{.tensors = train::checkpoint_tensors(
                                train::worst_options(config, architecture, report.choice, target.place.size),
                                target.place, target.kind),
                            .config_yaml = resolved.to_yaml(),
                            .adapters = {},
                            .step = std::max<std::int64_t>(0, config.max_steps),
                            .world = target.place.size};
  if (setup::trains_adapters(config))
    outline.adapters = setup::adapter_config(setup::adapter_wish(config), architecture, "");
  return {.files = train::files_of_run(config, architecture, outline),
          .step = outline.step,
          .checkpoints = count_of(config)};
}

}  // namespace octet::planner
