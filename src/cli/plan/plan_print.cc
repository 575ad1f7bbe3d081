// Prints the report of `trainer plan` for people.
#include "plan/plan_print.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/model/layout.h"
#include "octet/planner/plan_report.h"
#include "octet/report/number.h"
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

namespace {

using planner::PlanNotes;
using planner::PlanReport;
using planner::PlanTarget;

void print_memory(const PlanReport& r, const PlanTarget& target) {
  std::printf("\nmemory per rank\n");
  constexpr std::size_t kSmall = std::size_t{1} << 20;
  std::size_t small = 0, names = 0;
  for (const plan::MemoryRow& row : r.memory.rows) {
    if (r.memory.bytes > 64 * kSmall && row.bytes < kSmall) {
      small += row.bytes, ++names;
      continue;
    }
    std::printf("  %-32s %12s\n", row.name.c_str(), human_bytes(row.bytes).c_str());
  }
  if (names > 0) {
    std::printf("  %-32s %12s\n", (std::to_string(names) + " smaller ones").c_str(),
                human_bytes(small).c_str());
  }
  if (r.staging > 0) std::printf("  %-32s %12s\n", "message buffers", human_bytes(r.staging).c_str());
  if (r.nccl > 0) std::printf("  %-32s %12s\n", "NCCL", human_bytes(r.nccl).c_str());
  if (r.libraries > 0)
    std::printf("  %-32s %12s\n", "driver and libraries", human_bytes(r.libraries).c_str());
  const bool fits = r.total() <= target.memory;
  std::printf("  %-32s %12s, %s of it for the tokens of a micro-batch\n", "in all",
              human_bytes(r.total()).c_str(), human_bytes(r.memory.of_tokens()).c_str());
  std::printf("  %-32s %12s: %s %s\n", "the device has", human_bytes(target.memory).c_str(),
              fits ? "fits, free are" : "does NOT fit, missing are",
              human_bytes(fits ? target.memory - r.total() : r.total() - target.memory).c_str());
}

/// Prints host memory for a run on GPUs. On CPUs there is only one kind of memory.
void print_host_memory(const PlanReport& r, const PlanTarget& target) {
  if (!target.traits().has_host_link) return;
  std::printf("\nmemory of the host per rank\n");
  const std::size_t state = r.memory.state_of_host(), pinned = r.memory.pinned_bytes();
  if (state > 0) {
    std::printf("  %-32s %12s, pinned, all the time\n", "the optimizer's state", human_bytes(state).c_str());
    std::printf("  %-32s %12s\n", "other pinned memory", human_bytes(pinned - state).c_str());
  } else {
    std::printf("  %-32s %12s\n", "pinned, all the time", human_bytes(pinned).c_str());
  }
  if (state > 0 && target.place.local_size > 1) {
    const auto ranks = static_cast<std::size_t>(target.place.local_size);
    std::printf("  %-32s %12s\n", ("of all " + std::to_string(ranks) + " ranks of a host").c_str(),
                human_bytes(ranks * pinned).c_str());
  }
  for (const plan::MemoryRow& row : r.memory.host) {
    std::printf("  %-32s %12s, between steps\n", row.name.c_str(), human_bytes(row.bytes).c_str());
  }
}

void print_stages(const char* name, const std::array<double, 4>& values, double unit) {
  std::printf("  %-32s", name);
  for (const double value : values) std::printf(" %12.*f", value >= 100 * unit ? 0 : 2, value / unit);
  std::printf("\n");
}

/// Prints rows of a table with one column per stage.
void print_links(const PlanReport& r, const PlanTarget& target) {
  constexpr double millisecond = 1e-3;
  const bool gpus = target.traits().has_known_rates;
  for (const plan::Link& link : plan::links()) {
    const bool used = link.between_hosts ? target.place.nodes > 1 : target.place.local_size > 1 && gpus;
    if (!used) continue;
    print_stages(("ms over " + std::string(link.name) + (link.between_hosts ? " per host" : "")).c_str(),
                 r.seconds_over(link), millisecond);
    // The compute time of CPUs is not modelled.
    if (gpus) print_stages("  exposed", r.exposed_over(link), millisecond);
  }
}

void print_messages(const PlanReport& r, const PlanTarget& target) {
  if (target.place.size == 1) return;
  std::printf("\nmessages per rank and step: gradients, and parameters or sums\n");
  std::printf("  %-32s %12s %12s %12s %12s\n", "zero_stage", "0", "1", "2", "3");
  std::array<double, 4> inside{}, between{};
  for (std::size_t s = 0; s < inside.size(); ++s) {
    between[s] = static_cast<double>(r.messages[s].between_nodes());
    inside[s] = static_cast<double>(r.messages[s].bytes()) - between[s];
  }
  constexpr double mebibyte = 0x1p20;
  if (target.place.local_size > 1) print_stages("MiB to ranks of its host", inside, mebibyte);
  if (target.place.nodes > 1) print_stages("MiB to ranks of other hosts", between, mebibyte);
  print_links(r, target);
  if (target.traits().has_known_rates) {
    std::printf(
        "  exposed: messages that forward and backward passes cannot hide, if the passes take their least "
        "time\n"
        "  and the links carry their most\n");
  }
  if (r.message_seconds() > 0) {
    std::printf("  over NVLink %.1f %% of the least time per step, concurrently with it\n",
                100 * r.message_seconds() / r.time.seconds);
  }
  if (r.message_seconds() > r.time.seconds) {
    std::printf(
        "  messages take longer than computation. Larger micro-batches hide more of them; so do more\n"
        "  micro-batches per step with zero_stage 0 or 1\n");
  }
}

void print_time(const PlanReport& r, const PlanTarget& target) {
  if (!target.traits().has_known_rates) {
    std::printf("\ntime: estimated only for GPUs (device=cuda); trainer bench measures this machine\n");
    return;
  }
  std::printf("\nleast time per step on %s (nothing waits, messages are hidden)\n", target.rates.card);
  if (target.card.empty()) {
    std::printf("  plans have no figures of this GPU, and use the figures of %s\n", target.rates.card);
  }
  for (const plan::TimeRow& row : r.time.rows) {
    std::printf("  %-32s %9.1f ms %6.1f %%\n", row.name.c_str(), 1e3 * row.seconds,
                100 * row.seconds / r.time.seconds);
  }
  const double rate = static_cast<double>(r.tokens_per_step()) / r.floor_seconds();
  const double flops = model::flops_per_token(r.work.architecture, static_cast<double>(r.config.cutoff_len));
  std::printf("  %-32s %9.1f ms, at most %s tokens per second, %.0f %% of 989.4 TFLOP/s per GPU\n", "in all",
              1e3 * r.time.seconds, with_commas(static_cast<std::int64_t>(rate)).c_str(),
              100 * report::flop_utilisation(flops, rate, r.batch.world));
  if (r.work.host_state_bytes > 0) {
    std::printf(
        "  an update reads %s from host memory and writes %s to it, and takes as long as these bytes\n"
        "  need on the link: %.0f GB/s each way, %s\n",
        human_bytes(plan::bytes_from_host(r.work)).c_str(), human_bytes(r.work.host_state_bytes).c_str(),
        1e-9 * target.rates.host, target.rates.host_source);
  }
  if (!r.fp8.empty()) std::printf("  %s\n", r.fp8.c_str());
}

std::string money(double amount) {
  if (amount >= 1000) return with_commas(static_cast<std::int64_t>(std::llround(amount)));
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", amount);
  return text;
}

/// Prints time and price of the whole run, as far as they are known.
void print_run(const PlanReport& r, const PlanTarget& target) {
  const bool priced = r.config.gpu_hour_price.value_or(0) > 0;
  if (!target.traits().counts_as_gpu || (!priced && !r.steps)) return;
  std::printf("\nleast time and cost of the run");
  if (priced) std::printf(", at %s per GPU and hour", money(*r.config.gpu_hour_price).c_str());
  std::printf("\n");
  const auto gpus = static_cast<long long>(r.batch.world);
  const char* plural = gpus == 1 ? "" : "s";
  if (priced) {
    std::printf("  %-32s %12s on %lld GPU%s\n", "per step", money(r.cost_per_step()).c_str(), gpus, plural);
  }
  if (!r.steps) return;
  const auto steps = static_cast<double>(*r.steps);
  const double hours = steps * r.floor_seconds() / 3600;
  std::printf("  %-32s %12s hours on %lld GPU%s\n", (with_commas(*r.steps) + " steps").c_str(),
              money(hours).c_str(), gpus, plural);
  if (priced) std::printf("  %-32s %12s\n", "cost of these", money(steps * r.cost_per_step()).c_str());
}

/// Prints the recommended stage and level. They do not change the plan.
void print_choice(const PlanReport& r, const PlanTarget& target) {
  const std::string stage = planner::why_stage(r.stages, target),
                    level = planner::why_level(r.levels, r.choice.level, target);
  if (stage.empty() && level.empty()) return;
  std::printf("\nwhat to choose with this micro-batch");
  const std::vector<const plan::Link*> links = assumed_links(target);
  if (!stage.empty() && !links.empty()) {
    std::printf(", with messages over %s", links.front()->name);
    if (links.size() > 1) std::printf(" and %s per host", links.back()->name);
  }
  std::printf("\n");
  for (const std::string& line : {stage, level}) {
    if (!line.empty()) std::printf("  %s\n", line.c_str());
  }
}

void print_notes(const PlanNotes& all) {
  if (!all.notes.empty() || !all.doubts.empty() || !all.cannot_run.empty()) std::printf("\n");
  for (const std::string& note : all.notes) std::printf("note: %s\n", note.c_str());
  for (const std::string& doubt : all.doubts) std::printf("warning: %s\n", doubt.c_str());
  for (const std::string& refusal : all.cannot_run) std::printf("cannot run: %s\n", refusal.c_str());
}

std::string keys_of(const plan::Choice& choice) {
  return "per_device_train_batch_size=" + std::to_string(choice.micro) + " " + plan::keys_of(choice.level);
}

void print_advice(const PlanReport& r, const PlanTarget& target) {
  std::printf("\nlargest micro-batch that fits\n");
  if (r.fitting.empty()) std::printf("  none, with states stored as they are\n");
  for (const plan::Choice& c : r.fitting) std::printf("  %s\n", keys_of(c).c_str());
  if (r.total() <= target.memory) return;
  if (!r.fitting.empty()) {
    std::printf("  recompute=auto and auto_find_batch_size=true choose automatically\n");
  }
  std::printf("\nwhat to change, one after another (each line includes the lines above)\n");
  for (const std::string& line : train::ladder_lines(r.ladder, target.memory))
    std::printf("  %s\n", line.c_str());
  std::printf("\nwith states stored in fewer bytes, or fewer states\n");
  for (const planner::Alternative& a : r.alternatives) {
    std::printf("  fits with %s %s: %s\n", a.keys.c_str(), keys_of(a.choice).c_str(),
                human_bytes(a.bytes).c_str());
  }
  if (r.alternatives.empty()) {
    std::printf("  it does not fit either: raise zero_stage and the number of ranks, or lower cutoff_len\n");
  }
}

/// Returns the trained share of all parameters; "" if all are trained.
std::string trained_share(const model::ParameterLayout& layout) {
  const std::int64_t trained = model::trained_parameters(layout), all = layout.parameter_count();
  if (trained == all) return "";
  char share[64];
  std::snprintf(share, sizeof share, " (%.3g %%)",
                100 * static_cast<double>(trained) / static_cast<double>(all));
  return ", of which " + with_commas(trained) + share + " are trained";
}

}  // namespace

void print_report(const PlanReport& r, const PlanTarget& target) {
  const config::Config& config = r.config;
  const model::ParameterLayout layout = model::build_layout(r.work.architecture);
  std::printf("model        %s, %s parameters%s\n", r.model.c_str(),
              with_commas(layout.parameter_count()).c_str(), trained_share(layout).c_str());
  const std::string groups = r.group > 0 ? ", groups of " + std::to_string(r.group) : "";
  std::printf("ranks        %d x %s on %d host%s of up to %d, zero_stage %lld%s\n", target.place.size,
              target.name.c_str(), target.place.nodes, target.place.nodes == 1 ? "" : "s",
              target.place.local_size, static_cast<long long>(config.zero_stage), groups.c_str());
  std::printf("step         %lld micro-batch%s of %lld x %lld tokens on each rank, recompute %s%s\n",
              static_cast<long long>(r.batch.accumulation), r.batch.accumulation == 1 ? "" : "es",
              static_cast<long long>(r.choice.micro), static_cast<long long>(config.cutoff_len),
              plan::name_of(r.choice.level.recompute),
              r.choice.level.transposes_at_use ? ", FP8 weights transposed at each use" : "");
  std::printf("states       param_dtype %s, grad_dtype %s, optim_dtype %s%s\n", config.param_dtype.c_str(),
              config.grad_dtype.c_str(), config.optim_dtype.c_str(),
              r.memory.state_of_host() > 0 ? ", the optimizer's in the host's memory" : "");
  print_memory(r, target);
  print_host_memory(r, target);
  print_time(r, target);
  print_run(r, target);
  print_messages(r, target);
  print_disk(r, target);
  print_choice(r, target);
  print_advice(r, target);
  print_notes(r.notes);
}

}  // namespace octet::cli
