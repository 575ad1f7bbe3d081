#include "octet/setup/freezing.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/model/build.h"

namespace octet::setup {
namespace {

/// Names of modules as people write them.
struct Modules {
  std::set<std::string> of_blocks;  ///< "self_attn", "input_layernorm"
  std::set<std::string> others;     ///< "embed_tokens", "norm"
};

std::string first_word(const std::string& name) {
  return name.substr(0, name.find('.'));
}

Modules modules_of(const model::Architecture& architecture) {
  model::Architecture plain = architecture;
  plain.tuning = {};
  const std::string blocks = architecture.tensor_prefix + "layers.";
  Modules modules;
  for (const std::string& name : model::tensor_names(model::build_layout(plain))) {
    if (name.starts_with(blocks)) {
      const std::string in_block = name.substr(name.find('.', blocks.size()) + 1);
      modules.of_blocks.insert(first_word(in_block));
    } else {
      const std::string module = name.substr(0, name.rfind('.'));
      modules.others.insert(module.substr(module.rfind('.') + 1));
    }
  }
  return modules;
}

void require_known(const std::string& key, const std::string& module, const std::set<std::string>& known) {
  if (known.contains(module)) return;
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  const std::string near = nearest_name(module, {known.begin(), known.end()});
  throw Error({.what = "the model has no module for " + key + " with the name '" + module + "'",
               .expected = all,
               .found = module,
               .where = "configuration key " + key,
               .fix = near.empty() ? "give one of these" : "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

}  // namespace

bool trains_parts(const config::TuningKeys& config) {
  return config.finetuning_type == "freeze";
}

model::Tuning freeze_tuning(const config::TuningKeys& config, const model::Architecture& architecture) {
  const Modules modules = modules_of(architecture);
  const std::int64_t layers = architecture.layers, wanted = config.freeze_trainable_layers;
  const std::int64_t first = wanted > 0 ? std::max<std::int64_t>(0, layers - wanted) : 0;
  const std::int64_t last = wanted > 0 ? layers : std::min(-wanted, layers);
  std::set<std::string> trained;
  for (const std::string& module : config.freeze_trainable_modules) {
    if (module != "all") require_known("freeze_trainable_modules", module, modules.of_blocks);
    for (std::int64_t i = first; i < last; ++i) {
      const std::string block = architecture.tensor_prefix + "layers." + std::to_string(i);
      trained.insert(module == "all" ? block : block + "." + module);
    }
  }
  const std::string head = architecture.head_name.substr(0, architecture.head_name.rfind('.'));
  for (const std::string& module : config.freeze_extra_modules) {
    require_known("freeze_extra_modules", module, modules.others);
    trained.insert(module == "lm_head" ? head : architecture.tensor_prefix + module);
  }
  if (trained.empty()) {
    throw Error(
        {.what = "nothing would be trained",
         .expected = "blocks with freeze_trainable_layers, or modules with freeze_extra_modules",
         .found = "freeze_trainable_layers: " + std::to_string(wanted),
         .where =
             "configuration keys freeze_trainable_layers, freeze_trainable_modules, freeze_extra_modules",
         .fix = "raise freeze_trainable_layers, or name modules in freeze_extra_modules",
         .code = ExitCode::usage});
  }
  model::Tuning tuning;
  tuning.only = std::move(trained);
  return tuning;
}

}  // namespace octet::setup
