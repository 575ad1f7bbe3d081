// `trainer plan`: predicts memory and time of a run before it starts.
#include <cstdio>

#include "command.h"
#include "model_word.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/planner/generation.h"
#include "octet/planner/plan_report.h"
#include "octet/planner/planner.h"
#include "options.h"
#include "plan/plan_print.h"

namespace octet::cli {

// Prints the report of `trainer plan MODEL --generate`.

/// Print the report: for people, and with --json as one line.
void print_generate_report(const planner::GeneratePlan& plan, const planner::PlanTarget& target,
                           const planner::GenerationReport& report);
void print_generate_json(const planner::GeneratePlan& plan, const planner::PlanTarget& target,
                         const planner::GenerationReport& report);

using planner::Fit;
using planner::GeneratePlan;
using planner::GenerationReport;
using planner::PlanTarget;

void print_generate_report(const GeneratePlan& plan, const PlanTarget& target,
                           const GenerationReport& report) {
  const Fit& asked = report.asked;
  std::printf("model        %s, %s parameters\n", plan.model.c_str(), with_commas(report.parameters).c_str());
  std::printf("generation   --dtype %s --kv-cache-dtype %s --batch %lld --max-length %lld on %s\n",
              plan.dtype.c_str(), plan.kv_cache_dtype.c_str(), static_cast<long long>(plan.batch),
              static_cast<long long>(plan.max_length), target.name.c_str());
  const int tensor = plan.tensor_parallel_size, stages = plan.pipeline_parallel_size;
  if (tensor * stages > 1) {
    std::printf("split        --tensor-parallel-size %d --pipeline-parallel-size %d: %d ranks\n", tensor,
                stages, tensor * stages);
  }
  std::printf("\nmemory per rank%s\n", tensor * stages > 1 ? ", of the rank with the most" : "");
  const double held = asked.weights + asked.cache + static_cast<double>(asked.staging);
  std::printf("  %-32s %12s\n", "weights", human_bytes(asked.weights).c_str());
  std::printf("  %-32s %12s, %s per question; %s pages of %lld tokens\n", "keys and values",
              human_bytes(asked.cache).c_str(),
              human_bytes(asked.cache / static_cast<double>(asked.batch)).c_str(),
              with_commas(asked.pages).c_str(), static_cast<long long>(plan.kv_page_tokens));
  if (asked.staging > 0) {
    std::printf("  %-32s %12s\n", "message buffers", human_bytes(static_cast<double>(asked.staging)).c_str());
  }
  std::printf("  %-32s %12s\n", "all else", human_bytes(static_cast<double>(asked.bytes) - held).c_str());
  const bool fit = asked.bytes <= target.memory;
  std::printf("  %-32s %12s\n", "in all", human_bytes(static_cast<double>(asked.bytes)).c_str());
  std::printf("  %-32s %12s: %s\n", "the device has", human_bytes(static_cast<double>(target.memory)).c_str(),
              fit ? "fits" : "does NOT fit");
  const bool gpu = target.traits().has_known_rates;
  std::printf("\n%8s %12s %12s", "batch", "memory", "");
  if (gpu) std::printf(" %14s %14s", "floor, ms", "tokens/s");
  std::printf("\n");
  for (const Fit& f : report.fits) {
    std::printf("%8lld %12s %12s", static_cast<long long>(f.batch),
                human_bytes(static_cast<double>(f.bytes)).c_str(),
                f.bytes <= target.memory ? "fits" : "too much");
    if (gpu) {
      std::printf(" %14.3f %14s", 1e3 * f.floor_seconds,
                  with_commas(static_cast<std::int64_t>(f.tokens_per_second())).c_str());
    }
    std::printf("\n");
  }
  if (gpu) {
    std::printf(
        "\n"
        "The floor is the least time per step on %s after %lld tokens of each question: weights, keys and\n"
        "values read once, or its GEMMs, whichever takes longer.%s\n",
        target.rates.card, static_cast<long long>((plan.max_length - 1) / 2),
        tensor * stages > 1 ? " Messages between ranks take additional time." : "");
  }
  if (!plan.note.empty()) std::printf("\nnote: %s\n", plan.note.c_str());
}

void print_generate_json(const GeneratePlan& plan, const PlanTarget& target, const GenerationReport& report) {
  const Fit& asked = report.asked;
  Json memory = Json::object(), batches = Json::array();
  for (const plan::MemoryRow& row : asked.memory.rows) memory[row.name] = row.bytes;
  for (const Fit& f : report.fits) {
    batches.push_back({{"batch", f.batch},
                       {"total_bytes", f.bytes},
                       {"fits", f.bytes <= target.memory},
                       {"floor_seconds", f.floor_seconds},
                       {"tokens_per_second_at_most", f.tokens_per_second()}});
  }
  std::printf("%s\n", Json{{"model", plan.model},
                           {"notes", plan.note.empty() ? Json::array() : Json::array({plan.note})},
                           {"device", target.traits().word},
                           {"dtype", plan.dtype},
                           {"kv_cache_dtype", plan.kv_cache_dtype},
                           {"batch", plan.batch},
                           {"max_length", plan.max_length},
                           {"tensor_parallel_size", plan.tensor_parallel_size},
                           {"pipeline_parallel_size", plan.pipeline_parallel_size},
                           {"memory", memory},
                           {"weight_bytes", asked.weights},
                           {"cache_bytes", asked.cache},
                           {"cache_pages", asked.pages},
                           {"cache_page_tokens", plan.kv_page_tokens},
                           {"step_weight_bytes", asked.weights_read},
                           {"step_cache_bytes", asked.cache_read},
                           {"messages_bytes", asked.staging},
                           {"total_bytes", asked.bytes},
                           {"total_bytes_of_ranks", report.bytes_of_ranks},
                           {"device_bytes", target.memory},
                           {"fits", asked.bytes <= target.memory},
                           {"largest_batch", report.largest},
                           {"batches", batches}}
                          .dump()
                          .c_str());
}

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
