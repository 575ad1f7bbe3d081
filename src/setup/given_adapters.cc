// The adapters of a configuration or a command line, and the use of each.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/setup/adapters.h"

namespace octet::setup {

std::vector<std::string> adapter_folders(const std::string& names) {
  std::vector<std::string> folders;
  for (const std::string& piece : split(names, ',')) {
    const std::string folder(trim(piece));
    if (!folder.empty()) {
      folders.push_back(folder);
      continue;
    }
    throw Error({.what = "a list of adapters has an empty name",
                 .expected = "folders, with a comma between two",
                 .found = "'" + names + "'",
                 .where = "adapter_name_or_path",
                 .fix = "remove the extra comma",
                 .code = ExitCode::usage});
  }
  return folders;
}

GivenAdapters given_adapters(const config::TuningKeys& config) {
  GivenAdapters given;
  if (!trains_adapters(config) || !config.adapter_name_or_path) return given;
  given.added = adapter_folders(*config.adapter_name_or_path);
  if (config.create_new_adapter) return given;
  given.continued = given.added.back();
  given.added.pop_back();
  return given;
}

bool is_reward_adapter(const std::string& folder) {
  const AdapterWish wish = read_adapter_folder(folder);
  return std::ranges::find(wish.whole, "score") != wish.whole.end();
}

std::vector<runtime::AddedAdapter> added_adapters(const std::vector<std::string>& folders,
                                                  const model::Architecture& base) {
  std::vector<runtime::AddedAdapter> added;
  for (const std::string& folder : folders) {
    model::Architecture architecture = base;
    architecture.tuning = tuning_of(read_adapter_folder(folder), base);
    added.push_back({.folder = folder, .architecture = std::move(architecture)});
  }
  return added;
}

NamedModel named_model(const std::string& path, const std::vector<std::string>& adapters) {
  NamedModel model{.folder = path, .adapters = adapters};
  const std::string description = path + "/adapter_config.json";
  if (path_exists(path + "/config.json") || !path_exists(description)) return model;
  model.folder = json_string(read_json(description), "base_model_name_or_path", "", description);
  model.adapters.insert(model.adapters.begin(), path);
  if (path_exists(model.folder + "/config.json")) return model;
  throw Error({.what = "the base model of the adapter does not exist",
               .expected = "base_model_name_or_path: a folder with config.json, weights and tokenizer",
               .found = model.folder.empty() ? "no name" : model.folder,
               .where = description,
               .fix = "fetch the base and name its folder: trainer generate BASE --adapter " + path +
                      ", trainer export " + path + " OUT --merge --model BASE",
               .code = ExitCode::usage});
}

// Reads the adapter_config.json of PEFT. Every key is honoured, known to change nothing, or refused by name.

namespace {

/// An unsupported key of adapter_config.json that changes the result of the adapter or its training.
struct Unbuilt {
  const char* key;
  const char* name;
};
constexpr std::array kUnbuilt = {
    Unbuilt{"use_qalora", "QA-LoRA"},
    Unbuilt{"use_bdlora", "BD-LoRA"},
    Unbuilt{"lora_bias", "a bias in B"},
    Unbuilt{"fan_in_fan_out", "weights stored as [in, out]"},
    Unbuilt{"layer_replication", "layers that are used several times"},
    Unbuilt{"layers_to_transform", "adapters in some layers only"},
    Unbuilt{"exclude_modules", "modules that are left out by name"},
    Unbuilt{"trainable_token_indices", "training of single tokens"},
    Unbuilt{"alora_invocation_tokens", "activated LoRA"},
    Unbuilt{"arrow_config", "Arrow"},
    Unbuilt{"kasa_config", "KaSA"},
    Unbuilt{"velora_config", "VeLoRA"},
    Unbuilt{"monteclora_config", "MonteCLoRA"},
    Unbuilt{"megatron_config", "layers of Megatron"},
    Unbuilt{"enable_lora", "adapters in parts of a fused module"},
};

constexpr auto kHonoured = std::to_array<std::string_view>({
    "alpha_pattern",
    "bias",
    "ensure_weight_tying",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "target_parameters",
    "use_dora",
    "use_rslora",
});

/// Keys without effect on an adapter, if the other keys are honoured.
constexpr auto kHarmless = std::to_array<std::string_view>({
    "auto_mapping",             // how PEFT finds the class of the base
    "base_model_name_or_path",  // read by named_model()
    "corda_config",             // these four: settings of the init_lora_weights of the same name
    "eva_config",
    "loftq_config",
    "lora_ga_config",
    "inference_mode",
    "layers_pattern",  // of layers_to_transform
    "lora_dtype",
    "lorap_emb_lr",
    "lorap_lr_ratio",  // of ms-swift's training
    "megatron_core",   // of megatron_config
    "peft_version",
    "qalora_group_size",  // of use_qalora
    "revision",
    "runtime_config",
    "task_type",
});

/// Values of init_lora_weights that do not change the base, in addition to true and false.
constexpr auto kPlainBegins = std::to_array<std::string_view>({"eva", "gaussian", "orthogonal"});

/// null, false and empty values count as absent. 0 is a layer number.
bool says_nothing(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) || value == "";
}

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 100);
}

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found,
                         const std::string& where, const std::string& fix) {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = where,
               .fix = fix,
               .code = ExitCode::usage});
}

constexpr const char* kElsewhere = "train such an adapter with PEFT, or merge it into its base there";
constexpr const char* kMend = "correct it in the adapter's adapter_config.json";

std::vector<std::string> words_of(const Json& config, const char* key, const std::string& where) {
  std::vector<std::string> words;
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return words;
  const bool list =
      found->is_array() && std::ranges::all_of(*found, [](const Json& word) { return word.is_string(); });
  if (!list) {
    refuse(std::string("'") + key + "' of an adapter's configuration is not a list of names",
           "a list of texts", shown(*found), where, kMend);
  }
  for (const Json& word : *found) words.push_back(word.get<std::string>());
  return words;
}

const Json& patterns_of(const Json& config, const char* key, const std::string& where) {
  static const Json none = Json::object();
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return none;
  if (found->is_object()) return *found;
  refuse(std::string("'") + key + "' of an adapter's configuration is not an object",
         "an object of expressions and numbers", shown(*found), where, kMend);
}

/// Throws Error for other initialisations. PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA subtract a part from the
/// base, so their matrices are wrong for the unchanged base. MiCA trains one matrix only.
void require_plain_begin(const Json& config, const std::string& where) {
  const auto found = config.find("init_lora_weights");
  if (found == config.end() || found->is_boolean() || found->is_null()) return;
  const bool plain =
      found->is_string() && std::ranges::find(kPlainBegins, found->get<std::string>()) != kPlainBegins.end();
  if (plain) return;
  refuse("'init_lora_weights' of an adapter names an initialisation that is unknown or changes the base",
         "true, false, gaussian, eva or orthogonal", shown(*found), where,
         "save the adapter again with PEFT's save_pretrained(..., "
         "path_initial_model_for_weight_conversion=...), which writes a plain adapter; or merge it into its "
         "base with PEFT");
}

void refuse_unknown_keys(const Json& config, const std::string& where) {
  std::vector<std::string> known(kHonoured.begin(), kHonoured.end());
  known.insert(known.end(), kHarmless.begin(), kHarmless.end());
  for (const Unbuilt& unbuilt : kUnbuilt) known.emplace_back(unbuilt.key);
  for (const auto& [key, value] : config.items()) {
    if (says_nothing(value) || std::ranges::find(known, key) != known.end()) continue;
    const std::string near = nearest_name(key, known);
    refuse("key '" + key.substr(0, 60) +
               "' of an adapter's configuration is not known and may change what it computes",
           near.empty() ? "keys of LoRA as PEFT writes them" : "'" + near + "'", shown(value), where,
           "remove it from adapter_config.json if the adapter computes the same without it; else merge the "
           "adapter "
           "into its base with the program that wrote it");
  }
}

}  // namespace

AdapterWish read_adapter_config(const Json& config, const std::string& where) {
  AdapterWish wish{.where = where};
  const auto other = [&](const std::string& what, const std::string& expected, const std::string& found) {
    refuse(what, expected, found, where, kElsewhere);
  };
  if (!config.is_object())
    other("an adapter's configuration is not an object", "adapter_config.json of PEFT", "");
  const std::string type = json_string(config, "peft_type", "", where);
  if (type != "LORA") other("the adapter has another method than LoRA", "peft_type: LORA", type);
  const std::string bias = json_string(config, "bias", "none", where);
  if (bias != "none") other("training of biases in addition to adapters is not built", "bias: none", bias);
  for (const Unbuilt& unbuilt : kUnbuilt) {
    const auto found = config.find(unbuilt.key);
    if (found == config.end() || says_nothing(*found)) continue;
    other(std::string(unbuilt.name) + " is not built",
          std::string("an adapter without '") + unbuilt.key + "'", shown(*found));
  }
  require_plain_begin(config, where);
  refuse_unknown_keys(config, where);
  constexpr std::int64_t most = 1 << 20;
  wish.rank = json_int(config, "r", 8, 1, most, where);
  wish.alpha = json_number(config, "lora_alpha", 8, where);
  wish.rslora = json_bool(config, "use_rslora", false, where);
  wish.dora = json_bool(config, "use_dora", false, where);
  wish.ties = json_bool(config, "ensure_weight_tying", false, where);
  wish.dropout = json_number(config, "lora_dropout", 0, where);
  if (!(wish.dropout >= 0 && wish.dropout < 1)) {
    other("lora_dropout of an adapter is not a fraction", "at least 0 and below 1",
          std::to_string(wish.dropout));
  }
  for (const auto& [expression, rank] : patterns_of(config, "rank_pattern", where).items()) {
    wish.ranks.emplace_back(expression, json_int(config["rank_pattern"], expression, 0, 1, most, where));
  }
  for (const auto& [expression, alpha] : patterns_of(config, "alpha_pattern", where).items()) {
    wish.alphas.emplace_back(expression, json_number(config["alpha_pattern"], expression, 0, where));
  }
  const auto targets = config.find("target_modules");
  if (targets != config.end() && targets->is_string()) {
    wish.expression = targets->get<std::string>();
    wish.all = wish.expression == "all-linear";
  } else {
    wish.targets = words_of(config, "target_modules", where);
  }
  wish.parameters = words_of(config, "target_parameters", where);
  wish.whole = words_of(config, "modules_to_save", where);
  // PEFT lists both names of a head of this task. A reward model has a score.
  if (std::ranges::find(wish.whole, "score") != wish.whole.end()) std::erase(wish.whole, "classifier");
  return wish;
}

AdapterWish read_adapter_folder(const std::string& folder) {
  const std::string path = folder + "/adapter_config.json";
  if (path_exists(path)) return read_adapter_config(read_json(path), path);
  const bool checkpoint = path_exists(folder + "/manifest.json");
  throw Error({.what = "the folder has no adapter",
               .expected = "adapter_config.json and adapter_model.safetensors, as PEFT writes them",
               .found = checkpoint ? "a checkpoint of this program" : "",
               .where = folder,
               .fix = checkpoint ? "trainer export " + folder + " FOLDER writes its adapter"
                                 : "name the folder of an adapter, or leave it out",
               .code = ExitCode::usage});
}

}  // namespace octet::setup
