#include "octet/setup/adapters.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/model/layout.h"
#include "octet/setup/model_options.h"
#include "octet/text/whole_match.h"

namespace octet::setup {
namespace {

constexpr const char* kEmbedding = "embed_tokens";

/// A linear module of a block.
struct Module {
  std::string name;  ///< "model.layers.0.mlp.up_proj"
  std::int64_t outputs = 0, inputs = 0;
};

std::vector<Module> linear_modules(const model::Architecture& architecture) {
  model::Architecture whole = architecture;
  whole.tuning = {};
  std::vector<Module> modules;
  for (const model::GroupSpec& group : model::build_layout(whole).groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& tensor : segment.tensors) {
        for (const model::NamedPart& part : tensor.parts) {
          if (!tensor.fp8) continue;
          modules.push_back({.name = part.name.substr(0, part.name.rfind('.')),
                             .outputs = part.shape[0],
                             .inputs = part.shape[1]});
        }
      }
    }
  }
  return modules;
}

constexpr const char* kExperts = ".experts.";

bool of_expert(const Module& module) {
  return module.name.find(kExperts) != std::string::npos;
}

/// Whether the experts are parameters in all versions of transformers, and no modules.
bool stacks_experts(const model::Architecture& architecture) {
  return architecture.experts.names == model::ExpertShape::Names::gpt_oss;
}

/// A parameter of all experts of a block, as transformers 5 names it: gate_up_proj or down_proj.
struct ExpertParameter {
  Module all;  ///< its name, and outputs and inputs of one expert
  std::string
      tensors;  ///< prefix of its adapters in PEFT's files, if no other parameter of its block has adapters
  std::vector<Module> modules;  ///< one for each expert
};

/// Returns the parameters of experts in the order of the model.
std::vector<ExpertParameter> expert_parameters(const std::vector<Module>& modules) {
  std::vector<ExpertParameter> parameters;
  const auto parameter_of = [&](const std::string& name) -> ExpertParameter& {
    const auto found =
        std::ranges::find_if(parameters, [&](const ExpertParameter& p) { return p.all.name == name; });
    return found != parameters.end() ? *found
                                     : parameters.emplace_back(ExpertParameter{.all = {.name = name}});
  };
  for (const Module& module : modules) {
    if (!of_expert(module)) continue;
    const std::size_t experts = module.name.find(kExperts), leaf = module.name.rfind('.') + 1;
    const std::string word = module.name.substr(leaf);
    const bool down = word == "down_proj" || word == "w2";
    std::string block = module.name.substr(0, experts);
    // transformers 5 renamed the mixture in a block of Mixtral to mlp.
    constexpr std::string_view old = "block_sparse_moe";
    if (block.ends_with(old)) block.replace(block.size() - old.size(), old.size(), "mlp");
    ExpertParameter& parameter = parameter_of(block + kExperts + (down ? "down_proj" : "gate_up_proj"));
    parameter.tensors = block + ".experts";
    const std::string joined = down ? module.name : module.name.substr(0, leaf) + "gate_up_proj";
    const bool more = !parameter.modules.empty() && parameter.modules.back().name == joined;
    if (!more) parameter.modules.push_back({.name = joined, .outputs = 0, .inputs = module.inputs});
    parameter.modules.back().outputs += module.outputs;
    parameter.all.outputs = parameter.modules.back().outputs;
    parameter.all.inputs = module.inputs;
  }
  return parameters;
}

/// Returns the text after the last dot.
std::string last_word(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// Whether this word of lora_target names a parameter of all experts instead of modules.
bool names_parameter(const std::string& word) {
  return last_word(word) == "gate_up_proj" || word == "experts.down_proj" ||
         word.ends_with(".experts.down_proj");
}

bool named(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

[[noreturn]] void refuse(const AdapterWish& wish, const std::string& what, const std::string& expected,
                         const std::string& found, const std::string& fix = "give such a value") {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = wish.where,
               .fix = fix,
               .code = ExitCode::usage});
}

/// Returns the modules of this model that have the role of `target` in other families; empty: none. `words`:
/// last words of the names of this model's modules.
std::string modules_in_place_of(const std::string& target, const std::set<std::string>& words) {
  // Each row: names of the modules with one role.
  static const std::vector<std::vector<std::string>> kRoles = {{"q_proj", "qkv_proj", "q_b_proj"},
                                                               {"k_proj", "qkv_proj", "kv_b_proj"},
                                                               {"v_proj", "qkv_proj", "kv_b_proj"},
                                                               {"gate_proj", "gate_up_proj"},
                                                               {"up_proj", "gate_up_proj", "c_fc"},
                                                               {"down_proj", "c_proj"}};
  std::string found;
  for (const std::vector<std::string>& role : kRoles) {
    if (std::ranges::find(role, target) == role.end()) continue;
    for (const std::string& name : role) {
      if (name != target && words.contains(name) && found.find(name) == std::string::npos)
        found += (found.empty() ? "" : ", ") + name;
    }
  }
  return found;
}

[[noreturn]] void refuse_target(const AdapterWish& wish, const std::string& target,
                                const std::vector<Module>& modules) {
  if (target == kEmbedding || target == "lm_head" || target.ends_with("norm") ||
      target.ends_with(std::string(".") + kEmbedding)) {
    refuse(wish, "'" + target + "' is not a linear module of a block, and gets no adapter",
           "modules such as q_proj or down_proj", target,
           "to train the whole module, name it in additional_target (PEFT: modules_to_save)");
  }
  std::set<std::string> words;
  for (const Module& module : modules) words.insert(last_word(module.name));
  std::string known;
  for (const std::string& word : words) known += (known.empty() ? "" : ", ") + word;
  const std::string near = nearest_name(target, {words.begin(), words.end()});
  const std::string same = modules_in_place_of(target, words);
  refuse(wish, "no module of the model is called '" + target + "'", known, target,
         !same.empty()  ? "use " + same + " in place of it, or lora_target: all"
         : near.empty() ? "give one of these, or all"
                        : "did you mean '" + near + "'?");
}

/// Returns the number of the first expression that matches a module's name, or the part of it after a dot.
template <typename Number>
Number patterned(const std::vector<std::pair<std::string, Number>>& patterns, const std::string& module,
                 Number otherwise) {
  for (const auto& [expression, number] : patterns) {
    if (text::matches_whole("(.*\\.)?(" + expression + ")", module)) return number;
  }
  return otherwise;
}

model::AdapterShape shape_of(const AdapterWish& wish, const Module& module) {
  const std::int64_t rank = patterned(wish.ranks, module.name, wish.rank);
  const double alpha = patterned(wish.alphas, module.name, wish.alpha);
  const std::int64_t most = std::min(module.inputs, module.outputs);
  if (rank < 1 || rank > most) {
    refuse(wish, "an adapter's rank does not fit its module",
           "from 1 to " + std::to_string(most) + ", the smaller side of " + module.name, std::to_string(rank),
           "set lora_rank to a smaller number, 8 or 16 for most tasks");
  }
  if (!std::isfinite(alpha))
    refuse(wish, "lora_alpha is not a finite number", "a finite number", std::to_string(alpha));
  const auto r = static_cast<double>(rank);
  return {.rank = rank,
          .factor = alpha / (wish.rslora ? std::sqrt(r) : r),
          .dropout = wish.dropout,
          .dora = wish.dora};
}

/// Returns the module that a word of AdapterWish::whole names.
std::string whole_module(const AdapterWish& wish, const std::string& word,
                         const model::Architecture& architecture) {
  std::string embedding = architecture.tensor_prefix + kEmbedding;
  const std::string head = architecture.head_name.substr(0, architecture.head_name.rfind('.'));
  if (named(embedding, word)) return embedding;
  if (named(head, word)) return architecture.tied ? embedding : head;
  if (word == "score") {
    refuse(wish, "the head of a reward model has no place in a model that writes text",
           "stage: rm, or an adapter without 'score'", word,
           "set stage: rm, score rows with trainer generate --reward, or name another adapter");
  }
  refuse(wish, "'" + word + "' cannot be trained as a whole together with adapters",
         architecture.scores               ? "embed_tokens, score"
         : architecture.experts.count == 0 ? "embed_tokens, lm_head"
         : stacks_experts(architecture)    ? "embed_tokens, lm_head, router"
                                           : "embed_tokens, lm_head, gate",
         word, "leave it out; norms and other weights are trained with finetuning_type: full");
}

/// Returns the routers of a mixture of experts that `word` names: "gate", or the full name of one router.
std::vector<std::string> routers_named(const std::string& word, const model::Architecture& architecture) {
  model::Architecture plain = architecture;
  plain.tuning = {};
  std::vector<std::string> routers;
  for (const std::string& name : model::tensor_names(model::build_layout(plain))) {
    const std::string module = name.substr(0, name.rfind('.'));
    const bool gate =
        module.ends_with(".gate") || module.ends_with(".shared_expert_gate") || module.ends_with(".router");
    if (gate && named(module, word)) routers.push_back(module);
  }
  return routers;
}

/// Adds the adapters of AdapterWish::parameters. `transposed`: StackedAdapter::transposed.
void take_parameters(const AdapterWish& wish, const std::vector<Module>& modules, bool transposed,
                     model::Tuning& tuning) {
  if (wish.parameters.empty()) return;
  if (wish.dora || wish.dropout > 0) {
    refuse(wish,
           std::string("PEFT has no ") + (wish.dora ? "DoRA" : "dropout") + " for adapters of parameters",
           wish.dora ? "use_dora: false" : "lora_dropout: 0", "an adapter for " + wish.parameters.front(),
           "set this, or name modules instead of parameters");
  }
  const std::vector<ExpertParameter> known = expert_parameters(modules);
  std::vector<const ExpertParameter*> taken;
  for (const ExpertParameter& parameter : known) {
    const auto wanted = [&](const std::string& target) { return named(parameter.all.name, target); };
    if (std::ranges::any_of(wish.parameters, wanted)) taken.push_back(&parameter);
  }
  for (const std::string& target : wish.parameters) {
    bool any = std::ranges::any_of(taken, [&](const auto* p) { return named(p->all.name, target); });
    for (const Module& module : modules) {
      if (of_expert(module)) continue;
      // The weight of a linear module. Its adapter is the adapter of the module.
      const Module weight{
          .name = module.name + ".weight", .outputs = module.outputs, .inputs = module.inputs};
      if (!named(weight.name, target)) continue;
      tuning.modules[module.name] = shape_of(wish, weight);
      any = true;
    }
    if (any) continue;
    refuse(wish, "no parameter that can have an adapter is called '" + target + "'",
           known.empty() ? "names of linear modules: the model has no experts"
                         : "mlp.experts.gate_up_proj, mlp.experts.down_proj",
           target, known.empty() ? "give q_proj, down_proj or such names, or all" : "give one of these");
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const ExpertParameter& parameter = *taken[i];
    // PEFT nests the adapters of a module's parameters. The first one is the innermost.
    const bool inner = i + 1 < taken.size() && taken[i + 1]->tensors == parameter.tensors;
    const model::AdapterShape shape = shape_of(wish, parameter.all);
    for (std::size_t e = 0; e < parameter.modules.size(); ++e) {
      const std::string& name = parameter.modules[e].name;
      tuning.modules[name] = shape;
      tuning.stacked[name] = {.tensors = parameter.tensors + (inner ? ".base_layer" : ""),
                              .expert = static_cast<std::int64_t>(e),
                              .experts = std::ssize(parameter.modules),
                              .transposed = transposed,
                              .alternates = transposed && last_word(parameter.all.name) == "gate_up_proj"};
    }
  }
}

/// Throws Error if embedding and head share one table, but the adapter trains only one of them. PEFT would
/// then train a copy of the table and leave the other module unchanged.
void require_one_table(const AdapterWish& wish, const model::Architecture& architecture) {
  if (wish.ties || !architecture.tied) return;
  std::set<std::string> words;
  for (const std::string& word : wish.whole) words.insert(last_word(word));
  if (words.contains("lm_head") == words.contains(kEmbedding)) return;
  refuse(wish,
         "the adapter trains one of two tables that the model ties, but PEFT does not change the other table",
         "ensure_weight_tying: true, or embed_tokens and lm_head in modules_to_save",
         wish.whole.front() + " alone",
         "train the adapter again with ensure_weight_tying=True; or merge it into its base with PEFT, and "
         "take the "
         "merged model");
}

/// Returns the wish with names of parameters that are modules of this model among its targets. Files of some
/// families have one module for gate and up, with the name of a parameter of experts.
AdapterWish of_model(AdapterWish wish, const std::vector<Module>& modules) {
  const auto is_module = [&](const std::string& word) {
    return std::ranges::any_of(
        modules, [&](const Module& module) { return !of_expert(module) && named(module.name, word); });
  };
  for (const std::string& word : wish.parameters) {
    if (is_module(word)) wish.targets.push_back(word);
  }
  std::erase_if(wish.parameters, is_module);
  return wish;
}

/// tuning_of() for an architecture with tensors that are named like modules.
model::Tuning tuning_by_modules(const AdapterWish& given, const model::Architecture& architecture) {
  std::vector<Module> modules = linear_modules(architecture);
  const AdapterWish wish = of_model(given, modules);
  model::Tuning tuning{
      .adapters = true, .modules = {}, .whole = {}, .output_rate = wish.output_rate, .only = {}};
  const bool stacked = stacks_experts(architecture);
  take_parameters(wish, modules, stacked, tuning);
  if (stacked) std::erase_if(modules, of_expert);
  const auto take = [&](const std::function<bool(const Module&)>& wanted) {
    bool any = false;
    for (const Module& module : modules) {
      if (!wanted(module) || (!wish.parameters.empty() && of_expert(module))) continue;
      tuning.modules[module.name] = shape_of(wish, module);
      any = true;
    }
    return any;
  };
  if (wish.all) {
    take([](const Module&) { return true; });
  } else if (!wish.expression.empty()) {
    const bool any =
        take([&](const Module& module) { return text::matches_whole(wish.expression, module.name); });
    if (!any) {
      refuse(wish, "the expression for modules with adapters matches no module",
             "an expression that matches whole names such as '" + modules.front().name + "'", wish.expression,
             "correct the expression, or set lora_target: all");
    }
  } else {
    for (const std::string& target : wish.targets) {
      if (!take([&](const Module& module) { return named(module.name, target); })) {
        refuse_target(wish, target, modules);
      }
    }
  }
  for (const std::string& word : wish.whole) {
    const std::vector<std::string> routers = routers_named(word, architecture);
    if (routers.empty()) tuning.whole.insert(whole_module(wish, word, architecture));
    tuning.whole.insert(routers.begin(), routers.end());
  }
  require_one_table(wish, architecture);
  if (tuning.modules.empty() && tuning.whole.empty())
    refuse(wish, "nothing would be trained", "modules that get adapters", "none",
           "name modules, or set lora_target: all");
  return tuning;
}

}  // namespace

model::Tuning tuning_of(const AdapterWish& wish, const model::Architecture& architecture) {
  const model::Architecture named = model::named_as_modules(architecture);
  model::Tuning tuning = tuning_by_modules(wish, named);
  if (named.tensor_prefix == architecture.tensor_prefix && named.head_name == architecture.head_name)
    return tuning;
  // Trained parameters have the names of the weight files.
  const auto in_files = [&](const std::string& module) {
    if (module + ".weight" == named.head_name)
      return architecture.head_name.substr(0, architecture.head_name.rfind('.'));
    check(module.starts_with(named.tensor_prefix), "a module belongs to the text model");
    return architecture.tensor_prefix + module.substr(named.tensor_prefix.size());
  };
  model::Tuning renamed = tuning;
  renamed.modules.clear(), renamed.stacked.clear(), renamed.whole.clear();
  for (const auto& [module, shape] : tuning.modules) renamed.modules[in_files(module)] = shape;
  for (const auto& [module, stacked] : tuning.stacked) {
    renamed.stacked[in_files(module)] = stacked;
    renamed.stacked[in_files(module)].tensors = in_files(stacked.tensors);
  }
  for (const std::string& module : tuning.whole) renamed.whole.insert(in_files(module));
  return renamed;
}

bool trains_adapters(const config::TuningKeys& config) {
  return config.finetuning_type == "lora";
}

AdapterWish adapter_wish(const config::TuningKeys& config) {
  if (const auto continued = given_adapters(config).continued) {
    AdapterWish wish = read_adapter_folder(*continued);
    wish.output_rate = config.loraplus_lr_ratio.value_or(1.0);
    if (wish.dora && wish.dropout > 0) {
      refuse(wish, "training DoRA with dropout is not built", "lora_dropout: 0, or use_dora: false",
             "lora_dropout: " + std::to_string(wish.dropout),
             "set lora_dropout to 0 in the file to continue without dropout");
    }
    return wish;
  }
  AdapterWish wish{.rank = config.lora_rank,
                   .alpha = config.lora_alpha.value_or(2.0 * static_cast<double>(config.lora_rank)),
                   .rslora = config.use_rslora,
                   .dora = config.use_dora,
                   .dropout = config.lora_dropout,
                   .output_rate = config.loraplus_lr_ratio.value_or(1.0),
                   .whole = config.additional_target,
                   .where = "configuration keys lora_target, lora_rank, additional_target"};
  const std::vector<std::string>& targets = config.lora_target;
  const bool one = targets.size() == 1;
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
  };
  if (one && targets.front() == "all") {
    wish.all = true;
  } else if (one && !std::ranges::all_of(targets.front(), plain)) {
    wish.expression = targets.front();
  } else {
    for (const std::string& word : targets)
      (names_parameter(word) ? wish.parameters : wish.targets).push_back(word);
  }
  return wish;
}

model::Architecture tuned(const config::TuningKeys& config, model::Architecture architecture) {
  // An architecture without layers stays unchanged. Callers pass it to read only the options.
  const bool model = architecture.layers > 0;
  if (model && trains_parts(config)) architecture.tuning = freeze_tuning(config, architecture);
  if (model && trains_adapters(config)) architecture.tuning = tuning_of(adapter_wish(config), architecture);
  return architecture;
}

namespace {

/// Whether PEFT with transformers 5 mistakes this name of a module for a parameter of experts.
bool named_like_expert(const std::string& module) {
  constexpr std::array kNames = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"};
  return std::ranges::find(kNames, last_word(module)) != kNames.end();
}

/// Returns target_modules: the expression, or the list of names.
Json target_modules(const AdapterWish& wish, const model::Architecture& architecture) {
  if (!wish.expression.empty() && !wish.all) return wish.expression;
  std::set<std::string> names(wish.targets.begin(), wish.targets.end());
  if (!wish.parameters.empty()) std::erase_if(names, named_like_expert);
  if (wish.all) {
    for (const Module& module : linear_modules(architecture)) {
      if (!stacks_experts(architecture) || !of_expert(module)) names.insert(last_word(module.name));
    }
  }
  const auto whole = [](const std::string& name) {
    return name.find("language_model.") != std::string::npos;
  };
  if (!architecture.multimodal || names.empty() || std::ranges::any_of(names, whole)) return names;
  // Modules of the image encoder have the same last words, so the expression names the language model.
  std::string any;
  for (const std::string& name : names) {
    any += any.empty() ? "" : "|";
    for (const char c : name) any += c == '.' ? std::string("\\.") : std::string(1, c);
  }
  return ".*language_model.*\\.(" + any + ")";
}

}  // namespace

Json adapter_config(const AdapterWish& given, const model::Architecture& architecture,
                    const std::string& base) {
  const AdapterWish wish = of_model(given, linear_modules(architecture));
  Json config{
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha",
       wish.alpha == std::floor(wish.alpha) ? Json(static_cast<std::int64_t>(wish.alpha)) : Json(wish.alpha)},
      {"lora_dropout", wish.dropout},
      {"modules_to_save", wish.whole.empty() ? Json(nullptr) : Json(wish.whole)},
      {"peft_type", "LORA"},
      {"r", wish.rank},
      {"rank_pattern", Json::object()},
      {"alpha_pattern", Json::object()},
      {"revision", nullptr},
      {"target_modules", target_modules(wish, architecture)},
      {"task_type", architecture.scores ? "SEQ_CLS" : "CAUSAL_LM"}};
  if (!wish.parameters.empty()) {
    std::set<std::string> parameters(wish.parameters.begin(), wish.parameters.end());
    for (const std::string& target : wish.targets) {
      if (named_like_expert(target)) parameters.insert(target + ".weight");
    }
    config["target_parameters"] = parameters;
  }
  for (const auto& [expression, rank] : wish.ranks) config["rank_pattern"][expression] = rank;
  for (const auto& [expression, alpha] : wish.alphas) config["alpha_pattern"][expression] = alpha;
  if (wish.rslora) config["use_rslora"] = true;
  if (wish.dora) config["use_dora"] = true;
  return config;
}

std::string unread_by_peft(const AdapterWish& wish, const model::Tuning& tuning) {
  bool experts = false, gate = false, up = false, others = false;
  for (const auto& [name, shape] : tuning.modules) {
    const bool single = of_expert({.name = name}) && !tuning.stacked.contains(name);
    const std::string word = last_word(name);
    experts = experts || single;
    gate = gate || (single && (word == "gate_proj" || word == "w1"));
    up = up || (single && (word == "up_proj" || word == "w3"));
    others = others || (!single && named_like_expert(name));
  }
  if (!experts) return "";
  const std::string with = "PEFT with transformers 5 does not read adapters of experts ";
  if (wish.dora) return with + "with DoRA; to do: use transformers 4, or merge the adapter";
  if (wish.dropout > 0) return with + "with dropout; to do: use transformers 4, or merge the adapter";
  if (gate != up) return with + "of gate or up alone; to do: name both, or merge the adapter";
  if (!others) return "";
  return with +
         "together with adapters of other modules of these names; to do: name the parameters of experts: "
         "lora_target: q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,"
         "mlp.experts.gate_up_proj,mlp.experts.down_proj";
}

}  // namespace octet::setup
