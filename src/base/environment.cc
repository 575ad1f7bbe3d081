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
     "where algorithms of GEMMs are kept for the next run. Not set: `octet` in `XDG_CACHE_HOME`, else "
     "`.cache/octet` in "
     "`HOME`",
     "src/ops/gemm_autotune_cache.cc", user},
    {"OCTETRUN_NCCL_LIBRARY", "the file `libnccl.so.2`",
     "the NCCL to load, alone. Not set: the one among the system's libraries (`LD_LIBRARY_PATH` too), then "
     "that of the "
     "wheel `nvidia-nccl-cu13` of the Python environment in `VIRTUAL_ENV`, then that of "
     "`/usr/local/cuda/lib64`",
     "src/comm/nccl_library.cc", user},
    {"OCTETRUN_SINGLE", "`0` or `1`",
     "`1`: each process that `torchrun`, `accelerate`, `deepspeed` or `srun` without PMIx started is meant "
     "to "
     "be a run of its own, or to start mpirun. Not set or `0`: such processes are refused",
     "src/comm/launchers.cc", user},
    {"OCTETRUN_MPIRUN_FILE", "a file",
     "the mpirun that `launch/mpirun` calls. Not set: the first on `PATH` that belongs to the MPI that the "
     "program was built with (`trainer --version`)",
     "launch/mpirun", user},
    {"OCTETRUN_START_TIMEOUT", "seconds, at least 1",
     "that ranks have for MPI's start and for opening a channel, after which the job ends with 75. Not set: "
     "600",
     "src/comm/mpi_start.cc", user},
    {"OCTETRUN_MEMORY_FOLDER", "a folder of each host",
     "where checkpoints in memory lie (`memory_checkpoint_steps`): a memory file system, or a disk of the "
     "host's own. Not set: /dev/shm",
     "src/checkpoint/memory_folder.cc", user},
    {"OCTETRUN_MEMORY_KEEP", "seconds",
     "that checkpoints in memory stay when their run has ended and nobody starts it again. Not set: 900",
     "src/checkpoint/memory_folder.cc", user},
    {"OCTETRUN_OVERLAP", "`always`",
     "communication runs beside computation on CPUs too where no core is spare. Not set: only where one is",
     "src/comm/overlap.cc", user},

    {"OCTETRUN_LAUNCHER", "set by `launch/mpirun`",
     "signals reach the ranks, so the program does not warn that they kill; `terminal`: standard output "
     "reaches "
     "a terminal, so control characters are shown as `\\x1B`",
     "src/comm/launchers.cc", launcher},
    {"OCTETRUN_SUPERVISED", "set by `launch/supervise`",
     "a name for this start of a job: rank 0 writes to `octet.progress` in `output_dir`, after every step, "
     "how far the "
     "run has come",
     "src/report/progress.cc", launcher},
    {"OCTETRUN_SURVIVORS", "a number of ranks",
     "set by `launch/supervise --survive`: where ranks on CPUs end, the others go on in their processes, as "
     "few as "
     "these. Not set: an ended rank ends the job",
     "src/comm/process.cc", launcher},
    {"OCTETRUN_BUILD", "a folder",
     "the build that the scripts under `launch` and `tests` make and use. Not set: `build`", "launch/build",
     launcher},

    {"OCTETRUN_SHARE_GPUS", "`0` or `1`",
     "`1`: several ranks of a node may share a GPU, dealt out in turn (four ranks and two GPUs: 0, 1, 0, 1). "
     "It is slower, "
     "and NCCL refuses it. Not set or `0`: they may not",
     "src/runtime/session.cc", test},
    {"OCTETRUN_MEMORY_LIMIT", "MiB, at least 1",
     "each rank chooses its sizes and how it stores its states as if its device had so much left for it. Not "
     "set: "
     "what the "
     "device has",
     "src/train/fit.cc", test},
    {"OCTETRUN_RECORDING", "`on` or `off`",
     "`off`: a GPU gets each pass of decoding kernel by kernel. Not set or `on`: passes that are alike are "
     "recorded once and replayed",
     "src/device/recording.cc", test},
    {"OCTETRUN_LONE_GEMM", "`always` or `never`",
     "`always`: on a CPU too, GEMMs of very few tokens and the small ops around them are one op. `never`: "
     "nowhere. Not set: on a GPU, where they are one kernel",
     "src/ops/lone_gemm.cc", test},
    {"OCTETRUN_LONE_CHAIN", "`never`",
     "`never`: such GEMMs that follow each other are a kernel each. Not set: on Hopper, those of one token "
     "in E4M3 are one kernel, from attention's output to the next block's queries, keys and values",
     "src/ops/lone_chain.cc", test},
    {"OCTETRUN_GROUPED_GEMM", "`always` or `never`",
     "`always`: on a CPU too, what a mixture's experts multiply is one op. `never`: each expert has products "
     "of its own, for which the host looks who has tokens. Not set: one kernel on a GPU, in bf16 and FP8; of "
     "many tokens on Hopper alone",
     "src/ops/grouped_gemm.cc", test},
    {"OCTETRUN_DIRECT_SUMS", "`on` or `off`",
     "`off`: sums over GPUs that hold a model together are collectives. Not set or `on`: where such GPUs "
     "write into each other's memory, short ones are a kernel each, and passes of decoding are recorded with "
     "them",
     "src/comm/carriers.cc", test},
    {"OCTETRUN_EARLY_LAUNCH", "`on` or `off`",
     "`off`: on a GPU no kernel begins before the one in front of it has ended. Not set or `on`: those of "
     "decoding that can do",
     "src/ops/cuda/early_launch.cc", test},
    {"OCTETRUN_COMPUTE_WORKER", "anything",
     "on CPUs computation runs on a thread of its own, in the order of its stream, as on a GPU. Not set: in "
     "line",
     "src/runtime/session.cc", test},
    {"OCTETRUN_FAILPOINT", "`NAME` or `NAME:COUNT`",
     "the process kills itself (SIGKILL) when it passes this point of saving a checkpoint, the COUNT-th "
     "time; "
     "`full_disk`: folders that hold a file disk-is-full have no room",
     "src/checkpoint/failpoint.cc", test},
    {"OCTETRUN_DELAYS", "milliseconds, 0 to 1000",
     "up to that long goes by before one of 32 collectives is enqueued, and before one of 32 begins on its "
     "stream, drawn "
     "by every rank for itself",
     "src/comm/delays.cc", test},
    {"OCTETRUN_BREAK_STEP", "`gpu:N`, `memory:N` or `nccl:N`",
     "the last rank fails at its N-th collective: by a kernel that faults, by a reservation that no device "
     "has room for, or "
     "by an exchange that NCCL reports an error of",
     "src/comm/broken_step.cc", test},
    {"OCTETRUN_BREAK_CARRIER", "`peer-open` or `peer-pattern`",
     "plays a host on which GPUs cannot copy into each other's memory: it is not shared, or a link spoils "
     "bytes",
     "src/comm/carriers.cc", test},
    {"OCTETRUN_FLIPS", "`RANK:STEP:KIND:DRAW`, several with commas",
     "with `sdc_steps`, a bit of that rank is inverted in that step, once, which DRAW chooses: of its "
     "`parameters`, `masters`, `moments`, `frozen` weights, `gradients`, or of `messages` that it receives",
     "src/train/flips.cc", test},
    {"OCTETRUN_REMOVE_COMMUNICATION", "anything",
     "ranks exchange no values, so that a step's time without communication can be measured. Results are "
     "wrong, and the "
     "program says so",
     "src/comm/process.cc", test},
    {"OCTETRUN_TEST_SWEEPS", "anything", "tests of GEMMs on AMX take thousands of shapes. Not set: a few",
     "tests/ops/gemm_amx_test.cc", test},
    {"OCTETRUN_SOAK_STEPS", "a number", "steps of the soak test of stores. Not set: a few",
     "tests/store/soak_test.cc", test},
    {"OCTETRUN_STRICT_TOKENS", "a number",
     "tokens that the test of strict answers samples in each precision. Not set: 1,000",
     "tests/generate/strict_test.cc", test},
    {"OCTETRUN_TEST_CARRIER", "`peer`, `nccl` or `host`",
     "the carrier that comm_mpi_tests put to the test between GPUs", "tests/comm/comm_mpi_test.cc", test},
    {"OCTETRUN_TEST_SUMS", "`nccl`",
     "comm_mpi_tests put NCCL's own sums to the test as well, with a GPU for each rank. Not set: they do not",
     "tests/comm/comm_mpi_test.cc", test},
    {"OCTETRUN_TEST_DEVICE", "`cuda`",
     "comm_mpi_tests run on GPUs, which ranks take in turn. Not set: on CPUs", "tests/comm/comm_mpi_test.cc",
     test},
    {"OCTETRUN_WRITE_DOCS", "anything",
     "tests of pages that are generated write them instead of comparing them", "tests/config/schema_test.cc",
     test},

    {"TMPDIR", "a folder", "lists and columns that are too long for memory lie there. Not set: `/tmp`",
     "src/base/long_array.cc", foreign},
    {"HF_HUB_CACHE", "a folder",
     "where Hugging Face's libraries keep models and data sets, which are found there by their names on the "
     "hub. Not set: `HUGGINGFACE_HUB_CACHE`, else `hub` in `HF_HOME`, else `huggingface/hub` in "
     "`XDG_CACHE_HOME`, else in `.cache` of `HOME`",
     "src/base/hub_cache.cc", foreign},
    {"HUGGINGFACE_HUB_CACHE", "a folder", "see `HF_HUB_CACHE`", "src/base/hub_cache.cc", foreign},
    {"HF_HOME", "a folder", "see `HF_HUB_CACHE`", "src/base/hub_cache.cc", foreign},
    {"XDG_CACHE_HOME", "a folder", "see `OCTETRUN_CACHE` and `HF_HUB_CACHE`",
     "src/ops/gemm_autotune_cache.cc", foreign},
    {"HOME", "a folder", "see `OCTETRUN_CACHE` and `HF_HUB_CACHE`", "src/ops/gemm_autotune_cache.cc",
     foreign},
    {"PATH", "folders", "`trainer supervise` looks there for the program that it is to start",
     "src/supervise/command.cc", foreign},
    {"LD_LIBRARY_PATH", "the system's",
     "handed on to the process that removes checkpoints in memory of a run that is gone",
     "src/checkpoint/memory_folder.cc", foreign},
    {"VIRTUAL_ENV", "a folder", "see `OCTETRUN_NCCL_LIBRARY`", "src/comm/nccl_library.cc", foreign},
    {"CUDA_VISIBLE_DEVICES", "numbers or names of GPUs",
     "the driver's own: which GPUs a process sees, and in which order", "src/device/gpu_answers.cc", foreign},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "a number",
     "the driver's own. The program sets it to 32, and says so where it replaces another value: streams that "
     "share a "
     "connection stand behind each other, and communication then behind computation",
     "src/device/gpus.cc", foreign},
    {"OMP_NUM_THREADS", "a number",
     "OpenMP's own: threads that a rank computes with on CPUs, and for what is left to the CPU on GPUs. Not "
     "set: the cores of its host are divided among its ranks",
     "src/device/cpu/threads.cc", foreign},
    {"OMP_WAIT_POLICY", "`passive` or `active`",
     "OpenMP's own: whether threads that wait for each other sleep or spin. Not set: they spin, and sleep soon "
     "if the cores turn out to be shared with other work",
     "src/device/cpu/shared_cores.cc", foreign},
    {"GOMP_SPINCOUNT", "a number", "that of GNU's OpenMP: how often a waiting thread looks before it sleeps",
     "src/device/cpu/shared_cores.cc", foreign},
    {"OMP_STACKSIZE", "a size, such as `512K`",
     "OpenMP's own: stack of each of these threads. Not set: as `ulimit -s` says",
     "src/device/cpu/threads.cc", foreign},
    {"OMPI_COMM_WORLD_SIZE", "set by Open MPI", "there are so many ranks", "src/comm/launchers.cc", foreign},
    {"OMPI_COMM_WORLD_RANK", "set by Open MPI", "this rank", "src/comm/launchers.cc", foreign},
    {"PMI_SIZE", "set by MPICH and Slurm", "there are so many ranks", "src/comm/launchers.cc", foreign},
    {"PMI_RANK", "set by MPICH and Slurm", "this rank", "src/comm/launchers.cc", foreign},
    {"PMIX_RANK", "set by PMIx", "an MPI launcher started this process", "src/comm/launchers.cc", foreign},
    {"OMPI_MCA_hwloc_base_binding_policy", "Open MPI's",
     "how cores are bound: where it is set the program leaves them so", "src/device/cpu/machine.cc", foreign},
    {"OMPI_MCA_hwloc_base_cpu_list", "Open MPI's", "likewise", "src/device/cpu/machine.cc", foreign},
    {"OMPI_MCA_hwloc_base_cpu_set", "Open MPI's", "likewise", "src/device/cpu/machine.cc", foreign},
    {"PRTE_MCA_hwloc_default_binding_policy", "Open MPI's", "likewise", "src/device/cpu/machine.cc", foreign},
    {"RANK", "set by launchers of PyTorch", "processes that do not know each other are refused",
     "src/comm/launchers.cc", foreign},
    {"WORLD_SIZE", "set by launchers of PyTorch", "likewise", "src/comm/launchers.cc", foreign},
    {"NODE_RANK", "set for LLaMA-Factory", "hosts that would each train alone are refused",
     "src/comm/launchers.cc", foreign},
    {"NNODES", "set for LLaMA-Factory", "likewise", "src/comm/launchers.cc", foreign},
    {"PET_NODE_RANK", "set by operators of Kubernetes", "likewise", "src/comm/launchers.cc", foreign},
    {"PET_NNODES", "set by operators of Kubernetes", "likewise", "src/comm/launchers.cc", foreign},
    {"LOCAL_RANK", "set by launchers of PyTorch", "likewise", "src/comm/launchers.cc", foreign},
    {"LOCAL_WORLD_SIZE", "set by torchrun", "likewise, below an MPI launcher too, where it is more than one",
     "src/comm/launchers.cc", foreign},
    {"LOCAL_SIZE", "set by deepspeed", "likewise; which launcher it was", "src/comm/launchers.cc", foreign},
    {"CROSS_SIZE", "set by deepspeed", "likewise", "src/comm/launchers.cc", foreign},
    {"ACCELERATE_MIXED_PRECISION", "set by accelerate", "likewise", "src/comm/launchers.cc", foreign},
    {"ACCELERATE_DYNAMO_BACKEND", "set by accelerate", "likewise", "src/comm/launchers.cc", foreign},
    {"TORCHELASTIC_RUN_ID", "set by torchrun", "likewise", "src/comm/launchers.cc", foreign},
    {"SLURM_PROCID", "set by Slurm", "processes of a step without PMIx are refused", "src/comm/launchers.cc",
     foreign},
    {"SLURM_STEP_NUM_TASKS", "set by Slurm", "likewise", "src/comm/launchers.cc", foreign},
};

struct Section {
  VariableUse use;
  const char* title;
};
constexpr Section kSections[] = {{user, "For runs"},
                                 {launcher, "Between scripts and the program"},
                                 {test, "For tests and measurements"},
                                 {foreign, "Of others"}};

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
    // Capitals stand for something else: `RANK:STEP`.
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
  throw Error({.what = std::string("the environment variable ") + variable.name + " says what it cannot",
               .expected = expected,
               .found = std::string(variable.name) + "=" + text,
               .where = "environment",
               .fix = "set it to one of these, or unset it",
               .code = ExitCode::usage});
}

// Of the variables whose row asks for seconds or a number.
void require_number(const EnvironmentVariable& variable, const std::string& text) {
  const std::string_view values = variable.values;
  const bool seconds = values.starts_with("seconds");
  if (text.empty() || (!seconds && !values.starts_with("a number"))) return;
  const double least = values.ends_with("at least 1") ? 1 : 0;
  double number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = seconds || number == std::floor(number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least && whole) return;
  throw Error({.what = std::string("the environment variable ") + variable.name + " says what it cannot",
               .expected = variable.values,
               .found = std::string(variable.name) + "=" + text,
               .where = "environment",
               .fix = "set it to such a number, or unset it",
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
      "Environment variables of the program. A key of the configuration is set by OCTET_<KEY> "
      "(OCTET_SEED=3), below what "
      "files and\nthe command line say.\n";
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
      "# Environment variables\n\nThis page is generated from the table of variables, which `trainer --help "
      "environment` "
      "prints. Those of the program begin with\n`OCTETRUN_`; one that begins so and is not listed here ends "
      "a command "
      "before it starts. `launch/mpirun` passes them on to all hosts.\nA key of the configuration is set by "
      "`OCTET_<KEY>` (`OCTET_SEED=3`), below what files and the command line "
      "say\n([config.md](config.md)).\n";
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
