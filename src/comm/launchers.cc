#include "octet/comm/launchers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "octet/base/files.h"
#include "octet/base/strings.h"

namespace octet::comm {
namespace {

std::optional<int> number(const Lookup& variable, const char* name) {
  const char* text = variable(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view all(text);
  int value = 0;
  const auto [end, code] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (code != std::errc() || end != all.data() + all.size()) return std::nullopt;
  return value;
}

bool is_set(const Lookup& variable, const char* name) {
  return variable(name) != nullptr;
}

bool single_is_meant(const Lookup& variable) {
  const char* text = variable("OCTETRUN_SINGLE");
  return text != nullptr && *text != '\0' && std::string_view(text) != "0";
}

bool has_mpi_launcher(const Lookup& variable) {
  return std::ranges::any_of(std::array{"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"},
                             [&](const char* name) { return is_set(variable, name); });
}

// The launchers of PyTorch's world all set RANK, LOCAL_RANK and WORLD_SIZE; a platform that starts one
// process a host sets RANK and WORLD_SIZE alone.
Launched by_pytorch(const Lookup& variable) {
  const auto rank = number(variable, "RANK"), size = number(variable, "WORLD_SIZE");
  if (!rank || !size || *size < 2 || !is_set(variable, "LOCAL_RANK")) return {};
  Launched launched{.launcher = "a launcher of PyTorch", .rank = *rank, .size = *size};
  if (is_set(variable, "CROSS_SIZE") || is_set(variable, "LOCAL_SIZE")) {
    launched.launcher = "deepspeed";
  } else if (is_set(variable, "ACCELERATE_MIXED_PRECISION") ||
             is_set(variable, "ACCELERATE_DYNAMO_BACKEND")) {
    launched.launcher = "accelerate launch";
  } else if (is_set(variable, "TORCHELASTIC_RUN_ID")) {
    launched.launcher = "torchrun";
  }
  return launched;
}

// A step's own number of tasks: that of the job (SLURM_NTASKS) stands in a batch script too, which is one
// process.
Launched by_slurm(const Lookup& variable) {
  const auto rank = number(variable, "SLURM_PROCID"), size = number(variable, "SLURM_STEP_NUM_TASKS");
  if (!rank || !size || *size < 2) return {};
  return {.launcher = "srun", .rank = *rank, .size = *size, .slurm = true};
}

}  // namespace

Launched launched_without_mpi(const Lookup& variable) {
  if (single_is_meant(variable) || has_mpi_launcher(variable)) return {};
  if (Launched launched = by_pytorch(variable); launched.size > 1) return launched;
  return by_slurm(variable);
}

Launched claimed_by_launcher(const Lookup& variable) {
  if (single_is_meant(variable)) return {};
  if (const auto size = number(variable, "OMPI_COMM_WORLD_SIZE")) {
    return {
        .launcher = "mpirun", .rank = number(variable, "OMPI_COMM_WORLD_RANK").value_or(0), .size = *size};
  }
  if (Launched launched = by_slurm(variable); launched.size > 1) return launched;
  if (const auto size = number(variable, "PMI_SIZE")) {
    return {
        .launcher = "mpirun of another MPI", .rank = number(variable, "PMI_RANK").value_or(0), .size = *size};
  }
  return {};
}

std::vector<std::string> command_line() {
  std::vector<std::string> words;
  try {
    words = split(read_file("/proc/self/cmdline"), '\0');
    if (!words.empty() && words.back().empty()) words.pop_back();
  } catch (const Error&) {
    words = {"trainer"};
  }
  return words;
}

Problem wrong_launcher(const Launched& launched, const std::vector<std::string>& arguments) {
  if (launched.rank != 0) return {.what = "", .code = ExitCode::usage};
  std::string command, count = std::to_string(launched.size);
  for (const std::string& argument : arguments) command += (command.empty() ? "" : " ") + argument;
  const std::string mpirun = "launch/mpirun -np " + count + " " + command;
  const char* where = launched.slurm                            ? "SLURM_STEP_NUM_TASKS, without PMIx"
                      : launched.launcher.starts_with("mpirun") ? "OMPI_COMM_WORLD_SIZE or PMI_SIZE"
                                                                : "RANK, WORLD_SIZE";
  return {
      .what = launched.launcher + " started " + count +
              " processes that do not know each other: each would train alone, all into one folder",
      .expected = "one process, or ranks that MPI's launcher started",
      .found = "process " + std::to_string(launched.rank) + " of " + count,
      .where = where,
      .fix = (launched.slurm ? "srun --mpi=pmix -n " + count + " " + command +
                                   "\n            or, in a batch script, " + mpirun
                             : mpirun + "\n            (several hosts: --hostfile FILE, see hostfiles/)") +
             "\n            if every process is meant to be a run of its own: OCTETRUN_SINGLE=1",
      .code = ExitCode::usage};
}

bool stops_are_handed_on(const Lookup& variable) {
  return is_set(variable, "OCTETRUN_LAUNCHER");
}

bool stops_are_kills(const Lookup& variable, const std::string& parent) {
  if (stops_are_handed_on(variable)) return false;
  static constexpr std::array kLaunchers{"mpirun",  "mpiexec", "orterun",       "orted",
                                         "prterun", "prted",   "mpiexec.hydra", "hydra_pmi_proxy"};
  return std::ranges::find(kLaunchers, parent) != kLaunchers.end();
}

std::string parent_process() {
  try {
    return std::string(trim(read_file("/proc/" + std::to_string(::getppid()) + "/comm")));
  } catch (const Error&) {
    return "";
  }
}

}  // namespace octet::comm
