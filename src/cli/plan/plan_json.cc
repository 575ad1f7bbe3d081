// The report of `trainer plan --json`.
#include <cstdio>

#include "octet/base/json.h"
#include "octet/model/layout.h"
#include "plan/plan_print.h"

namespace octet::cli {
namespace {

using planner::PlanReport;
using planner::PlanTarget;

const char* transposed_name(const plan::Level& level) {
  return level.transposes_at_use ? "at_use" : "keep";
}

/// Returns the exposed message time per link. Empty for CPUs, because their compute time is not modelled.
Json exposed_of(const PlanReport& r, const PlanTarget& target) {
  Json links = Json::object();
  if (!target.traits().has_known_rates) return links;
  for (const plan::Link& link : plan::links()) links[link.name] = r.exposed_over(link);
  return links;
}

/// Adds the stage and the level that plan would choose, and why.
void add_choice(Json& all, const PlanReport& r, const PlanTarget& target) {
  Json stages = Json::array(), levels = Json::array();
  const auto row_of = [&](const plan::Level& level, std::size_t bytes, double seconds) {
    return Json{{"recompute", plan::name_of(level.recompute)},
                {"fp8_transposed_weights", transposed_name(level)},
                {"total_bytes", bytes},
                {"fits", bytes <= target.memory},
                {"seconds_at_least", seconds}};
  };
  for (const planner::StageRow& row : r.stages) {
    stages.push_back(row_of(row.level, row.bytes, row.seconds));
    stages.back()["zero_stage"] = row.stage;
    stages.back()["exposed_seconds"] = row.exposed;
  }
  for (const planner::LevelRow& row : r.levels) levels.push_back(row_of(row.level, row.bytes, row.seconds));
  const std::optional<int> chosen = planner::chosen_stage(r.stages, target.kind);
  all["stages"] = stages;
  all["levels"] = levels;
  all["chosen_stage"] = chosen ? Json(*chosen) : Json();
  all["why_stage"] = planner::why_stage(r.stages, target);
  all["why_recompute"] = planner::why_level(r.levels, r.choice.level, target);
}

/// Adds lower bounds of the cost of a step and of the run; null if the price or the steps are not known.
void add_cost(Json& all, const PlanReport& r, const PlanTarget& target) {
  const bool gpus = target.traits().counts_as_gpu, priced = gpus && r.config.gpu_hour_price.has_value();
  all["gpus"] = gpus ? r.batch.world : 0;
  all["gpu_hour_price"] = priced ? Json(*r.config.gpu_hour_price) : Json();
  all["steps"] = r.steps ? Json(*r.steps) : Json();
  all["cost_per_step_at_least"] = priced ? Json(r.cost_per_step()) : Json();
  all["cost_of_run_at_least"] =
      priced && r.steps ? Json(static_cast<double>(*r.steps) * r.cost_per_step()) : Json();
  all["run_seconds_at_least"] =
      gpus && r.steps ? Json(static_cast<double>(*r.steps) * r.floor_seconds()) : Json();
}

}  // namespace

void print_json(const PlanReport& r, const PlanTarget& target) {
  const config::Config& config = r.config;
  Json memory = Json::object(), time = Json::object(), fitting = Json::array();
  for (const plan::MemoryRow& row : r.memory.rows) memory[row.name] = row.bytes;
  Json pinned = Json::object(), host = Json::object();
  for (const plan::MemoryRow& row : r.memory.pinned) pinned[row.name] = row.bytes;
  for (const plan::MemoryRow& row : r.memory.host) host[row.name] = row.bytes;
  for (const plan::TimeRow& row : r.time.rows) time[row.name] = row.seconds;
  Json alternatives = Json::array();
  const auto row_of = [](const plan::Choice& c) {
    return Json{{"micro_batch", c.micro},
                {"recompute", plan::name_of(c.level.recompute)},
                {"fp8_transposed_weights", transposed_name(c.level)}};
  };
  for (const plan::Choice& c : r.fitting) fitting.push_back(row_of(c));
  for (const planner::Alternative& a : r.alternatives) {
    alternatives.push_back(row_of(a.choice));
    alternatives.back()["keys"] = a.keys;
    alternatives.back()["total_bytes"] = a.bytes;
  }
  Json ladder = Json::array();
  for (const train::Rung& rung : r.ladder) {
    ladder.push_back(
        {{"keys", rung.keys}, {"total_bytes", rung.bytes}, {"fits", rung.bytes <= target.memory}});
    if (rung.moved > 0) ladder.back()["moved_to_host_bytes"] = rung.moved;
  }
  Json messages = Json::array(), links = Json::object();
  for (const store::StepMessages& stage : r.messages) {
    messages.push_back({{"bytes_sent", stage.bytes()}, {"bytes_between_hosts", stage.between_nodes()}});
  }
  for (const plan::Link& link : plan::links()) links[link.name] = r.seconds_over(link);
  const model::ParameterLayout layout = model::build_layout(r.work.architecture);
  Json all{{"model", r.model},
           {"parameters", layout.parameter_count()},
           {"trained_parameters", model::trained_parameters(layout)},
           {"world", target.place.size},
           {"device", target.traits().word},
           {"zero_stage", config.zero_stage},
           {"zero_group_size", r.group > 0 ? Json(r.group) : Json()},
           {"param_dtype", config.param_dtype},
           {"grad_dtype", config.grad_dtype},
           {"optim_dtype", config.optim_dtype},
           {"micro_batch", r.choice.micro},
           {"accumulation", r.batch.accumulation},
           {"recompute", plan::name_of(r.choice.level.recompute)},
           {"fp8_transposed_weights", transposed_name(r.choice.level)},
           {"memory", memory},
           {"pinned_memory", pinned},
           {"host_memory", host},
           {"messages_bytes", r.staging},
           {"nccl_bytes", r.nccl},
           {"library_bytes", r.libraries},
           {"total_bytes", r.total()},
           {"device_bytes", target.memory},
           {"fits", r.total() <= target.memory},
           {"fitting", fitting},
           {"ladder", ladder},
           {"alternatives", alternatives},
           {"time", time},
           {"message_seconds", r.message_seconds()},
           {"messages_by_stage", messages},
           {"message_seconds_by_link", links},
           {"floor_seconds", r.floor_seconds()},
           {"tokens_per_second_at_most", static_cast<double>(r.tokens_per_step()) / r.floor_seconds()},
           {"fp8_warning", r.fp8}};
  all["disk"] = disk_json(r, target);
  all["card"] = target.card;
  all["exposed_seconds_by_link"] = exposed_of(r, target);
  add_choice(all, r, target);
  add_cost(all, r, target);
  all["notes"] = r.notes.notes;
  all["doubts"] = r.notes.doubts;
  all["cannot_run"] = r.notes.cannot_run;
  std::printf("%s\n", all.dump().c_str());
}

}  // namespace octet::cli
