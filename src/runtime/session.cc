#include "octet/runtime/session.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/comm/launchers.h"
#include "octet/comm/serialize.h"
#include "octet/device/cpu.h"
#include "octet/device/gpu_choice.h"
#include "octet/device/gpus.h"
#include "octet/device/op_threads.h"
#include "octet/runtime/rank_facts.h"

namespace octet::runtime {
namespace {

// Returns the facts of this rank that the ranks exchange before they choose GPUs.
RankGpus describe_rank(DeviceWish device, const comm::Place& place) {
  RankGpus mine{.host = place.host, .device = device};
  if (device == kWithoutGpus) return mine;
  mine.shares = shares_gpus(environment_variable("OCTETRUN_SHARE_GPUS"));
  // The kernel lists GPUs even if the program has no CUDA or the driver's library is missing.
  mine.driver = has_cuda_driver() || !nvidia_files().empty();
  for (GpuInfo& gpu : gpus()) {
    if (gpu.why_not.empty()) mine.gpus.push_back(std::move(gpu));
  }
  if (mine.gpus.empty()) cuda_available(0, &mine.why_not);
  return mine;
}

// Returns the GPUs of all ranks, by rank.
std::vector<RankGpus> gpus_of(const std::vector<RankFacts>& facts, const comm::Place& place) {
  std::vector<RankGpus> ranks;
  for (std::size_t r = 0; r < facts.size(); ++r) {
    ranks.push_back(facts[r].gpus);
    ranks.back().node = place.node_of[r];
  }
  return ranks;
}

std::unique_ptr<Device> open_gpu(const std::vector<RankGpus>& ranks, const GpuChoice& choice,
                                 const comm::Place& place) {
  const GpuInfo& gpu = chosen_gpu(ranks, choice, place.rank);
  const cpu::CoresNear near{.numa_node = gpu.numa_node,
                            .ranks = ranks_at_numa_node(ranks, choice, place.rank)};
  cpu::set_op_threads(cpu::claim_cores(place.local_rank, place.local_size, near));
  return make_cuda_device(gpu.ordinal);
}

std::unique_ptr<Device> open_cpu(const comm::Place& place) {
  const int cores = cpu::claim_cores(place.local_rank, place.local_size);
  cpu::set_op_threads(cores);
  return make_cpu_device(
      {.threads = cores, .compute_worker = environment_variable("OCTETRUN_COMPUTE_WORKER") != nullptr});
}

// Warns of problems of the ranks' devices before they run any work.
void warn_of(const GpuChoice& choice) {
  if (!choice.why_cpu.empty()) log::warn("computing on the CPU: " + choice.why_cpu);
  for (const std::string& doubt : choice.doubts) log::warn(doubt);
}

// Logs GPUs that this program cannot use. Only the printing rank logs, for its host.
void tell_of_others() {
  if (const std::string others = amd_gpus_text(); !others.empty()) log::info(others);
}

void show_ranks(const std::vector<RankGpus>& ranks, const GpuChoice& choice,
                const std::vector<std::int64_t>& free_bytes, const std::vector<std::string>& carriers) {
  std::vector<RankRow> rows;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const GpuInfo& gpu = chosen_gpu(ranks, choice, rank);
    rows.push_back({.rank = rank,
                    .host = ranks[r].host,
                    .gpu = std::to_string(gpu.ordinal) + ": " + gpu.name,
                    .bus = gpu.bus,
                    .numa_node = gpu.numa_node,
                    .free_bytes = free_bytes[r],
                    .more = {carriers[r]}});
  }
  for (const std::string& line : rank_table(rows, {"carrier"})) log::debug(line);
}

}  // namespace

Session::Session(DeviceWish device, const std::exception_ptr& refusal, const comm::Carrying& carrying,
                 std::optional<Problem>* unopened)
    : job_(comm::make_job()), place_(job_->place()) {
  log::set_rank(place_.rank, place_.rank == 0);
  comm::require_whole_job(place_.size);
  std::exception_ptr refused = refusal;
  const auto unless_refused = [&](const auto& work) {
    try {
      if (!refused) work();
    } catch (const Error&) {
      refused = std::current_exception();
    }
  };
  RankGpus mine;
  unless_refused([&] { mine = describe_rank(device, place_); });
  usable_gpus_ = mine.gpus.size();
  const auto facts = comm::all_gather_value(*job_, RankFacts{.refuses = refused != nullptr, .gpus = mine});
  std::vector<RankGpus> ranks;
  GpuChoice choice;
  // If one rank refuses, no rank opens a GPU.
  if (std::ranges::none_of(facts, &RankFacts::refuses)) {
    unless_refused([&] {
      ranks = gpus_of(facts, place_);
      choice = choose_gpus(ranks);
      if (comm::least_survivors() > 0) refuse_survivors_on_gpus(choice);
      if (choice.problem && choice.concerned == place_.rank) throw Error(*choice.problem);
    });
  }
  const bool on_gpus = !choice.ordinals.empty();
  if (on_gpus) {
    unless_refused([&] { device_ = open_gpu(ranks, choice, place_); });
  } else {
    device_ = open_cpu(place_);
  }
  {
    std::optional<cpu::ThreadTrial> trial;
    unless_refused([&] { trial.emplace(cpu::op_threads()); });
    // Waits until all ranks have their op threads. If one rank refuses, all ranks use the CPU, because
    // collectives need devices of the same kind.
    if (job_->all_min(refused ? 0 : 1) == 0 && on_gpus) device_.reset();
  }
  if (!device_) device_ = open_cpu(place_);
  if (!refused) cpu::start_op_threads();
  warn_of(choice);
  if (!on_gpus && device != kWithoutGpus) tell_of_others();
  const comm::Group group = comm::Mesh(place_.size).group("data", place_.rank);
  unless_refused([&] { data_ = job_->collectives(group, *device_, carrying); });
  if (!data_) {
    // The CPU device always exists. A refusal is sent over it.
    device_ = open_cpu(place_);
    data_ = job_->collectives(group, *device_, comm::Carrier::automatic);
  }
  std::int64_t free_bytes = 0;
  try {
    job_->together([&] {
      if (refused) std::rethrow_exception(refused);
      if (on_gpus) free_bytes = static_cast<std::int64_t>(device_->memory().free);
    });
  } catch (const Error& error) {
    if (unopened == nullptr || !error.problem().agreed) throw;
    *unopened = error.problem();
    return;
  }
  if (!on_gpus || place_.size == 1) return;
  const std::vector<std::int64_t> all_free = job_->all_gather_int(free_bytes);
  const std::vector<std::string> carriers = job_->all_gather_bytes(data_->carrier());
  if (prints()) show_ranks(ranks, choice, all_free, carriers);
}

std::vector<comm::Traffic> Session::take_traffic() {
  std::vector<comm::Traffic> taken = data_->take_traffic();
  std::ranges::move(job_->take_traffic(), std::back_inserter(taken));
  return taken;
}

void Session::mention_idle_gpus(const std::string& command) const {
  if (place_.size > 1 || usable_gpus_ < 2 || !device_->traits().counts_as_gpu) return;
  const std::string count = std::to_string(usable_gpus_);
  log::info("this machine has " + count + " GPUs, and one is used: `launch/mpirun -np " + count +
            " build/bin/trainer " + command + "` uses all");
}

Problem placed(Problem problem, const comm::Place& place, const std::string& device) {
  if (problem.what.empty() || problem.agreed || place.size == 1) return problem;
  problem.where += (problem.where.empty() ? "rank " : "; rank ") + std::to_string(place.rank) + " on " +
                   place.host + (device.empty() ? "" : ", " + device);
  return problem;
}

int Session::failed() {
  // Checked before the kind of error: if ranks were lost, the surviving ranks continue together.
  if (job_->others_lost()) throw comm::RanksLost();
  const std::string device = device_ ? device_->description() : "";
  try {
    throw;
  } catch (const std::exception& e) {
    const Problem problem = problem_of(e).value_or(
        Problem{.what = "internal error on rank " + std::to_string(place_.rank) + ": " + e.what(),
                .fix = "this is a bug of the program: report it with this message and the configuration"});
    note_ending(static_cast<int>(problem.code));
    // An Error without text was printed by another rank. An agreed Error is thrown on all ranks, so no abort.
    if (!problem.what.empty()) log::error(Error(placed(problem, place_, device)).what());
    if (place_.size > 1 && !problem.agreed) job_->abort(static_cast<int>(problem.code));
    return static_cast<int>(problem.code);
  }
}

}  // namespace octet::runtime
