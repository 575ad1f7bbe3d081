#include "faults/silent_faults.h"

#include <set>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/random.h"
#include "octet/device/cpu.h"

namespace octet::train {
namespace {

template <typename T>
void put(std::string& bytes, const std::vector<T>& values) {
  const std::uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}
template <typename T>
void take(std::string_view& bytes, std::vector<T>& values) {
  std::uint64_t count = 0;
  bytes.copy(reinterpret_cast<char*>(&count), sizeof count);
  values.resize(count);
  bytes.remove_prefix(sizeof count);
  bytes.copy(reinterpret_cast<char*>(values.data()), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
}

std::string bytes_of(const runtime::HostBatch& batch) {
  std::string bytes;
  put(bytes, batch.ids), put(bytes, batch.positions), put(bytes, batch.cu_seqlens);
  put(bytes, batch.label_rows), put(bytes, batch.targets), put(bytes, batch.names);
  put(bytes, batch.references), put(bytes, std::vector{batch.max_length, batch.pairs});
  return bytes;
}
runtime::HostBatch batch_of(std::string_view bytes) {
  runtime::HostBatch batch;
  std::vector<std::int64_t> numbers;
  take(bytes, batch.ids), take(bytes, batch.positions), take(bytes, batch.cu_seqlens);
  take(bytes, batch.label_rows), take(bytes, batch.targets), take(bytes, batch.names);
  take(bytes, batch.references), take(bytes, numbers);
  batch.max_length = numbers.at(0), batch.pairs = numbers.at(1);
  return batch;
}

bool turn(std::int64_t step, std::int64_t every) {
  return every > 0 && step % every == 0;
}

}  // namespace

SilentFaults::SilentFaults(Engine& engine, comm::Job& job, comm::Collectives& data,
                           const SilentFaultOptions& options, bool strict)
    : engine_(engine),
      job_(job),
      data_(data),
      options_(options),
      hashes_(engine.store(), engine.arena()),
      flips_(job.rank()) {
  if (options_.replay_steps > 0) require_alike(strict);
}

// Libraries choose kernels by processor and, unless bits are strict, by the number of threads.
void SilentFaults::require_alike(bool strict) const {
  const Device& device = engine_.arena().device();
  std::string mine = device.description();
  if (strict || !device.traits().uses_host_cores) mine = mine.substr(0, mine.rfind(','));
  if (device.traits().counts_as_gpu) mine = mine.substr(mine.find(':') + 1);
  const std::vector<std::string> all = job_.all_gather_bytes(mine);
  const std::set<std::string> kinds(all.begin(), all.end());
  job_.together([&] {
    if (!device.traits().reproducible && !strict) {
      throw Error({.what = "gradients of GPUs can be compared only if all ranks have the same bits",
                   .expected = "deterministic: strict",
                   .where = "configuration key 'sdc_replay_steps'",
                   .fix = "set deterministic: strict, or sdc_replay_steps: 0",
                   .code = ExitCode::usage});
    }
    if (kinds.size() == 1) return;
    throw Error(
        {.what = "ranks on different processors give different bits, so their results cannot be compared",
         .expected = "ranks on processors of one kind, with equal numbers of threads",
         .found = *kinds.begin() + " and " + *kinds.rbegin(),
         .where = "configuration key 'sdc_replay_steps'",
         .fix = "set sdc_replay_steps: 0; with deterministic: strict the numbers of threads may differ",
         .code = ExitCode::usage});
  });
}

void SilentFaults::seal(bool on) {
  if (comm::Seals* seals = comm::seals_of(data_)) seals->seal(on);
}

// Hash of the delayed scales, which depend only on results of all ranks.
ops::Hash SilentFaults::scales() {
  precision::ScaleSet* scales = engine_.core().activation_scales();
  if (scales == nullptr || engine_.core().recipe().kind != precision::RecipeKind::delayed) return {};
  return hashes_.of(scales->state(), engine_.compute());
}

void SilentFaults::updated(std::int64_t step, bool next) {
  behind_update_.reset();
  if (!checks()) return;
  const bool checked = next || turn(step + 1, options_.steps);
  if (checked) {
    behind_update_ = hashes_.state(engine_.compute());
    scales_behind_update_ = scales();
  }
  seal(checked);
}

void SilentFaults::loaded(std::int64_t step, bool next) {
  if (comm::Seals* seals = comm::seals_of(data_)) seals->take_broken();
  replayed_ = -1;
  updated(step, next);
}

int SilentFaults::replayed_in(std::int64_t step) const {
  if (!checks() || !turn(step, options_.replay_steps)) return -1;
  const auto micro_batches = static_cast<std::uint32_t>(engine_.options().max_micro_batches);
  // Delayed scales change between micro-batches.
  const bool first_only = !hashes_.apart() || engine_.core().recipe().kind == precision::RecipeKind::delayed;
  if (first_only) return 0;
  return static_cast<int>(
      below(micro_batches, 0, philox(options_.seed, RandomUse::data, static_cast<std::uint64_t>(step))[0]));
}

// Equal on all ranks. A rank does not replay its own micro-batch, unless it is the only rank.
int SilentFaults::shift(int times) const {
  const int others = job_.size() - 1;
  if (others == 0) return 0;
  const auto drawn = philox(options_.seed, RandomUse::data, static_cast<std::uint64_t>(step_))[1];
  return 1 +
         static_cast<int>((drawn + static_cast<std::uint32_t>(times)) % static_cast<std::uint32_t>(others));
}

ops::Hash SilentFaults::compute_again(const runtime::HostBatch& batch) {
  Stream& compute = engine_.compute();
  engine_.store().synchronize(compute);
  const std::unique_ptr<model::ParameterSource> source = hashes_.replay();
  if (batch.tokens() == 0) {
    hashes_.pass_by(*source, compute);
  } else {
    engine_.compute_again(*source, batch);
  }
  return hashes_.watched(compute);
}

ops::Hash SilentFaults::replay(int shift) {
  const auto whose = static_cast<std::size_t>((job_.rank() + shift) % job_.size());
  return compute_again(batch_of(batches_[whose]));
}

void SilentFaults::begin(std::int64_t step, const std::vector<runtime::HostBatch>& own) {
  step_ = step;
  replayed_ = replayed_in(step);
  comm::Seals* seals = comm::seals_of(data_);
  Stream& compute = engine_.compute();
  flips_.strike(step, false, hashes_, seals, compute);
  again_ = {};
  hashes_.watch(-1);
  if (replayed_ >= 0) {
    batches_ = job_.all_gather_bytes(bytes_of(own.at(static_cast<std::size_t>(replayed_))));
    again_ = replay(shift(0));
    ++replays_;
    hashes_.watch(replayed_);
  }
  flips_.strike(step, true, hashes_, seals, compute);
}

// Compares with the state after its update, if known.
void SilentFaults::compare(const store::StateHashes& now, FaultReport& own) const {
  const store::StateHashes& before = behind_update_ ? *behind_update_ : now;
  own.replicas = before.replicas;
  for (std::size_t kind = 0; kind < store::kHeldKinds; ++kind) {
    own.changed[kind] = now.replicas[kind] != before.replicas[kind] || now.own[kind] != before.own[kind];
  }
}

std::vector<FaultReport> SilentFaults::exchange(const FaultReport& own) {
  std::vector<FaultReport> reports;
  for (const std::string& bytes : job_.all_gather_bytes(own.bytes()))
    reports.push_back(FaultReport::of(bytes));
  return reports;
}

// Replays can be repeated before the update, because parameters have not changed. Delayed scales have
// changed.
std::vector<Fault> SilentFaults::judge_replays(const std::vector<FaultReport>& reports) {
  const int first = shift(0), second = shift(1);
  if (differing(reports, first).empty()) return {};
  const bool third = job_.size() > 2 && engine_.core().recipe().kind != precision::RecipeKind::delayed;
  std::vector<ops::Hash> thirds;
  if (third) {
    hashes_.watch(-1);
    FaultReport again;
    again.replayed = replay(second);
    for (const FaultReport& report : exchange(again)) thirds.push_back(report.replayed);
  }
  return faults_of_replays(reports, first, thirds, second);
}

std::vector<Fault> SilentFaults::before_update() {
  if (!behind_update_ && replayed_ < 0) return {};
  Stream& compute = engine_.compute();
  engine_.store().synchronize(compute);
  FaultReport own{.scales = scales_behind_update_, .sums = hashes_.sums(compute), .replayed = again_};
  if (replayed_ >= 0) own.own = hashes_.watched(compute);
  if (behind_update_) compare(hashes_.state(compute), own);
  if (comm::Seals* seals = comm::seals_of(data_)) own.broken = seals->take_broken();
  const std::vector<FaultReport> reports = exchange(own);
  std::vector<Fault> faults = faults_in(reports);
  if (faults.empty() && replayed_ >= 0) faults = judge_replays(reports);
  replayed_ = -1;
  if (faults.empty()) ++agreed_;
  return faults;
}

std::vector<Fault> SilentFaults::before_save() {
  Stream& compute = engine_.compute();
  FaultReport own{.scales = scales()};
  compare(hashes_.state(compute), own);
  if (comm::Seals* seals = comm::seals_of(data_)) own.broken = seals->take_broken();
  std::vector<Fault> faults = faults_in(exchange(own));
  if (faults.empty()) ++agreed_;
  return faults;
}

}  // namespace octet::train
