// Environment variables: OCTET_<KEY> sets a key below every file; those that guides for other trainers set
// are answered with what they mean here.
#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "octet/base/strings.h"
#include "settings.h"

extern char** environ;

namespace octet::config {
namespace {

struct Foreign {
  const char* name;   ///< of a variable; ending in '*' of a family, which is answered once
  const char* value;  ///< the note is made for this value; "" for any
  const char* note;
};

constexpr Foreign kForeign[] = {
    {"NVTE_FP8_DPA_BWD", "1", "attention computes in bf16 or fp32"},
    {"NVTE_APPLY_QK_LAYER_SCALING", "1", "scores are computed in fp32 and need no scaling by layer"},
    {"NVTE_FLASH_ATTN", "", "attention never forms the matrix of scores"},
    {"NVTE_FUSED_ATTN", "", "attention never forms the matrix of scores"},
    {"NVTE_FP8_ALLREDUCE", "", ""},  // apply_rules() answers it
    {"NVTE_*", "", "Transformer Engine is not used here, and what is set for it does nothing"},
    {"ACCELERATE_MIXED_PRECISION", "", "bf16 and fp8 decide"},
    {"FP8_BACKEND", "", "fp8 and fp8_recipe decide"},
    {"WORLD_SIZE", "", "does nothing: there are as many ranks as mpirun -np says, on all hosts together"},
    {"RANK", "", "does nothing: MPI numbers the ranks"},
    {"LOCAL_RANK", "", "does nothing: MPI numbers the ranks, and each takes a GPU of its host"},
    {"NODE_RANK", "", "does nothing: the order of hosts is that of mpirun's hostfile"},
    {"NNODES", "", "does nothing: mpirun's hostfile names the hosts"},
    {"NPROC_PER_NODE", "", "does nothing: mpirun -np says how many ranks there are, its hostfile where"},
    {"GPU_NUM", "", "does nothing: a rank computes on one GPU, and mpirun -np says how many ranks there are"},
    {"FORCE_TORCHRUN", "", "does nothing: mpirun starts the ranks"},
    {"MASTER_*", "", "does nothing: MPI connects the ranks, and mpirun's hostfile names the hosts"},
    {"NCCL_*", "", "is NCCL's, which reads it where it carries bytes between GPUs (gpu_transport)"},
    {"PYTORCH_CUDA_ALLOC_CONF", "",
     "does nothing: memory is reserved once, before the first step, and never cut up"},
    {"PYTORCH_ALLOC_CONF", "",
     "does nothing: memory is reserved once, before the first step, and never cut up"},
    {"CUDA_LAUNCH_BLOCKING", "1", "harms: every kernel on a GPU waits for the one before; unset it"},
    {"HSA_*", "", "is ROCm's and does nothing: this program computes on CPUs and on NVIDIA's GPUs"},
};

// The first row that speaks of a variable: rows of one name stand before those of its family.
const Foreign* find_foreign(const std::string& name, const std::string& value) {
  for (const Foreign& foreign : kForeign) {
    std::string_view pattern = foreign.name;
    const bool family = pattern.ends_with('*');
    if (family) pattern.remove_suffix(1);
    if (family ? !name.starts_with(pattern) : name != pattern) continue;
    return *foreign.value == '\0' || value == foreign.value ? &foreign : nullptr;
  }
  return nullptr;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t sign = text.find('=');
    if (sign != std::string::npos) environment[text.substr(0, sign)] = text.substr(sign + 1);
  }
  return environment;
}

void translate_environment(const Environment& environment, Sources& sources) {
  const std::string prefix = "OCTET_";
  Strings names;
  for (const auto& name : field_names()) names.push_back(prefix + upper(name));
  for (const auto& [variable, text] : environment) {
    if (!variable.starts_with(prefix)) continue;
    const auto found = std::find(names.begin(), names.end(), variable);
    if (found == names.end()) {
      const std::string near = nearest_name(variable, names);
      if (!near.empty()) {
        sources.note("the environment variable " + variable + " is not a key; did you mean " + near + "?");
      }
      continue;
    }
    const std::string& key = field_names()[static_cast<std::size_t>(found - names.begin())];
    sources.environment.add(key, parse_argument(text, "environment " + variable),
                            {"environment " + variable, key});
  }
  std::map<const Foreign*, std::string> set;
  for (const auto& [variable, text] : environment) {
    if (const Foreign* foreign = find_foreign(variable, text); foreign != nullptr && *foreign->note != '\0') {
      std::string& all = set[foreign];
      all += (all.empty() ? "" : ", ") + variable + "=" + text;
    }
  }
  for (const Foreign& foreign : kForeign) {
    if (const auto found = set.find(&foreign); found != set.end())
      sources.note("environment " + found->second + ": " + foreign.note);
  }
}

}  // namespace octet::config
