// Memory and time of a run before it starts.
#include <algorithm>
#include <cstdio>

#include "generate_plan.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/device/cpu.h"
#include "octet/model/build.h"
#include "octet/report/throughput.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "options.h"
#include "plan_disk.h"
#include "plan_report.h"
#include "shape_words.h"

namespace octet::cli {
namespace {

struct Settings {
  std::int64_t world = 1;
  std::int64_t ranks_per_node = 0;  ///< 0: up to eight
  std::string memory;
  int replica = 1;  ///< ranks of one model whose layers are split, which share a node
};

constexpr double kH200 = 139.8 * 0x1p30;

PlanTarget target_of(const config::Config& config, const Settings& s) {
  PlanTarget t;
  t.place.size = static_cast<int>(s.world);
  const std::int64_t each = s.ranks_per_node > 0 ? s.ranks_per_node : std::min<std::int64_t>(8, s.world);
  t.place.node_of.clear();
  for (std::int64_t r = 0; r < s.world; ++r) t.place.node_of.push_back(static_cast<int>(r / each));
  t.place.nodes = t.place.node_of.back() + 1;
  t.place.local_size = static_cast<int>(std::min(each, s.world));
  const DeviceWish wish = setup::session_wish(config).device;
  const bool gpu = wish == DeviceWish::cuda || (wish == DeviceWish::automatic && cuda_available(0));
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
    // What ops take of scratch depends on a rank's threads.
    const int mates = std::max(t.place.local_size, s.replica);
    cpu::set_op_threads(cpu::claim_cores(0, mates));
    t.memory =
        make_cpu_device({.threads = cpu::op_threads()})->memory().total / static_cast<std::size_t>(mates);
  }
  if (!s.memory.empty()) {
    t.memory = plan::parse_bytes(s.memory, "memory");
    if (gpu) t.name = "GPU";
  }
  return t;
}

double tokens_of_step(const PlanReport& r, const config::Config& config) {
  return static_cast<double>(r.batch.global) * static_cast<double>(config.cutoff_len);
}

std::string bytes_text(std::size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

void print_memory(const PlanReport& r, const PlanTarget& target) {
  std::printf("\nmemory of a rank\n");
  constexpr std::size_t kSmall = std::size_t{1} << 20;
  std::size_t small = 0, names = 0;
  for (const plan::MemoryRow& row : r.memory.rows) {
    if (r.memory.bytes > 64 * kSmall && row.bytes < kSmall) {
      small += row.bytes, ++names;
      continue;
    }
    std::printf("  %-32s %12s\n", row.name.c_str(), bytes_text(row.bytes).c_str());
  }
  if (names > 0) {
    std::printf("  %-32s %12s\n", (std::to_string(names) + " smaller ones").c_str(),
                bytes_text(small).c_str());
  }
  if (r.staging > 0) std::printf("  %-32s %12s\n", "messages on their way", bytes_text(r.staging).c_str());
  if (r.nccl > 0) std::printf("  %-32s %12s\n", "NCCL", bytes_text(r.nccl).c_str());
  if (r.libraries > 0) std::printf("  %-32s %12s\n", "driver and libraries", bytes_text(r.libraries).c_str());
  const bool fits = r.total() <= target.memory;
  std::printf("  %-32s %12s, %s of it for a micro-batch's tokens\n", "in all", bytes_text(r.total()).c_str(),
              bytes_text(r.memory.of_tokens()).c_str());
  std::printf("  %-32s %12s: %s %s\n", "the device has", bytes_text(target.memory).c_str(),
              fits ? "fits, free are" : "does NOT fit, missing are",
              bytes_text(fits ? target.memory - r.total() : r.total() - target.memory).c_str());
}

/// Memory of the host for a GPU; where the host computes all memory is of one kind.
void print_host_memory(const PlanReport& r, const PlanTarget& target) {
  if (target.kind != DeviceKind::cuda) return;
  std::printf("\nmemory of the host for it\n");
  const std::size_t state = r.memory.state_of_host(), pinned = r.memory.pinned_bytes();
  if (state > 0) {
    std::printf("  %-32s %12s, pinned, all the time\n", "the optimizer's state", bytes_text(state).c_str());
    std::printf("  %-32s %12s\n", "what else is pinned", bytes_text(pinned - state).c_str());
  } else {
    std::printf("  %-32s %12s\n", "pinned, all the time", bytes_text(pinned).c_str());
  }
  if (state > 0 && target.place.local_size > 1) {
    const auto ranks = static_cast<std::size_t>(target.place.local_size);
    std::printf("  %-32s %12s\n", ("of all " + std::to_string(ranks) + " ranks of a host").c_str(),
                bytes_text(ranks * pinned).c_str());
  }
  for (const plan::MemoryRow& row : r.memory.host) {
    std::printf("  %-32s %12s, between steps\n", row.name.c_str(), bytes_text(row.bytes).c_str());
  }
}

void print_stages(const char* name, const std::array<double, 4>& values, double unit) {
  std::printf("  %-32s", name);
  for (const double value : values) std::printf(" %12.*f", value >= 100 * unit ? 0 : 2, value / unit);
  std::printf("\n");
}

void print_messages(const PlanReport& r, const PlanTarget& target) {
  if (target.place.size == 1) return;
  std::printf("\nmessages of a rank in a step: gradients, and parameters or sums\n");
  std::printf("  %-32s %12s %12s %12s %12s\n", "zero_stage", "0", "1", "2", "3");
  std::array<double, 4> inside{}, between{};
  for (std::size_t s = 0; s < inside.size(); ++s) {
    between[s] = static_cast<double>(r.messages[s].between_nodes());
    inside[s] = static_cast<double>(r.messages[s].bytes()) - between[s];
  }
  constexpr double mebibyte = 0x1p20, millisecond = 1e-3;
  const bool mates = target.place.local_size > 1, hosts = target.place.nodes > 1;
  if (mates) print_stages("MiB to ranks of its host", inside, mebibyte);
  if (hosts) print_stages("MiB to ranks of other hosts", between, mebibyte);
  for (const plan::Link& link : plan::links()) {
    if (!(link.between_hosts ? hosts : mates && target.kind == DeviceKind::cuda)) continue;
    print_stages(("ms over " + std::string(link.name) + (link.between_hosts ? " a host" : "")).c_str(),
                 r.seconds_over(link), millisecond);
  }
  if (r.message_seconds() > 0) {
    std::printf("  over NVLink %.1f %% of the floor of a step, beside it\n",
                100 * r.message_seconds() / r.time.seconds);
  }
  if (r.message_seconds() > r.time.seconds) {
    std::printf(
        "  messages take longer than what is computed: larger micro-batches hide more of them, or with\n"
        "  zero_stage 0 or 1 more micro-batches a step\n");
  }
}

void print_time(const PlanReport& r, const config::Config& config, const PlanTarget& target) {
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
  const double rate = tokens_of_step(r, config) / r.floor_seconds();
  const double flops = model::flops_per_token(r.work.architecture, static_cast<double>(config.cutoff_len));
  std::printf("  %-32s %9.1f ms, at most %s tokens a second, %.0f %% of 989.4 TFLOP/s a device\n", "in all",
              1e3 * r.time.seconds, with_commas(static_cast<std::int64_t>(rate)).c_str(),
              100 * report::flop_utilisation(flops, rate, r.batch.world));
  if (r.work.host_state_bytes > 0) {
    std::printf(
        "  an update reads %s of the host's memory and writes %s there, and takes as long as these\n"
        "  need for the link: %.0f GB/s each way are a figure of PCIe 5.0\n",
        human_bytes(plan::bytes_from_host(r.work)).c_str(), human_bytes(r.work.host_state_bytes).c_str(),
        1e-9 * plan::Rates{}.host);
  }
  if (!r.fp8.empty()) std::printf("  %s\n", r.fp8.c_str());
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
    std::printf("  recompute=auto and auto_find_batch_size=true choose by themselves\n");
  }
  std::printf("\nwhat to change, in turn and each with those before it\n");
  for (const std::string& line : train::ladder_lines(r.ladder, target.memory))
    std::printf("  %s\n", line.c_str());
  std::printf("\nwith states stored in less, or fewer of them\n");
  for (const Alternative& a : r.alternatives) {
    std::printf("  fits with %s %s: %s\n", a.keys.c_str(), keys_of(a.choice).c_str(),
                bytes_text(a.bytes).c_str());
  }
  if (r.alternatives.empty()) {
    std::printf("  it does not fit either: raise zero_stage and the number of ranks, or lower cutoff_len\n");
  }
}

/// Of all parameters, where not all are trained.
std::string trained_share(const model::ParameterLayout& layout) {
  const std::int64_t trained = model::trained_parameters(layout), all = layout.parameter_count();
  if (trained == all) return "";
  char share[64];
  std::snprintf(share, sizeof share, " (%.3g %%)",
                100 * static_cast<double>(trained) / static_cast<double>(all));
  return ", of which " + with_commas(trained) + share + " are trained";
}

void print_report(const PlanReport& r, const PlanTarget& target) {
  const config::Config& config = r.config;
  const model::ParameterLayout layout = model::build_layout(r.work.architecture);
  std::printf("model        %s, %s parameters%s\n", r.model.c_str(),
              with_commas(layout.parameter_count()).c_str(), trained_share(layout).c_str());
  std::printf("ranks        %d x %s on %d host%s of up to %d, zero_stage %lld\n", target.place.size,
              target.name.c_str(), target.place.nodes, target.place.nodes == 1 ? "" : "s",
              target.place.local_size, static_cast<long long>(config.zero_stage));
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
  print_time(r, config, target);
  print_messages(r, target);
  print_disk(r, target);
  print_advice(r, target);
}

const char* transposed_name(const plan::Choice& choice) {
  return choice.level.transposes_at_use ? "at_use" : "keep";
}

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
                {"fp8_transposed_weights", transposed_name(c)}};
  };
  for (const plan::Choice& c : r.fitting) fitting.push_back(row_of(c));
  for (const Alternative& a : r.alternatives) {
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
  const Json all{{"model", r.model},
                 {"parameters", layout.parameter_count()},
                 {"trained_parameters", model::trained_parameters(layout)},
                 {"world", target.place.size},
                 {"device", target.kind == DeviceKind::cuda ? "cuda" : "cpu"},
                 {"zero_stage", config.zero_stage},
                 {"param_dtype", config.param_dtype},
                 {"grad_dtype", config.grad_dtype},
                 {"optim_dtype", config.optim_dtype},
                 {"micro_batch", r.choice.micro},
                 {"accumulation", r.batch.accumulation},
                 {"recompute", plan::name_of(r.choice.level.recompute)},
                 {"fp8_transposed_weights", transposed_name(r.choice)},
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
                 {"tokens_per_second_at_most", tokens_of_step(r, config) / r.floor_seconds()},
                 {"disk", disk_json(r, target)},
                 {"fp8_warning", r.fp8}};
  std::printf("%s\n", all.dump().c_str());
}

/// A configuration, and not a model.
bool is_configuration(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") ||
         (word.ends_with(".json") && !word.ends_with("config.json"));
}

/// Options of `--generate`, which this returns but for the flag itself.
std::vector<CLI::Option*> add_generation(Options& options, bool& generates, GeneratePlan& plan) {
  options.app().add_flag(
      "--generate", generates,
      "plan `trainer generate` of the model instead: what it holds, which batches fit, and "
      "the floor of a step");
  return {
      options.setting("batch", plan.batch, "--generate: questions side by side")
          ->check(Range(1, 4096))
          ->capture_default_str(),
      options.setting("max_length", plan.max_length, "--generate: tokens of question and answer")
          ->check(Range(2, 1 << 20))
          ->capture_default_str(),
      options
          .setting("max_num_batched_tokens", plan.max_num_batched_tokens,
                   "--generate: tokens of a forward pass at most; unless given 4096 on a GPU and 512 on a "
                   "CPU, or twice the batch where that is more")
          ->check(Range(1, 1 << 20)),
      options.setting("dtype", plan.dtype, "--generate: fp32, bf16 or fp8")
          ->check(CLI::IsMember({"fp32", "bf16", "fp8"}))
          ->capture_default_str(),
      options.setting("kv_cache_dtype", plan.kv_cache_dtype, "--generate: auto or fp8")
          ->check(CLI::IsMember({"auto", "fp8"}))
          ->capture_default_str(),
      options.setting("kv_cache_bytes", plan.kv_cache_bytes,
                      "--generate: memory for keys and values, such as 8GiB; else as much as the batch "
                      "fills"),
      options.setting("gpu_memory_utilization", plan.gpu_memory_utilization,
                      "--generate: share of a GPU's memory that the cache fills up, such as 0.9"),
      options.setting("kv_page_tokens", plan.kv_page_tokens, "--generate: tokens of a page of the cache")
          ->check(Range(1, 4096))
          ->capture_default_str(),
      options
          .setting("tensor_parallel_size", plan.tensor_parallel_size,
                   "--generate: ranks that have a piece of every layer each")
          ->check(Range(1, 4096))
          ->capture_default_str(),
      options
          .setting("pipeline_parallel_size", plan.pipeline_parallel_size,
                   "--generate: stages of layers on ranks of their own")
          ->check(Range(1, 4096))
          ->capture_default_str()};
}

}  // namespace

int plan_command(const Arguments& arguments) {
  Options options(
      "plan",
      "Says what a run holds at most on each rank (with samples of cutoff_len tokens, to the byte) and how "
      "long its steps take at least, without starting it. Exits with 1 when it does not fit. Keys of the "
      "configuration may follow, such as device=cuda");
  options.example("trainer plan config.yaml");
  options.example("trainer plan config.yaml device=cuda world=8 zero_stage=3");
  options.example("trainer plan llama-3.1-8b --generate dtype=fp8 batch=64 device=cuda");
  options.take_overrides();
  std::string what;
  Settings settings;
  bool json = false;
  options.app().add_option("CONFIG", what, "a configuration; or a model, as for bench");
  options.setting("world", settings.world, "ranks")->check(Range(1, 1 << 20))->capture_default_str();
  options.setting("ranks_per_node", settings.ranks_per_node, "0: all of up to eight")
      ->check(Range(0, 1 << 20));
  options.setting(
      "memory", settings.memory,
      "of a device (of a rank's share of it on CPUs), such as 141GB; else that of this machine's device, "
      "or of an H200");
  options.app().add_flag("--json", json, "print one line of JSON");
  bool generates = false;
  GeneratePlan generation;
  const std::vector<CLI::Option*> of_generation = add_generation(options, generates, generation);
  if (!options.parse(arguments)) return 0;
  for (const CLI::Option* option : of_generation) {
    if (option->count() == 0 || generates) continue;
    throw Error({.what = option->get_name().substr(2) + " is of a generation",
                 .where = "command line",
                 .fix = "give --generate",
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
  const std::string model = configured || what.empty() ? config.model_name_or_path : what;
  if (model.empty()) {
    throw Error({.what = "there is nothing to plan",
                 .expected = "a configuration, a model's folder, or a shape such as llama-3.1-8b",
                 .where = "command line",
                 .fix = "trainer plan config.yaml, or trainer plan llama-3.1-8b device=cuda",
                 .code = ExitCode::usage});
  }
  if (generates) settings.replica = generation.tensor_parallel_size * generation.pipeline_parallel_size;
  const PlanTarget target = target_of(config, settings);
  if (generates) {
    generation.model = model;
    generation.json = json;
    return plan_generation(resolved, generation, target);
  }
  // How many steps an epoch has only the data tell.
  if (setup::leaves_saves_open(config) && config.max_steps > 0 &&
      !setup::saves_before_the_end(resolved, config.max_steps, 0))
    config.save_async = "false";
  const PlanReport report = make_plan(config, model, target);
  (json ? print_json : print_report)(report, target);
  return report.total() <= target.memory ? 0 : static_cast<int>(ExitCode::failure);
}

}  // namespace octet::cli
