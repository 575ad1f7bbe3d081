#include "octet/base/environment.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet {
namespace {

using enum VariableUse;

constexpr EnvironmentVariable kVariables[] = {
    {"OCTETRUN_CACHE", "a folder, or `off`",
     "folder of the measured GEMM algorithms. Not set: `octet` in `XDG_CACHE_HOME`, else `.cache/octet` in "
     "`HOME`",
     "src/ops/gemm_autotune_cache.cc", user},
    {"OCTETRUN_NCCL_LIBRARY", "the file `libnccl.so.2`",
     "the only NCCL that is loaded. Not set: the first found in the system's libraries (`LD_LIBRARY_PATH` "
     "too), the wheel `nvidia-nccl-cu13` of `VIRTUAL_ENV`, `/usr/local/cuda/lib64`",
     "src/comm/gpu/nccl_library.cc", user},
    {"OCTETRUN_SINGLE", "`0` or `1`",
     "`1`: each process of `torchrun`, `accelerate`, `deepspeed` or `srun` without PMIx is a separate run, "
     "or starts mpirun. Not set or `0`: these processes are refused",
     "src/comm/job/launchers.cc", user},
    {"OCTETRUN_MPIRUN_FILE", "a file",
     "the mpirun that `launch/mpirun` calls. Not set: the first on `PATH` that belongs to the MPI of the "
     "program (`trainer --version`)",
     "src/launch/mpi.cc", user},
    {"OCTETRUN_START_TIMEOUT", "seconds, at least 1",
     "limit for the start of MPI and for opening a channel; then the job ends with 75. Not set: 600",
     "src/comm/mpi/mpi_start.cc", user},
    {"OCTETRUN_MEMORY_FOLDER", "a folder of each host",
     "folder of checkpoints in memory (`memory_checkpoint_steps`): a memory file system, or a local disk. "
     "Not set: /dev/shm",
     "src/memory_tier/memory_folder.cc", user},
    {"OCTETRUN_MEMORY_KEEP", "seconds",
     "time until checkpoints in memory are removed after their run has ended without a restart. Not set: 900",
     "src/memory_tier/memory_folder.cc", user},
    {"OCTETRUN_VERBOSE", "anything",
     "a run also prints the lines that it writes to `training.log` only: columns of data sets, the first "
     "example, tables of memory and GEMMs",
     "src/base/log.cc", user},
    {"OCTETRUN_OVERLAP", "`always`",
     "communication overlaps computation on CPUs even without a spare core. Not set: only with a spare core",
     "src/comm/meter.cc", user},

    {"OCTETRUN_LAUNCHER", "set by `launch/mpirun`",
     "signals reach the ranks, so the program prints no warning that signals kill; `terminal`: standard "
     "output reaches a terminal, so control characters are shown as `\\x1B`",
     "src/comm/job/launchers.cc", launcher},
    {"OCTETRUN_BAR_COLUMNS", "set by `launch/mpirun`",
     "columns of the terminal that standard error reaches: the progress bar is drawn in place there",
     "src/report/progress_bar.cc", launcher},
    {"OCTETRUN_SUPERVISED", "set by `launch/supervise`",
     "name of this start of a job: rank 0 writes the progress to `octet.progress` in `output_dir` after "
     "every step",
     "src/report/progress.cc", launcher},
    {"OCTETRUN_SURVIVORS", "a number of ranks",
     "set by `launch/supervise --survive`: the least number of ranks (on CPUs) that continue when others "
     "end. Not set: a failed rank ends the job",
     "src/comm/job/job.cc", launcher},
    {"OCTETRUN_BUILD", "a folder",
     "the build folder of the scripts in `launch` and `tests`. Not set: `build`", "launch/build", launcher},
    {"OCTETRUN_PBS_MARGIN", "seconds",
     "time between the stop of a run by `launch/pbs.sh` and the time limit of its job. Not set: 300",
     "launch/pbs.sh", launcher},

    {"OCTETRUN_SHARE_GPUS", "`0` or `1`",
     "`1`: several ranks of a node may share a GPU, assigned in turn (four ranks and two GPUs: 0, 1, 0, 1). "
     "This is slower, and NCCL refuses it. Not set or `0`: they may not",
     "src/runtime/session.cc", test},
    {"OCTETRUN_MEMORY_LIMIT", "MiB, at least 1",
     "each rank chooses its sizes and the storage of its states for this much free device memory. Not set: "
     "the free memory of the device",
     "src/train/fit.cc", test},
    {"OCTETRUN_RECORDING", "`on` or `off`",
     "`off`: a GPU gets each decoding pass kernel by kernel. Not set or `on`: equal passes are recorded once "
     "and replayed",
     "src/device/device.cc", test},
    {"OCTETRUN_LONE_GEMM", "`always` or `never`",
     "`always`: GEMMs of very few tokens and the small ops around them are one op, also on a CPU. `never`: "
     "nowhere. Not set: on a GPU, where they are one kernel",
     "src/ops/decode_gemm.cc", test},
    {"OCTETRUN_LONE_CHAIN", "`never`",
     "`never`: consecutive GEMMs of few tokens are one kernel each. Not set: on Hopper, single-token GEMMs "
     "in E4M3 are one kernel, from the output of attention to the next queries, keys and values",
     "src/ops/decode_gemm.cc", test},
    {"OCTETRUN_GROUPED_GEMM", "`always`, `never` or `hopper`",
     "`always`: the GEMMs of all experts are one op, also on a CPU. `never`: each expert has separate GEMMs. "
     "`hopper`: a CPU has one op in FP8 for the numbers of rows of Hopper. "
     "Not set: one kernel on a GPU, in bf16 and FP8; with many tokens only on Hopper",
     "src/ops/grouped_wish.h", test},
    {"OCTETRUN_DIRECT_SUMS", "`on` or `off`",
     "`off`: sums over the GPUs of a split model are collectives. Not set or `on`: if these GPUs write into "
     "the memory of each other, short sums are one kernel each, and decoding passes are recorded",
     "src/comm/gpu/carriers.cc", test},
    {"OCTETRUN_EARLY_LAUNCH", "`on` or `off`",
     "`off`: no GPU kernel begins before the previous kernel has ended. Not set or `on`: decoding kernels "
     "may begin earlier",
     "src/ops/cuda/early_launch.cc", test},
    {"OCTETRUN_COMPUTE_WORKER", "anything",
     "on CPUs a separate thread computes, in the order of its stream, as on a GPU. Not set: the calling "
     "thread computes",
     "src/runtime/session.cc", test},
    {"OCTETRUN_FAILPOINT", "`NAME` or `NAME:COUNT`",
     "the process kills itself (SIGKILL) when it passes this point of a save for the COUNT-th time; "
     "`full_disk`: folders with a file disk-is-full have no room",
     "src/files/file_io.cc", test},
    {"OCTETRUN_DELAYS", "milliseconds, 0 to 1000",
     "longest random delay before one of 32 collectives is enqueued, and before one of 32 begins on its "
     "stream; each rank draws its delays",
     "src/comm/job/injected_faults.cc", test},
    {"OCTETRUN_BREAK_STEP", "`gpu:N`, `memory:N` or `nccl:N`",
     "the last rank fails at its N-th collective: a kernel faults, a reservation is larger than any device, "
     "or NCCL reports an error",
     "src/comm/job/injected_faults.cc", test},
    {"OCTETRUN_BREAK_CARRIER", "`peer-open` or `peer-pattern`",
     "simulates a host on which GPUs cannot copy into the memory of each other: memory is not shared, or a "
     "link corrupts bytes",
     "src/comm/gpu/carriers.cc", test},
    {"OCTETRUN_FLIPS", "`RANK:STEP:KIND:DRAW`, several with commas",
     "with `sdc_steps`, inverts one bit of that rank in that step; DRAW chooses it. KIND: `parameters`, "
     "`masters`, `moments`, `frozen`, `gradients`, or `messages` that the rank receives",
     "src/train/faults/fault_verdict.cc", test},
    {"OCTETRUN_REMOVE_COMMUNICATION", "anything",
     "ranks exchange no values, to measure the step time without communication. Results are wrong, and the "
     "program prints this",
     "src/comm/job/job.cc", test},
    {"OCTETRUN_TEST_SWEEPS", "anything", "tests of AMX GEMMs use thousands of shapes. Not set: a few",
     "tests/ops/gemm_amx_test.cc", test},
    {"OCTETRUN_SOAK_STEPS", "a number", "steps of the soak test of stores. Not set: a few",
     "tests/store/soak_test.cc", test},
    {"OCTETRUN_STRICT_TOKENS", "a number",
     "tokens that the test of strict answers samples in each precision. Not set: 1,000",
     "tests/generate/strict_test.cc", test},
    {"OCTETRUN_TEST_CARRIER", "`peer`, `nccl` or `host`", "the carrier between GPUs that comm_mpi_tests test",
     "tests/comm/comm_mpi_test.cc", test},
    {"OCTETRUN_TEST_SUMS", "`nccl`",
     "comm_mpi_tests also test the sums of NCCL, with one GPU per rank. Not set: they do not",
     "tests/comm/comm_mpi_test.cc", test},
    {"OCTETRUN_TEST_DEVICE", "`cuda`",
     "comm_mpi_tests run on GPUs, which are assigned to ranks in turn. Not set: on CPUs",
     "tests/comm/comm_mpi_test.cc", test},
    {"OCTETRUN_WRITE_DOCS", "anything", "tests of generated pages write the pages instead of comparing them",
     "tests/config/schema_test.cc", test},

    {"TMPDIR", "a folder", "folder of lists and columns that are too long for memory. Not set: `/tmp`",
     "src/base/long_array.cc", foreign},
    {"HF_HUB_CACHE", "a folder",
     "cache of models and data sets by hub name. Not set: `HUGGINGFACE_HUB_CACHE`, else `hub` in `HF_HOME`, "
     "else `huggingface/hub` in `XDG_CACHE_HOME` or in `.cache` of `HOME`",
     "src/base/model_file.cc", foreign},
    {"HUGGINGFACE_HUB_CACHE", "a folder", "see `HF_HUB_CACHE`", "src/base/model_file.cc", foreign},
    {"HF_HOME", "a folder", "see `HF_HUB_CACHE`", "src/base/model_file.cc", foreign},
    {"XDG_CACHE_HOME", "a folder", "see `OCTETRUN_CACHE` and `HF_HUB_CACHE`",
     "src/ops/gemm_autotune_cache.cc", foreign},
    {"HOME", "a folder", "see `OCTETRUN_CACHE` and `HF_HUB_CACHE`", "src/ops/gemm_autotune_cache.cc",
     foreign},
    {"PATH", "folders", "`trainer supervise` finds the program there", "src/supervise/job_command.cc",
     foreign},
    {"LD_LIBRARY_PATH", "the system's",
     "passed to the process that removes checkpoints in memory of an ended run",
     "src/memory_tier/memory_folder.cc", foreign},
    {"VIRTUAL_ENV", "a folder", "see `OCTETRUN_NCCL_LIBRARY`", "src/comm/gpu/nccl_library.cc", foreign},
    {"CUDA_VISIBLE_DEVICES", "numbers or names of GPUs",
     "for the driver: the GPUs of a process, and their order", "src/device/gpu_choice.cc", foreign},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "a number",
     "for the driver. The program sets it to 32, and logs a replaced value. With fewer connections, "
     "communication would wait for computation",
     "src/device/gpus.cc", foreign},
    {"OMP_NUM_THREADS", "a number",
     "for OpenMP: threads of a rank on CPUs, and for the work of the CPU with GPUs. Not set: the cores of a "
     "host are divided among its ranks",
     "src/device/cpu/op_threads.cc", foreign},
    {"OMP_WAIT_POLICY", "`passive` or `active`",
     "for OpenMP: whether waiting threads sleep or spin. Not set: they spin, and sleep soon if the cores are "
     "shared with other work",
     "src/device/cpu/op_threads.cc", foreign},
    {"GOMP_SPINCOUNT", "a number", "for GNU's OpenMP: number of checks of a waiting thread before it sleeps",
     "src/device/cpu/op_threads.cc", foreign},
    {"OMP_STACKSIZE", "a size, such as `512K`",
     "for OpenMP: stack of each thread. Not set: the limit of `ulimit -s`", "src/device/cpu/op_threads.cc",
     foreign},
    {"OMPI_COMM_WORLD_SIZE", "set by Open MPI", "number of ranks", "src/comm/job/launchers.cc", foreign},
    {"OMPI_COMM_WORLD_RANK", "set by Open MPI", "this rank", "src/comm/job/launchers.cc", foreign},
    {"PMI_SIZE", "set by MPICH and Slurm", "number of ranks", "src/comm/job/launchers.cc", foreign},
    {"PMI_RANK", "set by MPICH and Slurm", "this rank", "src/comm/job/launchers.cc", foreign},
    {"PMIX_RANK", "set by PMIx", "an MPI launcher started this process", "src/comm/job/launchers.cc",
     foreign},
    {"OMPI_MCA_hwloc_base_binding_policy", "Open MPI's",
     "binding of cores: if it is set, the program does not change it", "src/device/cpu/machine.cc", foreign},
    {"OMPI_MCA_hwloc_base_cpu_list", "Open MPI's", "the same", "src/device/cpu/machine.cc", foreign},
    {"OMPI_MCA_hwloc_base_cpu_set", "Open MPI's", "the same", "src/device/cpu/machine.cc", foreign},
    {"PRTE_MCA_hwloc_default_binding_policy", "Open MPI's", "the same", "src/device/cpu/machine.cc", foreign},
    {"RANK", "set by launchers of PyTorch", "processes without a common MPI are refused",
     "src/comm/job/launchers.cc", foreign},
    {"WORLD_SIZE", "set by launchers of PyTorch", "the same", "src/comm/job/launchers.cc", foreign},
    {"NODE_RANK", "set for LLaMA-Factory", "hosts that would each train alone are refused",
     "src/comm/job/launchers.cc", foreign},
    {"NNODES", "set for LLaMA-Factory", "the same", "src/comm/job/launchers.cc", foreign},
    {"PET_NODE_RANK", "set by operators of Kubernetes", "the same", "src/comm/job/launchers.cc", foreign},
    {"PET_NNODES", "set by operators of Kubernetes", "the same", "src/comm/job/launchers.cc", foreign},
    {"LOCAL_RANK", "set by launchers of PyTorch", "processes without a common MPI are refused",
     "src/comm/job/launchers.cc", foreign},
    {"LOCAL_WORLD_SIZE", "set by torchrun", "the same, also under an MPI launcher, if it is more than one",
     "src/comm/job/launchers.cc", foreign},
    {"LOCAL_SIZE", "set by deepspeed", "the same; it also identifies the launcher",
     "src/comm/job/launchers.cc", foreign},
    {"CROSS_SIZE", "set by deepspeed", "the same", "src/comm/job/launchers.cc", foreign},
    {"ACCELERATE_MIXED_PRECISION", "set by accelerate", "the same", "src/comm/job/launchers.cc", foreign},
    {"ACCELERATE_DYNAMO_BACKEND", "set by accelerate", "the same", "src/comm/job/launchers.cc", foreign},
    {"TORCHELASTIC_RUN_ID", "set by torchrun", "the same", "src/comm/job/launchers.cc", foreign},
    {"SLURM_PROCID", "set by Slurm", "processes of a step without PMIx are refused",
     "src/comm/job/launchers.cc", foreign},
    {"SLURM_STEP_NUM_TASKS", "set by Slurm", "the same", "src/comm/job/launchers.cc", foreign},
};

struct Section {
  VariableUse use;
  const char* title;
};
constexpr Section kSections[] = {{user, "For runs"},
                                 {launcher, "Between scripts and the program"},
                                 {test, "For tests and measurements"},
                                 {foreign, "Of other programs"}};

const EnvironmentVariable* find(std::string_view name) {
  const auto* found =
      std::ranges::find_if(kVariables, [&](const auto& variable) { return variable.name == name; });
  return found == std::end(kVariables) ? nullptr : found;
}

[[noreturn]] void refuse(const std::string& name, const std::string& text, const std::string& meant) {
  throw Error({.what = "there is no environment variable " + name,
               .expected = "a variable of the list that `trainer --help environment` shows",
               .found = name + "=" + text,
               .where = "environment",
               .fix = meant.empty() ? "unset it" : "did you mean " + meant + "?",
               .code = ExitCode::usage});
}

/// The words that a variable may say, where its row lists nothing else: "`peer`, `nccl` or `host`".
std::vector<std::string> listed_words(std::string_view values) {
  std::vector<std::string> words;
  while (!values.empty()) {
    const std::size_t end = values.find('`', 1);
    if (values.front() != '`' || end == std::string_view::npos) return {};
    const std::string_view word = values.substr(1, end - 1);
    // Capitals are placeholders: `RANK:STEP`.
    if (std::ranges::any_of(word, [](char c) { return c >= 'A' && c <= 'Z'; })) return {};
    words.emplace_back(word);
    values.remove_prefix(end + 1);
    for (const std::string_view between : {", ", " or "}) {
      if (values.starts_with(between)) {
        values.remove_prefix(between.size());
        break;
      }
    }
  }
  return words;
}

void require_listed(const EnvironmentVariable& variable, const std::string& text) {
  const std::vector<std::string> words = listed_words(variable.values);
  if (text.empty() || words.empty() || std::ranges::find(words, text) != words.end()) return;
  std::string expected = variable.values;
  std::erase(expected, '`');
  throw Error({.what = std::string("the environment variable ") + variable.name + " has an invalid value",
               .expected = expected,
               .found = std::string(variable.name) + "=" + text,
               .where = "environment",
               .fix = "set it to one of these, or unset it",
               .code = ExitCode::usage});
}

// Checks a variable if its row expects seconds or a number.
void require_number(const EnvironmentVariable& variable, const std::string& text) {
  const std::string_view values = variable.values;
  const bool seconds = values.starts_with("seconds");
  if (text.empty() || (!seconds && !values.starts_with("a number"))) return;
  const double least = values.ends_with("at least 1") ? 1 : 0;
  double number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = seconds || number == std::floor(number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least && whole) return;
  throw Error({.what = std::string("the environment variable ") + variable.name + " has an invalid value",
               .expected = variable.values,
               .found = std::string(variable.name) + "=" + text,
               .where = "environment",
               .fix = "set it to a number in this range, or unset it",
               .code = ExitCode::usage});
}

}  // namespace

std::span<const EnvironmentVariable> environment_variables() {
  return kVariables;
}

const char* environment_variable(const char* name) {
  check(find(name) != nullptr, "a variable of the environment that is not in the table");
  return std::getenv(name);
}

void require_known_variables(const std::map<std::string, std::string>& environment) {
  constexpr std::string_view keys = "OCTET_";
  std::vector<std::string> own;
  for (const EnvironmentVariable& variable : kVariables) {
    if (variable.use != foreign) own.emplace_back(variable.name);
  }
  for (const auto& [name, text] : environment) {
    if (name.starts_with(kOwnPrefix)) {
      const EnvironmentVariable* const variable = find(name);
      if (variable == nullptr) refuse(name, text, nearest_name(name, own));
      require_listed(*variable, text);
      require_number(*variable, text);
    } else if (name.starts_with(keys)) {
      const std::string meant = std::string(kOwnPrefix) + name.substr(keys.size());
      if (find(meant) != nullptr) refuse(name, text, meant);
    }
  }
}

std::string environment_help() {
  std::string text =
      "Environment variables of the program. OCTET_<KEY> (OCTET_SEED=3) sets a key of the configuration;\n"
      "files and the command line override it.\n";
  for (const Section& section : kSections) {
    text += "\n" + std::string(section.title) + "\n";
    for (const EnvironmentVariable& variable : kVariables) {
      if (variable.use == section.use) {
        text += "  " + std::string(variable.name) + "  (" + variable.values + ")\n      " + variable.meaning +
                "\n";
      }
    }
  }
  std::erase(text, '`');
  return text;
}

std::string environment_markdown() {
  std::string page =
      "# Environment variables\n\nPrint the list on this page, or set a key for one command:\n\n"
      "    build/bin/trainer --help environment\n"
      "    OCTET_SEED=3 build/bin/trainer config.yaml\n\n"
      "- `OCTET_<KEY>` sets a key of the [configuration](config.md). Files and the command line override "
      "it.\n"
      "- Variables of the program begin with `OCTETRUN_`. An unlisted variable with this prefix ends a "
      "command "
      "at its start.\n"
      "- `launch/mpirun` passes both kinds to all hosts.\n\n"
      "This page is generated from the table in `src/base/environment.cc`.\n";
  for (const Section& section : kSections) {
    page += "\n## " + std::string(section.title) +
            "\n\n| variable | values | meaning | read by |\n|---|---|---|---|\n";
    for (const EnvironmentVariable& variable : kVariables) {
      if (variable.use != section.use) continue;
      page += "| `" + std::string(variable.name) + "` | " + variable.values + " | " + variable.meaning +
              " | `" + variable.reader + "` |\n";
    }
  }
  return page;
}

}  // namespace octet
