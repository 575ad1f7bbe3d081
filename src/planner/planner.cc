// Plans one configuration on one device.
#include "octet/planner/planner.h"

#include <algorithm>
#include <memory>

#include "octet/base/error.h"
#include "octet/comm/job.h"
#include "octet/comm/mesh.h"
#include "octet/device/cpu.h"
#include "octet/plan/cards.h"
#include "octet/plan/memory.h"
#include "octet/runtime/group_size.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/store/placement.h"

namespace octet::planner {
namespace {

comm::Place place_of(const TargetWish& s) {
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

}  // namespace

PlanTarget target_of(const config::Config& config, const TargetWish& s) {
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

std::vector<std::string> with_bf16(std::vector<std::string> words) {
  const auto decides = [](const std::string& word) {
    const std::size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string key = word.substr(begin, word.find('=') - begin);
    return key == "bf16" || key == "pure_bf16";
  };
  if (std::ranges::none_of(words, decides)) words.push_back("bf16=true");
  return words;
}

namespace {

/// Returns the micro-batches to try: divisors of the step if it is fixed, else all up to 16 and powers of
/// two.
std::vector<std::int64_t> micros_of(const config::Config& config, std::int64_t world) {
  const bool follows = config.global_batch_size && !config.gradient_accumulation_steps;
  if (follows || config.gradient_accumulation_steps == config::kAutomatic) {
    return train::buildable(config::possible_micro_batches(config, world), config.cutoff_len);
  }
  std::vector<std::int64_t> all;
  for (std::int64_t m = 1; m <= 1024; m = m < 16 ? m + 1 : m * 2) all.push_back(m);
  return train::buildable(std::move(all), config.cutoff_len);
}

}  // namespace

Planner::Planner(const config::Config& config, const model::Architecture& architecture,
                 const PlanTarget& target)
    : config_(config), architecture_(architecture), target_(target), group_(setup::group_size_of(config)) {
  if (group_ != runtime::kAutomaticGroup) return;
  const plan::Choice least{config.auto_find_batch_size ? 1 : config.per_device_train_batch_size,
                           setup::levels_of(config, target.kind).back()};
  group_ = train::fitting_group(build(least), target.place, target.kind, limit());
}

std::size_t nccl_bytes(const config::Config& config, const PlanTarget& target) {
  if (!target.traits().has_transports || target.place.size == 1) return 0;
  const auto [asked, sums] = setup::session_wish(config).carrying;
  const bool between = target.place.nodes > 1 && asked != comm::Carrier::host;
  if (asked == comm::Carrier::nccl || between) return plan::nccl_bytes(2);
  return plan::nccl_bytes(sums == comm::Sums::nccl ? 1 : 0);
}

int Planner::group_in(const comm::Place& place) const {
  store::Options store;
  store.stage = static_cast<int>(config_.zero_stage);
  return runtime::group_of(*comm::make_dry_job(place), group_, store);
}

std::size_t Planner::nccl_of(const comm::Place& place) const {
  PlanTarget target = target_;
  target.place = place;
  std::size_t bytes = nccl_bytes(config_, target);
  store::Options store;
  store.stage = static_cast<int>(config_.zero_stage);
  store.group = group_in(place);
  if (!store::has_replicas(store, place.size)) return bytes;
  // Each sharding group uses separate communicators.
  const auto job = comm::make_dry_job(place);
  const std::unique_ptr<Device> device = make_dry_device();
  const comm::Mesh mesh = store::group_mesh(store, place.size);
  for (const char* axis : {store::kShardAxis, store::kReplicaAxis}) {
    target.place = job->collectives(mesh.group(axis, place.rank), *device, comm::Carrier::automatic)->place();
    bytes += nccl_bytes(config_, target);
  }
  return bytes;
}

// The engine's memory has the staging of sharding groups.
std::size_t Planner::outside_of(const comm::Place& place) const {
  return comm::staging_bytes(place.size, target_.kind) + nccl_of(place) + plan::library_bytes(target_.kind);
}

config::Batch Planner::batch(std::int64_t micro) const {
  config::Config chosen = config_;
  chosen.per_device_train_batch_size = micro;
  return config::resolve_batch(chosen, target_.place.size);
}

runtime::InstanceOptions Planner::build(const plan::Choice& choice) const {
  runtime::InstanceOptions options = train::worst_options(config_, architecture_, choice, target_.place.size);
  options.group_size = group_;
  return options;
}

plan::Memory Planner::memory(const plan::Choice& choice) const {
  return train::plan_memory(build(choice), target_.place, target_.kind);
}

std::array<store::StepMessages, 4> Planner::messages(const plan::Choice& choice) const {
  return train::plan_messages(build(choice), target_.place, target_.kind, batch(choice.micro).accumulation);
}

plan::Work Planner::work(const plan::Choice& choice, const plan::Memory& memory) const {
  plan::Work work =
      train::work_of(build(choice), memory, config_.cutoff_len, batch(choice.micro).accumulation);
  work.tokens = choice.micro * config_.cutoff_len * (setup::trains_pairs(config_) ? 2 : 1);
  return work;
}

plan::Choice Planner::choice() const {
  const std::vector<plan::Level> levels = setup::levels_of(config_, target_.kind);
  const bool asked = config_.auto_find_batch_size || setup::leaves_recompute_open(config_);
  train::Candidates candidates = candidates_of({config_.per_device_train_batch_size}, levels);
  candidates.must_fit = asked;
  candidates.advice = [this](std::size_t bytes) { return train::ladder_advice(ladder(bytes, false), bytes); };
  if (config_.auto_find_batch_size) {
    candidates.micros =
        train::buildable(config::possible_micro_batches(config_, target_.place.size), config_.cutoff_len);
  }
  if (!asked && levels.size() == 1) return {candidates.micros.front(), levels.front()};
  return train::choose(candidates, target_.place, target_.kind, limit());
}

std::vector<train::Rung> Planner::ladder(std::size_t limit, bool whole) const {
  train::LadderOptions options{.place = target_.place, .kind = target_.kind, .limit = limit};
  if (whole) options.outside = [this](const comm::Place& place) { return outside_of(place); };
  return train::ladder(config_, architecture_, options);
}

bool Planner::fits() const {
  std::vector<std::int64_t> micros{config_.per_device_train_batch_size};
  if (config_.auto_find_batch_size)
    micros =
        train::buildable(config::possible_micro_batches(config_, target_.place.size), config_.cutoff_len);
  return train::fastest_that_fits(candidates_of(std::move(micros), setup::levels_of(config_, target_.kind)),
                                  target_.place, target_.kind, limit())
      .has_value();
}

std::vector<plan::Choice> Planner::fitting() const {
  return plan::largest_that_fit(micros_of(config_, target_.place.size), all_levels(), limit(),
                                [&](const plan::Choice& choice) { return memory(choice).bytes; });
}

std::optional<plan::Choice> Planner::best() const {
  return plan::fastest(fitting(), [&](const plan::Choice& choice) {
    const plan::Work work = train::work_of(build(choice), {}, config_.cutoff_len, 1);
    return plan::time_of(work, target_.rates).seconds / static_cast<double>(choice.micro);
  });
}

std::vector<plan::Level> Planner::all_levels() const {
  config::Config open = config_;
  open.recompute_requested = "auto";
  return setup::levels_of(open, target_.kind);
}

train::Candidates Planner::candidates_of(std::vector<std::int64_t> micros,
                                         std::vector<plan::Level> levels) const {
  return {.build = [this](const plan::Choice& choice) { return build(choice); },
          .micros = std::move(micros),
          .levels = std::move(levels),
          .length = config_.cutoff_len};
}

}  // namespace octet::planner
