// Memory and time of a run before it starts.
#include <cstdio>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/model/build.h"
#include "octet/model/shapes.h"
#include "octet/report/throughput.h"
#include "octet/train/fit.h"
#include "options.h"

namespace octet::cli {
namespace {

/// What the plan is for.
struct Target {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;
  std::size_t memory = 0;  ///< of the device, or of the node's memory a rank's share
  comm::Place place;
};

struct Settings {
  std::int64_t world = 1;
  std::int64_t ranks_per_node = 0;  ///< 0: up to eight
  std::string memory;
};

constexpr double kH200 = 139.8 * 0x1p30;

Target target_of(const config::Config& config, const Settings& s) {
  Target t;
  t.place.size = static_cast<int>(s.world);
  const std::int64_t each = s.ranks_per_node > 0 ? s.ranks_per_node : std::min<std::int64_t>(8, s.world);
  t.place.node_of.clear();
  for (std::int64_t r = 0; r < s.world; ++r) t.place.node_of.push_back(static_cast<int>(r / each));
  t.place.nodes = t.place.node_of.back() + 1;
  t.place.local_size = static_cast<int>(std::min(each, s.world));
  const bool gpu = config.device == "cuda" || (config.device == "auto" && cuda_available(0));
  if (gpu) {
    t.kind = DeviceKind::cuda;
    t.name = "NVIDIA H200";
    t.memory = static_cast<std::size_t>(kH200);
    if (cuda_available(0)) {
      const std::unique_ptr<Device> device = make_cuda_device(0);
      t.name = device->description();
      t.memory = device->memory().total;
    }
  } else {
    t.name = "CPU";
    t.memory = make_cpu_device()->memory().total / static_cast<std::size_t>(t.place.local_size);
  }
  if (!s.memory.empty()) {
    t.memory = plan::parse_bytes(s.memory, "memory");
    if (gpu) t.name = "GPU";
  }
  return t;
}

/// Everything that the command finds out.
struct Report {
  std::string model;
  config::Batch batch;
  plan::Choice choice;
  plan::Memory memory;
  std::size_t staging = 0, libraries = 0;
  plan::Work work;
  plan::Time time;
  std::vector<plan::Choice> fitting;  ///< the largest micro-batch at each level
  std::string fp8;
  std::size_t total() const { return memory.bytes + staging + libraries; }
};

/// Micro-batches worth a look: powers of two, and all up to 16.
std::vector<std::int64_t> micros_up_to(std::int64_t most) {
  std::vector<std::int64_t> all;
  for (std::int64_t m = 1; m <= most; m = m < 16 ? m + 1 : m * 2) all.push_back(m);
  return all;
}

Report make_report(const config::Config& config, const std::string& model, const Target& target) {
  Report r{.model = model};
  const model::Architecture architecture = model::find_shape(model);
  const auto build = [&](const plan::Choice& choice) {
    // Without the data the worst is taken: every sample is cutoff_len long; packed ones hold short documents.
    const std::int64_t tokens = choice.micro * config.cutoff_len;
    const bool packed = config.packing || config.neat_packing;
    train::EngineOptions options = train::engine_options(config, architecture, tokens, config.cutoff_len,
                                                         packed ? tokens / 16 + choice.micro : choice.micro);
    options.transformer.recompute = choice.recompute;
    return options;
  };
  const std::size_t outside = comm::staging_bytes(target.place.size) + plan::library_bytes(target.kind);
  const std::size_t limit = target.memory - std::min(target.memory, outside);
  const auto bytes_of = [&](const plan::Choice& choice) {
    return train::plan_memory(build(choice), target.place, target.kind).bytes;
  };
  const std::vector<model::Recompute> levels(std::begin(plan::kLevels), std::end(plan::kLevels));
  r.fitting = plan::largest_that_fit(micros_up_to(1024), levels, limit, bytes_of);

  train::Candidates candidates{
      .build = build,
      .micros = {config.per_device_train_batch_size},
      .levels = {train::engine_options(config, architecture, 1, 1, 1).transformer.recompute},
      .length = config.cutoff_len};
  if (config.recompute() == "auto") candidates.levels = levels;
  if (config.auto_find_batch_size) {
    candidates.micros = config::possible_micro_batches(config, target.place.size);
  }
  r.choice = {candidates.micros.front(), candidates.levels.back()};
  if (candidates.micros.size() > 1 || candidates.levels.size() > 1) {
    r.choice = train::choose(candidates, target.place, target.kind, limit);
  }
  config::Config chosen = config;
  chosen.per_device_train_batch_size = r.choice.micro;
  r.batch = config::resolve_batch(chosen, target.place.size);
  train::EngineOptions options = build(r.choice);
  options.max_micro_batches = static_cast<int>(r.batch.accumulation);
  r.memory = train::plan_memory(options, target.place, target.kind);
  r.staging = comm::staging_bytes(target.place.size);
  r.libraries = plan::library_bytes(target.kind);
  r.work = train::work_of(options, r.memory, config.cutoff_len, r.batch.accumulation);
  r.time = plan::time_of(r.work);
  r.fp8 = plan::fp8_warning(plan::fp8_balance(r.work));
  return r;
}

double tokens_of_step(const Report& r, const config::Config& config) {
  return static_cast<double>(r.batch.global) * static_cast<double>(config.cutoff_len);
}

std::string bytes_text(std::size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

void print_memory(const Report& r, const Target& target) {
  std::printf("\nmemory of a rank\n");
  for (const plan::MemoryRow& row : r.memory.rows) {
    std::printf("  %-32s %12s\n", row.name.c_str(), bytes_text(row.bytes).c_str());
  }
  if (r.staging > 0) std::printf("  %-32s %12s\n", "messages on their way", bytes_text(r.staging).c_str());
  if (r.libraries > 0) std::printf("  %-32s %12s\n", "driver and libraries", bytes_text(r.libraries).c_str());
  const bool fits = r.total() <= target.memory;
  std::printf("  %-32s %12s, %s of it for a micro-batch's tokens\n", "in all", bytes_text(r.total()).c_str(),
              bytes_text(r.memory.of_tokens()).c_str());
  std::printf("  %-32s %12s: %s %s\n", "the device has", bytes_text(target.memory).c_str(),
              fits ? "fits, free are" : "does NOT fit, missing are",
              bytes_text(fits ? target.memory - r.total() : r.total() - target.memory).c_str());
}

void print_time(const Report& r, const config::Config& config, const Target& target) {
  if (target.kind != DeviceKind::cuda) {
    std::printf(
        "\ntime: there is a model of GPUs alone (device=cuda); trainer bench measures this machine\n");
    return;
  }
  std::printf("\na floor of a step's time on an H200 (nothing waits, messages are hidden)\n");
  for (const plan::TimeRow& row : r.time.rows) {
    std::printf("  %-32s %9.1f ms %6.1f %%\n", row.name.c_str(), 1e3 * row.seconds,
                100 * row.seconds / r.time.seconds);
  }
  const double rate = tokens_of_step(r, config) / r.time.seconds;
  const double flops = model::flops_per_token(r.work.architecture, static_cast<double>(config.cutoff_len));
  std::printf("  %-32s %9.1f ms, at most %s tokens a second, %.0f %% of the yardstick\n", "in all",
              1e3 * r.time.seconds, with_commas(static_cast<std::int64_t>(rate)).c_str(),
              100 * report::flop_utilisation(flops, rate, r.batch.world));
  if (!r.fp8.empty()) std::printf("  %s\n", r.fp8.c_str());
}

void print_advice(const Report& r, const Target& target) {
  std::printf("\nlargest micro-batch that fits\n");
  if (r.fitting.empty()) {
    std::printf("  none: raise zero_stage or the number of ranks, or lower cutoff_len\n");
  }
  for (const plan::Choice& c : r.fitting) {
    std::printf("  per_device_train_batch_size=%lld recompute=%s\n", static_cast<long long>(c.micro),
                plan::name_of(c.recompute));
  }
  if (r.total() > target.memory && !r.fitting.empty()) {
    std::printf("  recompute=auto and auto_find_batch_size=true choose by themselves\n");
  }
}

void print_report(const Report& r, const config::Config& config, const Target& target) {
  const model::ParameterLayout layout = model::build_layout(r.work.architecture);
  std::printf("model        %s, %s parameters\n", r.model.c_str(),
              with_commas(layout.parameter_count()).c_str());
  std::printf("ranks        %d x %s, %d node%s, zero_stage %lld\n", target.place.size, target.name.c_str(),
              target.place.nodes, target.place.nodes == 1 ? "" : "s",
              static_cast<long long>(config.zero_stage));
  std::printf("step         %lld micro-batch%s of %lld x %lld tokens on each rank, recompute %s\n",
              static_cast<long long>(r.batch.accumulation), r.batch.accumulation == 1 ? "" : "es",
              static_cast<long long>(r.choice.micro), static_cast<long long>(config.cutoff_len),
              plan::name_of(r.choice.recompute));
  print_memory(r, target);
  print_time(r, config, target);
  print_advice(r, target);
}

void print_json(const Report& r, const config::Config& config, const Target& target) {
  Json memory = Json::object(), time = Json::object(), fitting = Json::array();
  for (const plan::MemoryRow& row : r.memory.rows) memory[row.name] = row.bytes;
  for (const plan::TimeRow& row : r.time.rows) time[row.name] = row.seconds;
  for (const plan::Choice& c : r.fitting) {
    fitting.push_back({{"micro_batch", c.micro}, {"recompute", plan::name_of(c.recompute)}});
  }
  const Json all{{"model", r.model},
                 {"world", target.place.size},
                 {"device", target.kind == DeviceKind::cuda ? "cuda" : "cpu"},
                 {"zero_stage", config.zero_stage},
                 {"micro_batch", r.choice.micro},
                 {"accumulation", r.batch.accumulation},
                 {"recompute", plan::name_of(r.choice.recompute)},
                 {"memory", memory},
                 {"messages_bytes", r.staging},
                 {"library_bytes", r.libraries},
                 {"total_bytes", r.total()},
                 {"device_bytes", target.memory},
                 {"fits", r.total() <= target.memory},
                 {"fitting", fitting},
                 {"time", time},
                 {"floor_seconds", r.time.seconds},
                 {"tokens_per_second_at_most", tokens_of_step(r, config) / r.time.seconds},
                 {"fp8_warning", r.fp8}};
  std::printf("%s\n", all.dump().c_str());
}

/// A configuration, and not a model.
bool is_configuration(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") ||
         (word.ends_with(".json") && !word.ends_with("config.json"));
}

}  // namespace

int plan_command(const Arguments& arguments) {
  Options options(
      "plan",
      "Says what a run holds on each rank, to the byte, and how long its steps take at least, without "
      "starting it. Exits with 1 when it does not fit. Keys of the configuration may follow, such as "
      "device=cuda");
  options.take_overrides();
  std::string what;
  Settings settings;
  bool json = false;
  options.app().add_option("CONFIG", what, "a configuration; or a model, as for bench");
  options.setting("world", settings.world, "ranks")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  options.setting("ranks_per_node", settings.ranks_per_node, "0: all of up to eight")
      ->check(CLI::Range(0, 1 << 20));
  options.setting(
      "memory", settings.memory,
      "of a device (of a rank's share of it on CPUs), such as 141GB; else that of this machine's device, "
      "or of an H200");
  options.app().add_flag("--json", json, "print one line of JSON");
  if (!options.parse(arguments)) return 0;
  Arguments words = options.overrides();
  const bool configured = is_configuration(what);
  if (configured) words.insert(words.begin(), what);
  config::Resolved resolved = config::load(words, {.for_training = false});
  config::Config& config = resolved.config;
  if (!configured && !resolved.is_set("bf16") && !resolved.is_set("pure_bf16")) config.bf16 = true;
  const std::string model = configured || what.empty() ? config.model_name_or_path : what;
  const Target target = target_of(config, settings);
  const Report report = make_report(config, model, target);
  (json ? print_json : print_report)(report, config, target);
  return report.total() <= target.memory ? 0 : static_cast<int>(ExitCode::failure);
}

}  // namespace octet::cli
