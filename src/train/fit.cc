#include "octet/train/fit.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/runtime/group_size.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"

namespace octet::train {

plan::Memory plan_memory(const runtime::InstanceOptions& options, const comm::Place& place, DeviceKind kind) {
  const std::unique_ptr<Device> device = make_dry_device({.stands_for = kind});
  const auto job = comm::make_dry_job(place);
  const auto data =
      job->collectives(comm::Mesh(place.size).group("data", place.rank), *device, comm::Carrier::automatic);
  Engine engine(*device, *job, *data, options);
  plan::Memory memory = plan::memory_of(engine.arena());
  memory.update = engine.store().update_bytes();
  return memory;
}

std::vector<weights::TensorHeader> checkpoint_tensors(const runtime::InstanceOptions& options,
                                                      const comm::Place& place, DeviceKind kind) {
  const std::unique_ptr<Device> device = make_dry_device({.stands_for = kind});
  const auto job = comm::make_dry_job(place);
  const auto data =
      job->collectives(comm::Mesh(place.size).group("data", place.rank), *device, comm::Carrier::automatic);
  return Engine(*device, *job, *data, options).checkpoint_tensors();
}

std::vector<std::string> plan_fallbacks(const runtime::InstanceOptions& options, const comm::Place& place,
                                        DeviceKind kind) {
  const std::unique_ptr<Device> device = make_dry_device({.stands_for = kind});
  const auto job = comm::make_dry_job(place);
  const auto data =
      job->collectives(comm::Mesh(place.size).group("data", place.rank), *device, comm::Carrier::automatic);
  return Engine(*device, *job, *data, options).audit().take_fallbacks();
}

std::array<store::StepMessages, 4> plan_messages(const runtime::InstanceOptions& options,
                                                 const comm::Place& place, DeviceKind kind,
                                                 std::int64_t micro_batches) {
  const std::unique_ptr<Device> device = make_dry_device({.stands_for = kind});
  const auto job = comm::make_dry_job(place);
  const auto data =
      job->collectives(comm::Mesh(place.size).group("data", place.rank), *device, comm::Carrier::automatic);
  Engine engine(*device, *job, *data, options);
  store::Options store = engine.options().store;  // with resolved automatic choices
  const int group = store.group;
  std::array<store::StepMessages, 4> messages{};
  for (store.stage = 0; store.stage < 4; ++store.stage) {
    store.group = store.stage == 0 ? 0 : group;  // stage 0 shards nothing
    messages[static_cast<std::size_t>(store.stage)] =
        store::step_messages(engine.store().layout(), store, place, static_cast<int>(micro_batches),
                             engine.instance().same_experts());
    engine.instance().add_exchanged(messages[static_cast<std::size_t>(store.stage)], micro_batches);
  }
  return messages;
}

plan::Work work_of(const runtime::InstanceOptions& options, const plan::Memory& memory, std::int64_t length,
                   std::int64_t micro_batches) {
  return {.architecture = options.architecture,
          .recipe = options.store.recipe,
          .recompute = options.transformer.recompute,
          .transposes_at_use = options.store.transposed == store::TransposedWeights::at_use,
          .tokens = options.transformer.max_tokens,
          .length = length,
          .micro_batches = micro_batches,
          .optimizer_bytes = static_cast<double>(memory.update),
          .host_state_bytes = static_cast<double>(memory.state_of_host()),
          .host_master_bytes = static_cast<double>(memory.masters_of_host())};
}

std::vector<std::int64_t> buildable(std::vector<std::int64_t> micros, std::int64_t each) {
  const std::int64_t most = model::kMostTokens / std::max<std::int64_t>(1, each);
  while (micros.size() > 1 && micros.back() > most) micros.pop_back();
  return micros;
}

runtime::InstanceOptions with_level(runtime::InstanceOptions options, const plan::Level& level) {
  options.transformer.recompute = level.recompute;
  options.store.transposed =
      level.transposes_at_use ? store::TransposedWeights::at_use : store::TransposedWeights::kept;
  return options;
}

std::optional<plan::Choice> fastest_that_fits(const Candidates& candidates, const comm::Place& place,
                                              DeviceKind kind, std::size_t limit) {
  const auto fitting = plan::largest_that_fit(
      candidates.micros, candidates.levels, limit,
      [&](const plan::Choice& choice) { return plan_memory(candidates.build(choice), place, kind).bytes; });
  return plan::fastest(fitting, [&](const plan::Choice& choice) {
    // The optimizer runs once per step for any micro-batch.
    const plan::Work work = work_of(candidates.build(choice), {}, candidates.length, 1);
    return plan::time_of(work).seconds / static_cast<double>(choice.micro);
  });
}

namespace {

constexpr const char* kGeneralAdvice =
    "lower cutoff_len, store parameters or moments in fewer bytes (param_dtype, optim_dtype), or raise "
    "zero_stage or the number of ranks; trainer plan shows what takes the memory";

}  // namespace

plan::Choice choose(const Candidates& candidates, const comm::Place& place, DeviceKind kind,
                    std::size_t limit) {
  if (const auto best = fastest_that_fits(candidates, place, kind, limit)) return *best;
  const plan::Choice least{candidates.micros.front(), candidates.levels.back()};
  if (!candidates.must_fit) return least;
  throw Error(
      {.what = "the run does not fit the memory of its device",
       .expected = "at most " + human_bytes(static_cast<double>(limit)) + " per rank",
       .found = human_bytes(static_cast<double>(plan_memory(candidates.build(least), place, kind).bytes)) +
                " with per_device_train_batch_size=" + std::to_string(least.micro) + " " +
                plan::keys_of(least.level),
       .fix = candidates.advice ? candidates.advice(limit) : kGeneralAdvice,
       .code = ExitCode::usage});
}

std::int64_t fitting_group(runtime::InstanceOptions least, const comm::Place& place, DeviceKind kind,
                           std::size_t limit) {
  if (least.group_size != runtime::kAutomaticGroup) return least.group_size;
  store::Options store = least.store;
  store.micro_batches = std::max(1, least.max_micro_batches);
  const std::vector<std::int64_t> sizes = runtime::automatic_groups(place, store);
  const auto fits = [&](std::int64_t size) {
    least.group_size = size;
    return plan_memory(least, place, kind).bytes <= limit;
  };
  const auto found = std::ranges::find_if(sizes, fits);
  return found == sizes.end() ? sizes.back() : *found;
}

runtime::InstanceOptions with_fitting_level(runtime::InstanceOptions options,
                                            const config::ComputeKeys& config, comm::Channel& channel,
                                            Device& device) {
  const std::vector<plan::Level> levels = setup::levels_of(config, device.stands_for());
  if (options.group_size == runtime::kAutomaticGroup) {
    const std::size_t limit = memory_limit(channel, device);
    std::int64_t size = 0;
    channel.together([&] {
      size = fitting_group(with_level(options, levels.back()), channel.place(), device.stands_for(), limit);
    });
    options.group_size = channel.all_max(size);
  }
  if (levels.size() == 1) return options;
  const std::size_t limit = memory_limit(channel, device);
  const Candidates candidates{
      .build = [&](const plan::Choice& choice) { return with_level(options, choice.level); },
      .micros = {1},
      .levels = levels,
      .length = options.transformer.max_length,
      .must_fit = setup::leaves_recompute_open(config)};
  plan::Level level;
  channel.together([&] { level = choose(candidates, channel.place(), device.stands_for(), limit).level; });
  return with_level(std::move(options), level);
}

bool has_room_for_copy(runtime::InstanceOptions options, const comm::Place& place, DeviceKind kind,
                       std::size_t limit, std::size_t host_free) {
  options.snapshot = true;
  const plan::Memory memory = plan_memory(options, place, kind);
  if (!traits_of(kind).has_host_link) return memory.bytes <= limit / 4 * 3;
  // A start from a checkpoint stages it in host memory on its way to the GPU.
  std::size_t passing = 0;
  for (const plan::MemoryRow& row : memory.host) passing = std::max(passing, row.bytes);
  return memory.pinned_bytes() + passing <=
         host_free / 4 * 3 / static_cast<std::size_t>(std::max(1, place.local_size));
}

std::size_t ranks_sharing_memory(const Device& device, const comm::Place& place) {
  return static_cast<std::size_t>(device.host_reaches_memory() ? std::max(1, place.local_size) : 1);
}

void require_room(const runtime::InstanceOptions& options, const comm::Place& place, const Device& device,
                  const std::function<std::string(std::size_t)>& advice) {
  const MemoryInfo memory = device.memory();
  const std::size_t sharing = ranks_sharing_memory(device, place);
  const std::size_t need = plan_memory(options, place, device.stands_for()).bytes;
  const std::size_t free = memory.free / sharing;
  if (need <= free) return;
  throw Error(
      {.what = "the run does not fit the memory of its device",
       .expected = "at most " + human_bytes(static_cast<double>(free)) + " per rank",
       .found = human_bytes(static_cast<double>(need)),
       .where = device.description(),
       .fix = advice ? advice(free) : std::string("lower per_device_train_batch_size, ") + kGeneralAdvice,
       // Other programs may free memory, but a device does not grow.
       .code = need > memory.total / sharing ? ExitCode::usage : ExitCode::failure});
}

void require_host_room(const plan::Memory& memory, const comm::Place& place, std::size_t host_free) {
  const std::size_t state = memory.state_of_host();
  const auto ranks = static_cast<std::size_t>(std::max(1, place.local_size));
  if (state == 0 || memory.pinned_bytes() <= host_free / ranks) return;
  const auto text = [](std::size_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  throw Error({.what = "the optimizer's state does not fit the memory of its host",
               .expected = text(ranks * memory.pinned_bytes()) + " of free memory for " +
                           (ranks == 1 ? "one rank, with "
                                       : std::to_string(ranks) + " ranks of one host, each with ") +
                           text(state) + " of state there",
               .found = text(host_free),
               .where = "optim_state_cpu_offload",
               .fix = "set optim_state_cpu_offload: false, store smaller moments (optim_dtype: int8), split "
                      "the state among ranks (zero_stage: 1), or use fewer ranks on a host",
               .code = ExitCode::failure});
}

namespace {

// Limit for tests in bytes; 0: none.
std::size_t limit_for_tests() {
  const char* text = environment_variable("OCTETRUN_MEMORY_LIMIT");
  if (text == nullptr) return 0;
  std::size_t mebibytes = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, mebibytes);
  if (error == std::errc() && stop == end && mebibytes > 0 && mebibytes < (std::size_t{1} << 40))
    return mebibytes << 20;
  throw Error({.what = "OCTETRUN_MEMORY_LIMIT is not an amount of memory",
               .expected = "MiB, at least 1",
               .found = text,
               .where = "environment",
               .fix = "set it to a number of MiB, or leave it out",
               .code = ExitCode::usage});
}

}  // namespace

std::size_t memory_limit(comm::Channel& channel, Device& device) {
  std::size_t given = 0;
  channel.together([&] { given = limit_for_tests(); });
  if (given > 0) return static_cast<std::size_t>(channel.all_min(static_cast<std::int64_t>(given)));
  std::size_t free = device.memory().free;
  const std::size_t libraries = plan::library_bytes(device.kind());
  free -= std::min(free, libraries);
  if (device.host_reaches_memory()) {
    // Leave some host memory to other programs.
    free = free / 20 * 19 / ranks_sharing_memory(device, channel.place());
  }
  return static_cast<std::size_t>(channel.all_min(static_cast<std::int64_t>(free)));
}

}  // namespace octet::train
