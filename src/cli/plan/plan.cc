// `trainer plan`: predicts memory and time of a run before it starts.
#include "model_word.h"
#include "octet/base/error.h"
#include "octet/planner/generation.h"
#include "octet/planner/report.h"
#include "octet/planner/shape_words.h"
#include "options.h"
#include "plan/generate_print.h"
#include "plan/plan_print.h"
#include "with_places.h"

namespace octet::cli {
namespace {

/// Whether a word names a configuration, not a model.
bool is_configuration(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") ||
         (word.ends_with(".json") && !word.ends_with("config.json"));
}

/// Adds the options of `--generate`. Returns all of them except the flag itself.
std::vector<Option> add_generation(Options& options, bool& generates, planner::GeneratePlan& plan) {
  options.add_flag("--generate", generates,
                   "plan `trainer generate` of the model instead: its memory, the batches that fit, and the "
                   "floor of a step");
  return {options.setting("batch", plan.batch, "--generate: questions that are answered at the same time")
              .check(whole(1, 4096))
              .shows_default(),
          options.setting("max_length", plan.max_length, "--generate: tokens of question and answer")
              .check(whole(2, 1 << 20))
              .shows_default(),
          options
              .setting("max_num_batched_tokens", plan.max_num_batched_tokens,
                       "--generate: tokens per forward pass, at most; default: 4096 on a GPU and 512 on a "
                       "CPU, or twice the batch if that is more")
              .check(whole(1, 1 << 20)),
          options.setting("dtype", plan.dtype, "--generate: fp32, bf16 or fp8")
              .check(one_of_any_case({"fp32", "bf16", "fp8"}))
              .shows_default(),
          options.setting("kv_cache_dtype", plan.kv_cache_dtype, "--generate: auto or fp8")
              .check(one_of_any_case({"auto", "fp8"}))
              .shows_default(),
          options.setting(
              "kv_cache_bytes", plan.kv_cache_bytes,
              "--generate: memory for keys and values, such as 8GiB; default: as much as the batch needs"),
          options.setting("gpu_memory_utilization", plan.gpu_memory_utilization,
                          "--generate: share of a GPU's memory that the cache fills up, such as 0.9"),
          options.setting("kv_page_tokens", plan.kv_page_tokens, "--generate: tokens per page of the cache")
              .check(whole(1, 4096))
              .shows_default(),
          options
              .setting("tensor_parallel_size", plan.tensor_parallel_size,
                       "--generate: ranks that share every layer")
              .check(whole(1, 4096))
              .shows_default(),
          options
              .setting("pipeline_parallel_size", plan.pipeline_parallel_size,
                       "--generate: stages of layers, each on its own ranks")
              .check(whole(1, 4096))
              .shows_default()};
}

}  // namespace

int plan_command(const Arguments& arguments) {
  Options options(
      "plan",
      "Computes the memory of each rank (to the byte, with samples of cutoff_len tokens) and the least time "
      "of a step, without starting the run. Also shows the price (gpu_hour_price), the messages that "
      "computation cannot hide, and the best zero_stage. Exits with 1 if the run does not fit, and with 64 "
      "if it would be refused. Keys of the configuration may follow, such as device=cuda");
  options.example("trainer plan config.yaml");
  options.example("trainer plan config.yaml device=cuda world=8 zero_stage=3");
  options.example("trainer plan llama-3.1-70b card=h100 world=64 zero_stage=3 gpu_hour_price=2.5 tokens=1e9");
  options.example("trainer plan llama-3.1-8b --generate dtype=fp8 batch=64 device=cuda");
  options.take_overrides();
  std::string what;
  planner::TargetWish settings;
  double run_tokens = 0;
  bool json = false;
  options.add_option("CONFIG", what, "a configuration; or a model, as for bench");
  options.setting("world", settings.world, "ranks").check(whole(1, 1 << 20)).shows_default();
  options.setting("ranks_per_node", settings.ranks_per_node, "ranks per host; 0: all ranks, at most eight")
      .check(whole(0, 1 << 20));
  options.setting("card", settings.card,
                  "GPU to plan for: h100, h200, gh200 (96 GB) or gh200-144gb; default: the GPU of this "
                  "machine, else an H200");
  options.setting("memory", settings.memory,
                  "memory per device (on CPUs: per rank), such as 141GB; default: the memory of the card");
  const Option& tokens =
      options.setting("tokens", run_tokens, "tokens that the run trains in all, such as 2e9")
          .check(above_zero());
  options.add_flag("--json", json, "print one line of JSON");
  bool generates = false;
  planner::GeneratePlan generation;
  const std::vector<Option> of_generation = add_generation(options, generates, generation);
  if (!options.parse(arguments)) return 0;
  if (tokens.count() > 0 && generates) {
    throw Error({.what = "tokens is a setting of training plans, not of --generate",
                 .expected = "tokens or --generate, not both",
                 .found = "both",
                 .where = "command line",
                 .fix = "leave out tokens or --generate",
                 .code = ExitCode::usage});
  }
  for (const Option& option : of_generation) {
    if (option.count() == 0 || generates) continue;
    throw Error({.what = option.name().substr(2) + " is a setting of --generate",
                 .expected = "--generate",
                 .found = "a plan of a training",
                 .where = "command line",
                 .fix = "give --generate, or leave it out",
                 .code = ExitCode::usage});
  }
  Arguments words = options.overrides();
  const bool configured = is_configuration(what);
  if (configured) {
    words.insert(words.begin(), what);
  } else {
    words = planner::with_bf16(std::move(words));
  }
  config::Resolved resolved = config::load(words, {.for_training = false});
  const config::Config& config = resolved.config;
  const ModelWord word = find_model_word(configured || what.empty() ? config.model_name_or_path : what);
  const std::string& model = word.model;
  if (!word.note.empty()) resolved.notes.push_back(word.note);
  if (model.empty()) {
    throw Error({.what = "there is nothing to plan",
                 .expected = "a configuration, a model's folder, or a shape such as llama-3.1-8b",
                 .where = "command line",
                 .fix = "trainer plan config.yaml, or trainer plan llama-3.1-8b device=cuda",
                 .code = ExitCode::usage});
  }
  if (generates) settings.replica = generation.tensor_parallel_size * generation.pipeline_parallel_size;
  return with_places(resolved, [&] {
    const planner::PlanTarget target = planner::target_of(config, settings);
    if (generates) {
      generation.model = model;
      generation.note = word.note;
      generation.each_rank = json;
      const planner::GenerationReport report = planner::plan_generation(resolved, generation, target);
      (json ? print_generate_json : print_generate_report)(generation, target, report);
      return report.asked.bytes <= target.memory ? 0 : static_cast<int>(ExitCode::failure);
    }
    const planner::PlanReport report = planner::plan_run(
        {.resolved = resolved, .configured = configured, .model = model, .tokens = run_tokens}, target);
    (json ? print_json : print_report)(report, target);
    if (!report.notes.cannot_run.empty()) return static_cast<int>(report.notes.code);
    return report.total() <= target.memory ? 0 : static_cast<int>(ExitCode::failure);
  });
}

}  // namespace octet::cli
