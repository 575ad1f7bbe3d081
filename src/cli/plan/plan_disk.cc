#include "plan/plan_disk.h"

#include <cstdio>
#include <optional>
#include <string>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/model/shapes.h"
#include "octet/setup/adapters.h"
#include "octet/setup/run_options.h"
#include "octet/train/disk.h"
#include "octet/train/fit.h"
#include "octet/train/ladder.h"

namespace octet::cli {
namespace {

struct DiskPlan {
  train::RunFiles files;
  std::int64_t step = 0;  ///< of the checkpoint; 0: unknown, its number is planned with one digit
  std::optional<train::CheckpointCount> checkpoints;  ///< nullopt: depends on the unknown number of steps
  std::int64_t fullest() const {
    const std::int64_t one = files.checkpoint.all();
    return std::max(checkpoints->most * one, checkpoints->at_end * one + files.model());
  }
};

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

DiskPlan plan_of(const PlanReport& report, const PlanTarget& target) {
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

std::string text(std::int64_t bytes) {
  return with_commas(bytes) + " bytes (" + human_bytes(static_cast<double>(bytes)) + ")";
}

void print_row(const std::string& name, const std::string& value) {
  std::printf("  %-32s %s\n", name.c_str(), value.c_str());
}

}  // namespace

void print_disk(const PlanReport& report, const PlanTarget& target) {
  const DiskPlan plan = plan_of(report, target);
  const checkpoint::CheckpointSize& checkpoint = plan.files.checkpoint;
  std::printf("\ndisk\n");
  print_row("a checkpoint", text(checkpoint.all()) + ", " + with_commas(checkpoint.tensors) +
                                " of them parameters, moments and other state");
  print_row("the final model",
            text(plan.files.model_weights) + " of weights" +
                (plan.files.model_others > 0
                     ? ", and at most " + human_bytes(static_cast<double>(plan.files.model_others)) +
                           " of other files"
                     : ""));
  if (!plan.checkpoints) {
    print_row("all checkpoints", "one for each save: save_total_limit keeps fewer");
    return;
  }
  const std::int64_t most = plan.checkpoints->most, kept = plan.checkpoints->at_end;
  const bool remains = setup::saves_when(report.config) != setup::When::never;
  print_row(remains ? "checkpoints kept" : "for the final model alone",
            std::to_string(kept) + ", " + text(kept * checkpoint.all()) +
                (most > kept ? "; " + std::to_string(most) + " while a new one is read back" : ""));
  print_row("at the fullest moment", text(plan.fullest()));
}

Json disk_json(const PlanReport& report, const PlanTarget& target) {
  const DiskPlan plan = plan_of(report, target);
  const checkpoint::CheckpointSize& checkpoint = plan.files.checkpoint;
  Json json{{"step", plan.step},
            {"checkpoint_bytes", checkpoint.all()},
            {"checkpoint_tensor_bytes", checkpoint.tensors},
            {"checkpoint_file_bytes", checkpoint.data_file},
            {"checkpoint_manifest_bytes", checkpoint.manifest},
            {"model_weight_bytes", plan.files.model_weights},
            {"model_other_bytes_at_most", plan.files.model_others}};
  json["checkpoints_kept"] = json["checkpoints_at_most"] = json["bytes_at_most"] = nullptr;
  if (plan.checkpoints) {
    json["checkpoints_kept"] = plan.checkpoints->at_end;
    json["checkpoints_at_most"] = plan.checkpoints->most;
    json["bytes_at_most"] = plan.fullest();
  }
  return json;
}

}  // namespace octet::cli
