// Checks axolotl's special_tokens. The tokenizer is not changed, so they must be the tokens that it has.
#include "dialects/axolotl.h"
#include "octet/base/files.h"
#include "octet/base/hub_cache.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"

namespace octet::config {

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
