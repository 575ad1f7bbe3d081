// Environment variables that guides of other trainers set. Each is explained once: its equivalent here, that
// it has no effect, or that it is harmful. None is applied, because only keys decide the numbers of a run.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "octet/config/derive.h"
#include "rules.h"

namespace octet::config {
namespace {

// Placeholders for the numbers of ranks and hosts, which notes_of() replaces.
constexpr std::string_view kRanks = "as many ranks as mpirun -np says";
constexpr std::string_view kHosts = "the hosts that mpirun's hostfile names";
constexpr const char* kUnset = "unset";  ///< advice that names the variables

struct Foreign {
  const char* name;   ///< of a variable; a name with '*' at its end is a family with one answer
  const char* value;  ///< the row applies to this value; "": to any other
  const char* means;  ///< text after "environment NAME=VALUE: "
  const char* mend;   ///< advice; "": none
};

constexpr const char* kScores =
    "does nothing: attention never forms the matrix of scores, and has no other implementation";
constexpr const char* kScoresAsEver =
    "is what always happens here: attention never forms the matrix of scores";
constexpr const char* kMemory =
    "does nothing: memory is reserved once, before the first step, and is never fragmented";

// Rows of single names precede their family, and rows of a value precede rows of any value.
constexpr Foreign kForeign[] = {
    {"NVTE_FP8_DPA_BWD", "0",
     "is what always happens here: attention computes in bf16 or fp32, in the backward pass too", ""},
    {"NVTE_FP8_DPA_BWD", "",
     "does nothing: attention computes in bf16 or fp32, in the backward pass too; in FP8 it is not built",
     kUnset},
    {"NVTE_APPLY_QK_LAYER_SCALING", "0",
     "is what always happens here: scores are computed in fp32, without scaling by layer", ""},
    {"NVTE_APPLY_QK_LAYER_SCALING", "",
     "does nothing: scores are computed in fp32 and need no scaling by layer", kUnset},
    {"NVTE_FLASH_ATTN", "1", kScoresAsEver, ""},
    {"NVTE_FLASH_ATTN", "", kScores, kUnset},
    {"NVTE_FUSED_ATTN", "1", kScoresAsEver, ""},
    {"NVTE_FUSED_ATTN", "", kScores, kUnset},
    {"NVTE_*", "",
     "does nothing: Transformer Engine is not used here, and this program reads none of its variables",
     kUnset},
    {"WORLD_SIZE", "", "does nothing: this run has {ranks}, on all hosts together", ""},
    {"RANK", "", "does nothing: MPI numbers the ranks, and this run has {ranks}", ""},
    {"LOCAL_RANK", "",
     "does nothing: MPI numbers the ranks, each takes a GPU of its host, and this run has {ranks}", ""},
    {"LOCAL_WORLD_SIZE", "", "does nothing: this run has {ranks}, on {hosts}", ""},
    {"NODE_RANK", "", "does nothing: this run has {hosts}, in the order of mpirun's hostfile", ""},
    {"NNODES", "", "does nothing: this run has {hosts}", ""},
    {"NPROC_PER_NODE", "", "does nothing: this run has {ranks}, on {hosts}", ""},
    {"GPU_NUM", "", "does nothing: a rank computes on one GPU, and this run has {ranks}", ""},
    {"FORCE_TORCHRUN", "", "does nothing: mpirun starts the ranks, and this run has {ranks}", ""},
    {"MASTER_*", "", "does nothing: MPI connects the ranks, and this run has {hosts}", ""},
    {"GLOO_*", "",
     "does nothing: MPI connects the ranks; Open MPI chooses a network by --mca btl_tcp_if_include NAME", ""},
    {"NCCL_*", "", "is a variable of NCCL, which reads it if it carries data between GPUs (gpu_transport)",
     ""},
    {"PYTORCH_CUDA_ALLOC_CONF", "", kMemory, kUnset},
    {"PYTORCH_ALLOC_CONF", "", kMemory, kUnset},
    {"TORCH_*", "", "does nothing: PyTorch is not used here", kUnset},
    {"CUDA_LAUNCH_BLOCKING", "0",
     "is what always happens: kernels on a GPU follow each other without waiting", ""},
    {"CUDA_LAUNCH_BLOCKING", "", "harms: every kernel on a GPU waits for the previous kernel", kUnset},
    {"HSA_*", "",
     "is a variable of ROCm and does nothing: this program computes on CPUs and on NVIDIA's GPUs", kUnset},
    {"WANDB_*", "", "does nothing: nothing is uploaded, and trainer_log.jsonl has every figure", ""},
    {"TQDM_*", "", "does nothing: the bar is drawn on a terminal only", ""},
    {"TOKENIZERS_PARALLELISM", "", "does nothing: preprocessing_num_workers says how many threads tokenise",
     ""},
};

// Returns the first row for a variable.
const Foreign* find_foreign(const std::string& name, const std::string& value) {
  const auto* found = std::ranges::find_if(kForeign, [&](const Foreign& foreign) {
    std::string_view pattern = foreign.name;
    const bool family = pattern.ends_with('*');
    if (family) pattern.remove_suffix(1);
    return (family ? name.starts_with(pattern) : name == pattern) &&
           (*foreign.value == '\0' || value == foreign.value);
  });
  return found == std::end(kForeign) ? nullptr : found;
}

std::string replaced(std::string text, std::string_view mark, std::string_view by) {
  const std::size_t at = text.find(mark);
  return at == std::string::npos ? text : text.replace(at, mark.size(), by);
}

class EnvironmentRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    fp8_reductions();
    statistics();
    connections();
    precision();
    core();
    timeout();
    seed();
    table();
  }

 private:
  using Set = std::map<std::string, std::string>;  ///< variables by name

  /// Returns the set variables with these names. table() then skips them.
  Set take(std::initializer_list<const char*> names) {
    Set set;
    for (const char* name : names) {
      answered_.insert(name);
      const auto found = options_.environment.find(name);
      if (found != options_.environment.end()) set.insert(*found);
    }
    return set;
  }
  static bool off(const Set& set) {
    return std::ranges::all_of(set, [](const auto& variable) {
      return variable.second.empty() || variable.second == "0" || variable.second == "false";
    });
  }
  static std::string names(const Set& set) {
    std::string all;
    for (const auto& [name, value] : set) all += (all.empty() ? "" : ", ") + name;
    return all;
  }
  void say(const Set& set, const std::string& means, const std::string& mend = "") {
    std::string all;
    for (const auto& [name, value] : set) all += (all.empty() ? "" : ", ") + name + "=" + value;
    const std::string to_do = mend.ends_with(kUnset) ? mend + " " + names(set) : mend;
    note("environment " + all + ": " + means + (to_do.empty() ? "" : "; to do: " + to_do));
  }

  // Transformer Engine has no such variable, but a guide sets it for faster reductions.
  void fp8_reductions() {
    const Set set = take({"NVTE_FP8_ALLREDUCE"});
    if (set.empty()) return;
    const std::string decides = said("reduce_dtype") + " (" + at("reduce_dtype") + ")";
    const std::string travels = "gradients are sent in " + c_.reduce_dtype;
    if (off(set)) {
      say(set, "does nothing: " + decides + " decides, and " + travels);
    } else if (c_.reduce_dtype == "fp8") {
      say(set, "is what " + decides + " does: gradients of matrices are sent in FP8, and summed in fp32");
    } else if (c_.deterministic == "strict") {
      say(set,
          "does nothing: " + travels + ", as 'deterministic: strict' (" + at("deterministic") + ") needs",
          kUnset);
    } else {
      say(set,
          "does nothing, and Transformer Engine does not read it: " + decides + " decides, and " + travels,
          set_to("reduce_dtype", "fp8") + ", which sends gradients of matrices in FP8, and " + kUnset);
    }
  }

  // Transformer Engine's debug switch prints FP8 statistics, which the log of this program has.
  void statistics() {
    const Set set = take({"NVTE_DEBUG", "NVTE_DEBUG_LEVEL"});
    if (set.empty()) return;
    const std::string told = "fp8_statistics: " + c_.fp8_statistics + " (" + at("fp8_statistics") + ")";
    if (off(set)) {
      say(set, "does nothing: " + told + " sets the FP8 statistics in the log");
    } else if (!c_.fp8) {
      say(set, "does nothing: there are statistics of FP8 only with fp8: true",
          set_to("fp8", "true") + ", or " + kUnset);
    } else if (c_.fp8_statistics == "none") {
      say(set, "does nothing: " + told + " keeps statistics of FP8 out of the log",
          set_to("fp8_statistics", "layers") + ", or " + kUnset);
    } else {
      say(set,
          "is what " + told + " does: rows of trainer_log.jsonl have amax, scale and the saturated share");
    }
  }

  // prepare_gpu_environment() sets it to 32 before the driver reads it.
  void connections() {
    const Set set = take({"CUDA_DEVICE_MAX_CONNECTIONS"});
    if (set.empty()) return;
    if (c_.device == "cpu") {
      say(set, "does nothing: this run computes on CPUs", kUnset);
    } else if (set.begin()->second == "32") {
      say(set, "is what this program sets for GPUs");
    } else {
      say(set,
          "would make streams of a GPU share connections, so that communication waits for computation; the "
          "program uses 32 instead",
          kUnset);
    }
  }

  void precision() {
    const Set set = take({"ACCELERATE_MIXED_PRECISION"});
    if (set.empty()) return;
    const std::string asked = set.begin()->second;
    const std::string computed = c_.fp8 ? "fp8" : computes_in_bf16(c_) ? "bf16" : "no";
    if (asked == computed) return say(set, "agrees with the keys bf16 and fp8");
    say(set,
        std::string("does nothing: the keys bf16 and fp8 decide, and this run computes in ") +
            (computed == "no" ? "fp32" : computed),
        asked == "fp8" || asked == "bf16" ? set_to(asked, "true") + ", or " + kUnset : kUnset);
  }

  void core() {
    const Set set = take({"FP8_BACKEND"});
    if (set.empty()) return;
    say(set,
        c_.fp8 ? "does nothing: FP8 comes from this program's own core, by fp8_recipe: " + c_.fp8_recipe
               : "does nothing: fp8: true (now " + at("fp8") + ") asks for FP8",
        kUnset);
  }

  void timeout() {
    const Set set = take({"NCCL_TIMEOUT"});
    if (set.empty()) return;
    const std::string own = number_text(c_.ddp_timeout), asked = set.begin()->second;
    const auto seconds = read_number(asked);
    const std::string means = "does nothing, and NCCL does not read it: ddp_timeout (" + at("ddp_timeout") +
                              ") is " + own + " seconds";
    if (seconds && *seconds == c_.ddp_timeout) return say(set, means);
    say(set, means,
        seconds && *seconds >= 1 ? set_to("ddp_timeout", number_text(*seconds)) + ", or " + kUnset : kUnset);
  }

  void seed() {
    const Set set = take({"PYTHONHASHSEED"});
    if (!set.empty()) say(set, "does nothing: seed decides, and is " + std::to_string(c_.seed));
  }

  void table() {
    std::map<const Foreign*, Set> set;
    for (const auto& [name, value] : options_.environment) {
      if (answered_.contains(name)) continue;
      if (const Foreign* foreign = find_foreign(name, value)) set[foreign][name] = value;
    }
    for (const Foreign& foreign : kForeign) {
      const auto found = set.find(&foreign);
      if (found == set.end()) continue;
      say(found->second, replaced(replaced(foreign.means, "{ranks}", kRanks), "{hosts}", kHosts),
          foreign.mend);
    }
  }

  std::set<std::string> answered_;
};

std::string count(std::int64_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace

void apply_environment_rules(Resolved& resolved, const LoadOptions& options) {
  EnvironmentRules(resolved, options).apply();
}

Strings notes_of(const Resolved& resolved, std::int64_t ranks, std::int64_t hosts) {
  Strings notes = resolved.notes;
  for (std::string& note : notes) {
    if (!note.starts_with("environment ")) continue;
    note = replaced(note, kRanks, count(ranks, "rank") + " (mpirun -np N starts N)");
    note = replaced(note, kHosts, count(hosts, "host") + " (mpirun's hostfile names them)");
  }
  return notes;
}

}  // namespace octet::config
