#include "plan/plan_disk.h"

#include <cstdio>
#include <string>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/planner/disk.h"
#include "octet/setup/run_options.h"

namespace octet::cli {
namespace {

std::string text(std::int64_t bytes) {
  return with_commas(bytes) + " bytes (" + human_bytes(static_cast<double>(bytes)) + ")";
}

void print_row(const std::string& name, const std::string& value) {
  std::printf("  %-32s %s\n", name.c_str(), value.c_str());
}

}  // namespace

void print_disk(const planner::PlanReport& report, const planner::PlanTarget& target) {
  const planner::DiskPlan plan = planner::plan_disk(report, target);
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

Json disk_json(const planner::PlanReport& report, const planner::PlanTarget& target) {
  const planner::DiskPlan plan = planner::plan_disk(report, target);
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
