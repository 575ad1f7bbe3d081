#include <algorithm>
#include <unordered_set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"
#include "tokenizer/component.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/tokenizer_sources.h"

namespace octet::text {
namespace {

constexpr const char* kFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json"};
constexpr const char* kConfig = "tokenizer_config.json";
constexpr std::int64_t kMaxAddedId = (std::int64_t{1} << 26) - 1;

/// Reads the added tokens. Throws Error if ids or contents contradict the vocabulary or each other.
void read_added_tokens(const Json& root, const std::string& where, const Bpe& bpe, AddedTokens& out) {
  const auto list = root.find("added_tokens");
  if (list == root.end() || list->is_null()) return;
  if (!list->is_array()) broken_tokenizer("the added tokens are not a list", list->type_name(), where);
  const std::int64_t most = std::min<std::int64_t>(
      kMaxAddedId, 16 * static_cast<std::int64_t>(bpe.size() + list->size()) + (1 << 20));
  std::size_t index = 0;
  for (const auto& json : *list) {
    const std::string place = where + ": added_tokens[" + std::to_string(index++) + "]";
    const AddedToken token = read_added_token(json, place);
    if (!json.contains("id")) broken_tokenizer("an added token has no id", token.content, place);
    const auto id = static_cast<TokenId>(json_int(json, "id", -1, 0, most, place));
    if (token.content.empty()) continue;  // the reference skips them
    const TokenId known = bpe.find(token.content);
    const std::string* other = bpe.piece(id);
    if ((known >= 0 && known != id) || (other && *other != token.content)) {
      broken_tokenizer("an added token's id contradicts the vocabulary",
                       "'" + token.content + "': " + std::to_string(id), place);
    }
    if (out.find(id)) broken_tokenizer("two added tokens have the same id", std::to_string(id), place);
    if (out.find(token.content) >= 0) broken_tokenizer("an added token occurs twice", token.content, place);
    out.set(token, id);
  }
}

/// Sets the token of a `role` such as "eos_token".
void set_role(Json& config, const char* role, const std::string& token) {
  const auto it = config.find(role);
  if (it != config.end() && it->is_object()) {
    (*it)["content"] = token;
  } else {
    config[role] = token;
  }
}

Json token_json(const AddedToken& token) {
  return {{"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
          {"rstrip", token.rstrip},   {"normalized", token.normalized},   {"special", token.special}};
}

}  // namespace

std::vector<std::string> tokenizer_files(const std::string& folder) {
  std::vector<std::string> out;
  for (const char* name : kFiles) {
    const std::string path = folder + "/" + name;
    if (path_exists(path)) out.push_back(path);
  }
  return out;
}

Tokenizer Tokenizer::from_folder(const std::string& path) {
  const std::string where = path + "/tokenizer.json";
  if (!path_exists(path)) {
    throw Error({.what = "the folder of the tokenizer does not exist",
                 .expected = "a folder with tokenizer.json; nothing is downloaded",
                 .where = path,
                 .fix = "fetch the model first (hf download NAME), or name a folder that holds it",
                 .code = ExitCode::usage});
  }
  if (!path_exists(where)) {
    throw Error({.what = "the model folder has no tokenizer",
                 .expected = "a file tokenizer.json",
                 .where = path,
                 .fix = "save a fast tokenizer with transformers' save_pretrained, which writes this file",
                 .code = ExitCode::usage});
  }
  const TokenizerJson file = parse_tokenizer_json(read_file(where), where);
  const auto part = [&](const char* key) -> Json {
    const auto it = file.root.find(key);
    return it == file.root.end() ? Json() : *it;
  };
  auto pipeline = std::make_shared<Pipeline>();
  pipeline->normalizer = make_normalizer(part("normalizer"), where + ": normalizer");
  pipeline->pre_tokenizer = make_pre_tokenizer(part("pre_tokenizer"), where + ": pre_tokenizer");
  pipeline->bpe = Bpe(file, pipeline->pre_tokenizer.byte_level, where);
  pipeline->post_processor = make_post_processor(part("post_processor"), where + ": post_processor");
  pipeline->decoder = make_decoder(part("decoder"), where + ": decoder");

  auto parts = std::make_unique<Parts>();
  read_added_tokens(file.root, where, pipeline->bpe, parts->added);
  const Json config = read_model_file(path, kConfig);
  const Json roles = effective_roles(config, read_model_file(path, "special_tokens_map.json"), path);
  add_listed_tokens(config, roles, path, pipeline->bpe, parts->added);
  compare_chat_templates(config, path);
  parts->pipeline = std::move(pipeline);
  parts->index();
  if (parts->max_id < 0) broken_tokenizer("the tokenizer has no tokens", "an empty vocabulary", where);
  for (const auto* ids : {&parts->pipeline->post_processor.before, &parts->pipeline->post_processor.after}) {
    for (const TokenId id : *ids) {
      if (!parts->piece(id))
        broken_tokenizer("the post-processor adds a token that does not exist", std::to_string(id), where);
    }
  }
  parts->folder = path;
  parts->files = tokenizer_files(path);
  const auto role = [&](const char* key, Role& out) {
    const std::string token = token_text(roles, key);
    const TokenId id = parts->find(token);
    if (!token.empty() && id >= 0) out = {token, id};
  };
  role("bos_token", parts->bos);
  role("eos_token", parts->eos);
  role("pad_token", parts->pad);
  role("unk_token", parts->unk);
  if (config.contains("add_bos_token") && !config["add_bos_token"].is_null())
    parts->add_bos = config["add_bos_token"].get<bool>();
  return Tokenizer(std::move(parts));
}

void Tokenizer::save(const std::string& folder) const {
  const Parts& p = *parts_;
  const auto set_roles = [&p](Json& config) {
    if (!p.eos.token.empty()) set_role(config, "eos_token", p.eos.token);
    if (!p.pad.token.empty()) set_role(config, "pad_token", p.pad.token);
  };
  bool configured = false;
  for (const std::string& path : p.files) {
    const std::string name = path.substr(path.rfind('/') + 1);
    std::string text = read_file(path);
    if (p.changed && name == "tokenizer.json") {
      auto tokens = p.added.all();
      std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      Json list = Json::array();
      for (const auto& [id, token] : tokens) {
        Json one = {{"id", id}};
        one.update(token_json(token));
        list.push_back(std::move(one));
      }
      text = with_json_value(text, "added_tokens", list.dump(2));
    } else if (p.changed && (name == kConfig || name == "special_tokens_map.json")) {
      Json config = read_json(path);
      set_roles(config);
      if (const auto it = config.find("added_tokens_decoder"); it != config.end() && !it->is_null()) {
        for (const auto& [id, token] : p.added.all()) (*it)[std::to_string(id)] = token_json(token);
      }
      text = config.dump(2, ' ', false) + "\n";
    }
    write_file_atomically(folder + "/" + name, text);
    configured |= name == kConfig;
  }
  if (!p.changed || configured) return;
  Json config = Json::object();
  set_roles(config);
  write_file_atomically(folder + "/" + kConfig, config.dump(2, ' ', false) + "\n");
}

}  // namespace octet::text
