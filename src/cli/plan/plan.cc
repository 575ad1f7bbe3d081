// `trainer plan`: predicts memory and time of a run before it starts.
#include <algorithm>

#include "model_word.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/plan/cards.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "options.h"
#include "plan/generate_plan.h"
#include "plan/plan_print.h"
#include "plan/shape_words.h"
#include "with_places.h"

namespace octet::cli {
namespace {

struct Settings {
  std::int64_t world = 1;
  std::int64_t ranks_per_node = 0;  ///< 0: up to eight
  std::string card;                 ///< "": the card of this machine, or else an H200
  std::string memory;
  double tokens = 0;  ///< of the whole run; 0: not given
  int replica = 1;    ///< ranks of one replica with split layers, all on one node
};

comm::Place place_of(const Settings& s) {
  comm::Place place;
  place.size = static_cast<int>(s.world);
  const std::int64_t each = s.ranks_per_node > 0 ? s.ranks_per_node : std::min<std::int64_t>(8, s.world);
  place.node_of.clear();
  for (std::int64_t r = 0; r < s.world; ++r) place.node_of.push_back(static_cast<int>(r / each));
  place.nodes = place.node_of.back() + 1;
  place.local_size = static_cast<int>(std::min(each, s.world));
  return place;
}

void take_card(PlanTarget& t, const plan::Card& card) {
  t.name = card.name;
  t.card = card.key;
  t.memory = card.memory;
  t.rates = plan::rates_of(card);
}

/// Takes the named card, else the card of this machine, else an H200.
void take_gpu(PlanTarget& t, const std::string& card) {
  t.kind = kGpuKind;
  take_card(t, plan::find_card(card.empty() ? "h200" : card));
  if (!card.empty() || !cuda_available(0)) return;
  const std::unique_ptr<Device> device = make_cuda_device(0);
  if (const plan::Card* described = plan::described_card(device->description())) {
    take_card(t, *described);
  } else {
    t.card.clear();
  }
  t.name = device->description();
  t.memory = device->memory().total;
}

PlanTarget target_of(const config::Config& config, const Settings& s) {
  PlanTarget t;
  t.place = place_of(s);
  const DeviceWish wish = setup::session_wish(config).device;
  if (!s.card.empty() && wish == kWithoutGpus) {
    throw Error({.what = "a card is a GPU, but this configuration computes on CPUs",
                 .expected = "device=cuda, or no card",
                 .found = "card=" + s.card + " and device=cpu",
                 .where = "command line",
                 .fix = "leave one of them out",
                 .code = ExitCode::usage});
  }
  const bool gpu = !s.card.empty() || leads_to_gpu(wish);
  if (gpu) {
    take_gpu(t, s.card);
  } else {
    t.name = "CPU";
    // The scratch memory of ops depends on the threads of a rank.
    const int node_ranks = std::max(t.place.local_size, s.replica);
    cpu::set_op_threads(cpu::claim_cores(0, node_ranks));
    t.memory = make_cpu_device({.threads = cpu::op_threads()})->memory().total /
               static_cast<std::size_t>(node_ranks);
  }
  if (s.memory.empty()) return t;
  t.memory = plan::parse_bytes(s.memory, "memory");
  if (gpu && s.card.empty()) t.name = "GPU";
  return t;
}

/// Whether a word names a configuration, not a model.
bool is_configuration(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") ||
         (word.ends_with(".json") && !word.ends_with("config.json"));
}

/// Adds the options of `--generate`. Returns all of them except the flag itself.
std::vector<Option> add_generation(Options& options, bool& generates, GeneratePlan& plan) {
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
  Settings settings;
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
      options.setting("tokens", settings.tokens, "tokens that the run trains in all, such as 2e9")
          .check(above_zero());
  options.add_flag("--json", json, "print one line of JSON");
  bool generates = false;
  GeneratePlan generation;
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
    words = with_bf16(std::move(words));
  }
  config::Resolved resolved = config::load(words, {.for_training = false});
  config::Config& config = resolved.config;
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
    const PlanTarget target = target_of(config, settings);
    if (generates) {
      generation.model = model;
      generation.note = word.note;
      generation.json = json;
      return plan_generation(resolved, generation, target);
    }
    // The number of steps per epoch is unknown without the data, so only max_steps is used.
    if (setup::leaves_saves_open(config) && config.max_steps > 0 &&
        !setup::saves_before_the_end(resolved, config.max_steps, 0))
      config.save_async = "false";
    PlanReport report = make_plan(config, model, target);
    report.steps = steps_of_run(config, settings.tokens, report.tokens_per_step());
    report.notes = plan_notes(resolved, configured, model, report.work.architecture, target.kind);
    (json ? print_json : print_report)(report, target);
    if (!report.notes.cannot_run.empty()) return static_cast<int>(report.notes.code);
    return report.total() <= target.memory ? 0 : static_cast<int>(ExitCode::failure);
  });
}

}  // namespace octet::cli
