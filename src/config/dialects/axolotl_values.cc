// Converts single values of axolotl's keys.
#include <algorithm>
#include <array>

#include "dialects/axolotl.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"

namespace octet::config::axolotl {

void wrong(const Node& node, const Location& at, const std::string& expected, const std::string& fix) {
  complain({.what = "value of '" + at.key + "' cannot be used",
            .expected = expected,
            .found = shown(node),
            .where = at.where,
            .fix = fix});
}

std::string word_of(const Node& node) {
  return node.kind == Node::Kind::scalar ? node.text : "";
}

bool is_on(const Node& node) {
  return read_bool(word_of(node)).value_or(false);
}

bool is_on(const Fact& fact) {
  const auto on = read_bool(word_of(fact.node));
  if (!on) wrong(fact.node, fact.at, "true or false");
  return *on;
}

Node list_of(const Node& node) {
  if (node.kind == Node::Kind::list) return node;
  Node list;
  list.kind = Node::Kind::list;
  list.items.push_back(node);
  return list;
}

// auto means true if the hardware has bf16, which is always the case here. full also stores weights in bf16.
void take_bf16(const Node& node, const Location& at, const Target& target) {
  const std::string word = word_of(node);
  if (word == "full") return target.settings.add("pure_bf16", scalar_node("true"), at, target.replace);
  target.settings.add("bf16", word == "auto" ? scalar_node("true") : node, at, target.replace);
}

void take_fp16(const Node& node, const Location& at, const Target& target) {
  if (word_of(node) != "auto") target.settings.add("fp16", node, at, target.replace);
}

void take_reward_model(const Node& node, const Location& at, const Target& target) {
  if (is_on(node)) target.settings.add("stage", scalar_node("rm"), at, target.replace);
}

void take_rl(const Node& node, const Location& at, const Target& target) {
  const std::string word = word_of(node);
  const auto add = [&](const char* key, const char* value) {
    target.settings.add(key, scalar_node(value), at, target.replace);
  };
  if (node.is_null()) return;
  if (word == "kto") return add("stage", "kto");
  constexpr std::array<std::pair<const char*, const char*>, 4> losses{
      {{"dpo", "sigmoid"}, {"ipo", "ipo"}, {"orpo", "orpo"}, {"simpo", "simpo"}}};
  for (const auto& [name, loss] : losses) {
    if (word != name) continue;
    add("stage", "dpo");
    if (word != "dpo") add("pref_loss", loss);
    return;
  }
  wrong(node, at, "dpo, ipo, orpo, simpo or kto", "choose one of these, because other methods are not built");
}

void take_tf32(const Node& node, const Location& at, const Target& target) {
  if (word_of(node) != "auto") target.settings.add("tf32", node, at, target.replace);
}

// Any form of checkpointing enables ours. Activations that axolotl would offload are recomputed.
void take_checkpointing(const Node& node, const Location& at, const Target& target) {
  const std::string word = word_of(node);
  const bool offloads = word == "unsloth" || word == "offload" || word == "offload_disk";
  target.settings.add("gradient_checkpointing", offloads ? scalar_node("true") : node, at, target.replace);
  if (offloads) target.sources.note("'" + at.key + ": " + word + "' computes activations again here");
}

// Translates template names. Names of templates with another text here are refused. The qwen3_5 of axolotl
// writes tools and calls like qwen3.
void take_template(const Node& node, const Location& at, const Target& target) {
  static constexpr std::array<std::pair<const char*, const char*>, 6> kNames{
      {{"qwen_25", "qwen"},
       {"qwen3_5", "qwen3"},
       {"phi_35", "phi"},
       {"mistral_v2v3", "mistral"},
       {"mistral_v3_tekken", "ministral"},
       {"deepseek_v3", "deepseek3"}}};
  static constexpr std::array kOthers{"alpaca", "cohere",     "exaone", "falcon_h1", "gemma3n", "gemma4",
                                      "llama4", "mistral_v1", "phi_3",  "phi_4",     "pixtral", "qwen2_vl"};
  const std::string word = word_of(node);
  // The model's own template is the default here.
  if (word.starts_with("tokenizer_default") || word == "jinja") return;
  if (std::ranges::find(kOthers, word) != kOthers.end())
    wrong(node, at, "a template that Octet has, such as chatml, llama3, qwen_25 or mistral_v2v3",
          "leave the key out to train with the model's own template; template: takes LLaMA-Factory's names");
  const auto* found = std::ranges::find(kNames, word, [](const auto& pair) { return pair.first; });
  target.settings.add("template", found == kNames.end() ? node : scalar_node(found->second), at,
                      target.replace);
  if (word.starts_with("mistral_"))
    target.sources.note(
        "'" + at.key + ": " + word +
        "' writes a system message before the first question, but axolotl leaves it out in training");
}

void take_long_rows(const Node& node, const Location& at, const Target& target) {
  const std::string word = word_of(node);
  if (word != "drop" && word != "truncate" && word != "raise") wrong(node, at, "drop, truncate or raise");
  target.settings.add("truncation", scalar_node(word == "raise" ? "error" : "cut"), at, target.replace);
  if (word == "drop") {
    target.sources.note("'" + at.key +
                        ": drop' cuts long rows, but axolotl leaves them out; raise ends the run instead");
  }
}

void take_special_tokens(const Node& node, const Location& at, const Target& target) {
  if (node.kind != Node::Kind::map) wrong(node, at, "a map of names to tokens");
  target.sources.facts["special_tokens"] = {.node = node, .at = at, .override = target.replace};
}

// Liger and cut cross entropy are faster kernels for the same computation.
void take_plugins(const Node& node, const Location& at, const Target& target) {
  for (const Node& plugin : list_of(node).items) {
    const std::string name = word_of(plugin);
    if (name.find("liger") == std::string::npos && name.find("cut_cross_entropy") == std::string::npos)
      wrong(plugin, at, "liger or cut_cross_entropy", "no foreign code is run; remove it");
    target.sources.note("'" + at.key + ": " + name + "' changes nothing here: kernels are always fused");
  }
}

}  // namespace octet::config::axolotl

namespace octet::config {

// Checks axolotl's special_tokens. The tokenizer is not changed, so they must be the tokens that it has.

void require_own_tokens(const Fact& special_tokens, const std::string& model) {
  const std::string snapshot = path_exists(model) ? "" : hub_snapshot(hub_folder(), HubKind::model, model);
  const std::string folder = snapshot.empty() ? model : snapshot;
  Json config, map;
  if (!model.empty()) {
    config = read_model_file(folder, "tokenizer_config.json");
    map = read_model_file(folder, "special_tokens_map.json");
  }
  for (const auto& [role, token] : special_tokens.node.members) {
    if (role == "pad_token" || token.is_null()) continue;
    if (token.kind == Node::Kind::list && token.items.empty()) continue;
    // Without added_tokens_decoder the map decides, like in transformers 5.
    std::string own = token_text(config, role);
    const std::string in_map = token_text(map, role);
    if (own.empty() || (!config.contains("added_tokens_decoder") && !in_map.empty())) own = in_map;
    if (!own.empty() && token.kind == Node::Kind::scalar && token.text == own) continue;
    const std::string none =
        "only pad_token (nothing is padded with it here), or tokens that the tokenizer of " +
        (model.empty() ? "the model" : model) + " has in these roles";
    complain(
        {.what = "value of '" + special_tokens.at.key + "' cannot be used",
         .expected = own.empty() ? none : role + ": " + own + ", as the tokenizer of " + model + " has it",
         .found = role + ": " + (token.kind == Node::Kind::scalar ? token.text : shown(token)),
         .where = special_tokens.at.where,
         .fix = "remove it to train with the token of the tokenizer; or write " + role +
                " into the tokenizer_config.json of the model"});
  }
}

}  // namespace octet::config
