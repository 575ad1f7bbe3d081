#include "octet/comm/launchers.h"

#include <dlfcn.h>
#include <mpi.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "octet/base/environment.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"

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

std::string variables_that_are_set(const Lookup& variable, std::initializer_list<const char*> names) {
  std::string all;
  for (const char* name : names) {
    const char* text = variable(name);
    if (text != nullptr) all += (all.empty() ? "" : ", ") + std::string(name) + "=" + text;
  }
  return all;
}

// The launchers of PyTorch all set RANK, LOCAL_RANK and WORLD_SIZE. hosts_without_mpi() reads the variables
// of platforms that start one process per host.
Launched by_pytorch(const Lookup& variable) {
  const auto rank = number(variable, "RANK"), size = number(variable, "WORLD_SIZE");
  if (!rank || !size || *size < 2 || !is_set(variable, "LOCAL_RANK")) return {};
  Launched launched{.launcher = "a launcher of PyTorch",
                    .rank = *rank,
                    .size = *size,
                    .where = variables_that_are_set(
                        variable, {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"})};
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

// Several processes of such a launcher are children of one process that an MPI launcher started. Scripts
// around srun may set RANK and similar variables for MPI ranks, but not the variables specific to torchrun or
// deepspeed.
bool shares_a_rank(const Lookup& variable) {
  const bool elastic = is_set(variable, "TORCHELASTIC_RUN_ID");
  const int here = number(variable, elastic ? "LOCAL_WORLD_SIZE" : "LOCAL_SIZE").value_or(1);
  return here > 1;
}

// Without a version: after MPI has started, PMIX_VERSION is the version of the program's own PMIx.
std::string pmi_of_slurm(const Lookup& variable) {
  if (is_set(variable, "PMIX_RANK")) return "PMIx";
  return is_set(variable, "PMI_RANK") ? "PMI-2" : "";
}

// Reads the number of tasks of the step. The number of the job (SLURM_NTASKS) is also set in a batch script,
// which is one process.
Launched by_slurm(const Lookup& variable) {
  const auto rank = number(variable, "SLURM_PROCID"), size = number(variable, "SLURM_STEP_NUM_TASKS");
  if (!rank || !size || *size < 2) return {};
  return {.launcher = "srun",
          .rank = *rank,
          .size = *size,
          .slurm = true,
          .where = variables_that_are_set(variable,
                                          {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "PMIX_RANK", "PMI_RANK"}),
          .pmi = pmi_of_slurm(variable)};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// launch/mpirun uses the launcher of the program's MPI if PATH contains it; otherwise the line names its
// path.
std::string mpirun_line(const Launched& launched, const std::string& command, const ProgramMpi& mpi) {
  const std::string line = "launch/mpirun -np " + std::to_string(launched.size) + " " + command;
  if (launched.mpi.empty()) return line;
  if (!mpi.mpirun.empty()) return "OCTETRUN_MPIRUN_FILE=" + mpi.mpirun + " " + line;
  return line + "\n            with the mpirun of " + mpi.name +
         " on PATH, which was not found here: install it (launch/setup for Open MPI), or load its module";
}

std::string srun_line(const Launched& launched, const std::string& command, const std::string& plugin) {
  return "srun --mpi=" + plugin + " -n " + std::to_string(launched.size) + " " + command;
}

std::string line_to_type(const Launched& launched, const std::string& command, const ProgramMpi& mpi) {
  const std::string mpirun = mpirun_line(launched, command, mpi);
  if (launched.one_per_host) {
    return "on the first host, with a line NAME slots=RANKS for each host in FILE (hostfiles/ has "
           "examples):\n"
           "            launch/mpirun --hostfile FILE -np " +
           std::to_string(launched.size) + " " + command +
           "\n            (as many ranks as all hosts have GPUs)";
  }
  if (!launched.slurm) return mpirun + "\n            (several hosts: --hostfile FILE, see hostfiles/)";
  if (launched.pmi != "PMIx")
    return srun_line(launched, command, "pmix") + "\n            or, in a batch script, " + mpirun;
  return "in a batch script, " + mpirun + "\n            or " + srun_line(launched, command, "pmix_vN") +
         " with another version of PMIx (srun --mpi=list shows them)";
}

std::string why_deaf(const Launched& launched, const ProgramMpi& mpi) {
  if (!launched.above.empty())
    return "an outer MPI launcher counts them as one rank (" + launched.above + ")";
  if (!launched.mpi.empty())
    return "the launcher is that of " + launched.mpi + ", and this program is built with " + mpi.name;
  if (!launched.pmi.empty())
    return "Slurm connects them by " + launched.pmi + ", which " + mpi.name + " does not use";
  return "no launcher connects them for this program's MPI (" + mpi.name + ")";
}

}  // namespace

Launched launched_without_mpi(const Lookup& variable, const std::function<bool()>& speaks_pmi2) {
  if (single_is_meant(variable)) return {};
  if (Launched launched = by_pytorch(variable); launched.size > 1) {
    if (!has_mpi_launcher(variable)) return launched;
    if (!shares_a_rank(variable)) return {};
    launched.above = variables_that_are_set(variable, {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"});
    return launched;
  }
  Launched launched = by_slurm(variable);
  const bool deaf = launched.pmi == "PMI-2" && !is_set(variable, "OMPI_COMM_WORLD_SIZE") && !speaks_pmi2();
  return deaf || !has_mpi_launcher(variable) ? launched : Launched{};
}

Launched hosts_without_mpi(const Lookup& variable) {
  if (single_is_meant(variable) || has_mpi_launcher(variable)) return {};
  struct Names {
    const char *rank, *size;
  };
  for (const auto& [rank_name, size_name] :
       {Names{"RANK", "WORLD_SIZE"}, Names{"PET_NODE_RANK", "PET_NNODES"}, Names{"NODE_RANK", "NNODES"}}) {
    const auto rank = number(variable, rank_name), size = number(variable, size_name);
    if (!rank || !size || *size < 2) continue;
    return {.launcher = "a platform of PyTorch",
            .rank = *rank,
            .size = *size,
            .one_per_host = true,
            .where = variables_that_are_set(variable, {rank_name, size_name})};
  }
  return {};
}

Launched claimed_by_launcher(const Lookup& variable) {
  if (single_is_meant(variable)) return {};
  if (const auto size = number(variable, "OMPI_COMM_WORLD_SIZE")) {
    return {.launcher = "mpirun",
            .rank = number(variable, "OMPI_COMM_WORLD_RANK").value_or(0),
            .size = *size,
            .where = variables_that_are_set(variable, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}),
            .mpi = "an Open MPI"};
  }
  if (Launched launched = by_slurm(variable); launched.size > 1) return launched;
  if (const auto size = number(variable, "PMI_SIZE")) {
    return {.launcher = "mpirun",
            .rank = number(variable, "PMI_RANK").value_or(0),
            .size = *size,
            .where = variables_that_are_set(variable, {"PMI_SIZE", "PMI_RANK"}),
            .mpi = "MPICH or Intel MPI"};
  }
  return {};
}

void require_whole_job(int size) {
  if (size > 1) return;
  const Launched claimed = claimed_by_launcher(environment_variable);
  if (claimed.size > 1) throw Error(wrong_launcher(claimed, command_line(), program_mpi()));
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

Problem wrong_launcher(const Launched& launched, const std::vector<std::string>& arguments,
                       const ProgramMpi& mpi) {
  if (launched.rank != 0 && !launched.one_per_host)
    return {.what = "", .code = ExitCode::usage, .agreed = true};
  const std::string count = std::to_string(launched.size);
  const std::string meant =
      launched.above.empty()
          ? "if every process should be a separate run: OCTETRUN_SINGLE=1"
          : "if mpirun was started on purpose by a process of " + launched.launcher + ": OCTETRUN_SINGLE=1";
  return {
      .what = launched.launcher + " started " + count +
              " processes that are not connected: each would train alone, all into one folder",
      .expected = "one process, or ranks that the launcher of " + mpi.name + " started",
      .found = "process " + std::to_string(launched.rank) + " of " + count + ": " + why_deaf(launched, mpi),
      .where = launched.where,
      .fix = line_to_type(launched, joined(arguments), mpi) + "\n            " + meant,
      .code = ExitCode::usage,
      .agreed = true};
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

bool output_reaches_terminal(const Lookup& variable) {
  struct stat output {};
  const bool file = ::fstat(STDOUT_FILENO, &output) == 0 && S_ISREG(output.st_mode);
  if (const char* launcher = variable("OCTETRUN_LAUNCHER"))
    return !file && std::string_view(launcher) == "terminal";
  return output_is_terminal(has_mpi_launcher(variable) ? ::getppid() : 0);
}

std::string parent_process() {
  try {
    return std::string(trim(read_file("/proc/" + std::to_string(::getppid()) + "/comm")));
  } catch (const Error&) {
    return "";
  }
}

// Finds the MPI that this program was built with and its launcher.

namespace {

namespace fs = std::filesystem;

#if defined(OMPI_MAJOR_VERSION)
constexpr int kOpenMpi = OMPI_MAJOR_VERSION;
const std::string kName = "Open MPI " + std::to_string(OMPI_MAJOR_VERSION) + "." +
                          std::to_string(OMPI_MINOR_VERSION) + "." + std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
constexpr int kOpenMpi = 0;
const std::string kName = std::string("MPICH ") + MPICH_VERSION;
#else
constexpr int kOpenMpi = 0;
const std::string kName = "another MPI";
#endif

bool is_program(const fs::path& file) {
  std::error_code none;
  return fs::is_regular_file(file, none) && ::access(file.c_str(), X_OK) == 0;
}

// Returns the folder of the loaded MPI; empty if it is unknown.
fs::path folder_of_library() {
  Dl_info found{};
  void* const function = ::dlsym(RTLD_DEFAULT, "MPI_Init");
  if (function == nullptr || ::dladdr(function, &found) == 0 || found.dli_fname == nullptr) return {};
  std::error_code none;
  return fs::canonical(found.dli_fname, none).parent_path();
}

// An installation has one root folder: lib/libmpi.so or lib/MACHINE/openmpi/lib/libmpi.so is under the same
// root as bin/mpirun.
std::vector<std::string> folders_to_look_in() {
  std::vector<std::string> folders;
  fs::path above = folder_of_library();
  for (int level = 0; level < 5 && above.has_relative_path(); ++level) {
    above = above.parent_path();
    folders.push_back(above / "bin");
  }
  const char* path = environment_variable("PATH");
  if (path != nullptr) {
    for (const std::string& folder : split(path, ':'))
      if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

}  // namespace

std::string owner_of_mpirun(const std::string& file) {
  std::error_code none;
  if (!is_program(file)) return "";
  const fs::path real = fs::canonical(file, none);
  const std::string name = real.filename();
  for (const char* word : {"openmpi", "orterun", "prterun", "ompi"})
    if (name.find(word) != std::string::npos) return "Open MPI";
  for (const char* word : {"hydra", "mpich"})
    if (name.find(word) != std::string::npos) return "MPICH";
  // All MPIs use this name, so the neighbouring files of the package identify the MPI.
  const bool open = is_program(real.parent_path() / "ompi_info");
  const bool mpich =
      is_program(real.parent_path() / "mpichversion") || is_program(real.parent_path() / "hydra_pmi_proxy");
  if (open != mpich) return open ? "Open MPI" : "MPICH";
  return "";
}

std::string find_mpirun(const std::string& mpi, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    for (const char* name : {"mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra"}) {
      std::string file = folder + "/" + name;
      const std::string owner = owner_of_mpirun(file);
      if (!owner.empty() && mpi.starts_with(owner)) return file;
    }
  }
  return "";
}

bool open_mpi_speaks_pmi2(int major_version, const std::string& folder) {
  if (major_version >= 5) return false;  // PMIx only
  std::error_code none;
  bool plugins = false;
  for (fs::recursive_directory_iterator at(folder, none), end; !none && at != end; at.increment(none)) {
    const std::string name = at->path().filename();
    if (!name.starts_with("mca_pmix_")) continue;
    if (name.starts_with("mca_pmix_s1.") || name.starts_with("mca_pmix_s2.")) return true;
    plugins = true;
  }
  return !plugins;
}

ProgramMpi program_mpi() {
  ProgramMpi mpi{.name = kName, .mpirun = find_mpirun(kName, folders_to_look_in())};
  const fs::path library = folder_of_library();
  if (kOpenMpi > 0 && !library.empty()) mpi.speaks_pmi2 = open_mpi_speaks_pmi2(kOpenMpi, library / "openmpi");
  return mpi;
}

}  // namespace octet::comm
