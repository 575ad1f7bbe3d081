#include "tokenizer/tokenizer_folder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <mutex>
#include <set>
#include <string>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/model_file.h"
#include "octet/base/strings.h"
#include "tokenizer/component.h"
#include "tokenizer/tokenizer_json.h"

namespace octet::text {
namespace {

constexpr std::array kRoles{"bos_token", "eos_token", "unk_token", "sep_token",
                            "pad_token", "cls_token", "mask_token"};
constexpr std::array kLists{"extra_special_tokens", "additional_special_tokens"};
constexpr std::size_t kMaxAddedBytes = 1 << 16;
constexpr const char* kFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json"};
constexpr const char* kConfig = "tokenizer_config.json";
constexpr std::int64_t kMaxAddedId = (std::int64_t{1} << 26) - 1;

/// Logs each line once per process, because a folder is opened several times.
void warn_once(const std::string& line) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said.insert(line).second) log::warn(line, log::Importance::training);
}

std::string quoted(const std::string& token) {
  return "'" + token.substr(0, 40) + "'";
}

/// Returns a text such as "3 tokens, as '<|x|>'".
std::string counted(const std::vector<std::string>& tokens) {
  return tokens.size() == 1 ? "the token " + quoted(tokens[0])
                            : std::to_string(tokens.size()) + " tokens, as " + quoted(tokens[0]);
}

/// Returns the id that the tokenizers library gives a new token.
TokenId next_id(const Bpe& bpe, const AddedTokens& added) {
  TokenId most = -1;
  for (const auto& [id, token] : added.all()) most = std::max(most, id);
  const auto size = static_cast<TokenId>(bpe.size());
  TokenId next = most >= size ? most + 1 : size;
  while (bpe.piece(next) != nullptr || added.find(next) != nullptr) ++next;
  return next;
}

/// Returns the vocab_size of the model in the folder; no limit if there is none.
std::int64_t rows_of_model(const std::string& folder) {
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  if (!path_exists(folder + "/config.json")) return none;
  const Json config = read_json(folder + "/config.json");
  if (!config.is_object()) return none;
  for (const Json* part : {&config, config.contains("text_config") ? &config["text_config"] : nullptr}) {
    if (part == nullptr || !part->is_object()) continue;
    const auto rows = part->find("vocab_size");
    if (rows != part->end() && rows->is_number_integer()) return rows->get<std::int64_t>();
  }
  return none;
}

/// Returns the token of `json`, an object with content and flags. `place` names it in messages. Throws Error
/// for another form.
AddedToken read_added_token(const Json& json, const std::string& place) {
  const auto broken = [&](const std::string& what, const std::string& found) {
    throw Error({.what = what,
                 .found = found.substr(0, 80),
                 .where = place,
                 .fix = kBrokenTokenizer,
                 .code = ExitCode::usage});
  };
  if (!json.is_object()) broken("an added token is not an object", json.type_name());
  AddedToken token;
  token.content = component_string(json, "content", place);
  if (token.content.size() > kMaxAddedBytes) broken("an added token is too long", token.content);
  token.single_word = json_bool(json, "single_word", false, place);
  token.lstrip = json_bool(json, "lstrip", false, place);
  token.rstrip = json_bool(json, "rstrip", false, place);
  token.special = json_bool(json, "special", false, place);
  token.normalized = json_bool(json, "normalized", !token.special, place);
  return token;
}

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

TokenizerFolder::TokenizerFolder(const std::string& path) : path_(path) {
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
  pipeline_ = pipeline;

  read_added_tokens(file.root, where, pipeline->bpe, added_);
  config_ = read_model_file(path, kConfig);
  roles_ = effective_roles(read_model_file(path, "special_tokens_map.json"));
  add_listed_tokens();
  compare_chat_templates();
}

bool TokenizerFolder::has_decoder() const {
  return config_.contains("added_tokens_decoder") && !config_["added_tokens_decoder"].is_null();
}

std::string TokenizerFolder::role(const char* key) const {
  return token_text(roles_, key);
}

std::optional<bool> TokenizerFolder::add_bos_token() const {
  if (!config_.contains("add_bos_token") || config_["add_bos_token"].is_null()) return std::nullopt;
  return config_["add_bos_token"].get<bool>();
}

std::vector<std::string> TokenizerFolder::files() const {
  std::vector<std::string> out;
  for (const char* name : kFiles) {
    const std::string path = path_ + "/" + name;
    if (path_exists(path)) out.push_back(path);
  }
  return out;
}

Json TokenizerFolder::effective_roles(const Json& map) const {
  const bool decoder = has_decoder();
  Json roles = Json::object();
  for (const char* role : kRoles) {
    const std::string in_config = token_text(config_, role), in_map = token_text(map, role);
    const bool map_counts = in_config.empty() || (!decoder && !in_map.empty());
    const std::string& counts = map_counts ? in_map : in_config;
    if (counts.empty()) continue;
    roles[role] = map_counts ? map[role] : config_[role];
    if (in_config.empty() || in_map.empty() || in_config == in_map) continue;
    warn_once(path_ + ": tokenizer_config.json and special_tokens_map.json name different tokens as " + role +
              ", " + quoted(in_config) + " and " + quoted(in_map) + ": " + quoted(counts) +
              " counts, as in transformers 5. Make the two files agree");
  }
  return roles;
}

TokenizerFolder::Listed TokenizerFolder::listed_tokens() const {
  Listed out{.file = path_ + "/tokenizer_config.json", .tokens = {}};
  if (has_decoder()) {
    for (const auto& [id, token] : config_["added_tokens_decoder"].items()) {
      const std::string place = out.file + ": added_tokens_decoder[" + id.substr(0, 20) + "]";
      std::int64_t number = -1;
      const auto [end, code] = std::from_chars(id.data(), id.data() + id.size(), number);
      if (code != std::errc() || end != id.data() + id.size() || number < 0) {
        throw Error({.what = "an added token has no id",
                     .expected = "a whole number from 0 as its key",
                     .found = id.substr(0, 80),
                     .where = place,
                     .fix = kBrokenTokenizer,
                     .code = ExitCode::usage});
      }
      const AddedToken read = read_added_token(token, place);
      if (!read.content.empty()) out.tokens[number] = read;
    }
    return out;
  }
  out.file = path_ + "/added_tokens.json";
  if (!path_exists(out.file)) return out;
  std::set<std::string> special;
  for (const char* role : kRoles) {
    special.insert(token_text(roles_, role));
  }
  const Json list = read_model_file(path_, "added_tokens.json");
  for (const auto& [content, json] : list.items()) {
    const std::int64_t id = json_int(list, content, -1, 0, INT32_MAX, out.file);
    if (id < 0 || content.empty() || content.size() > kMaxAddedBytes) continue;
    const bool is_special = special.contains(content);
    out.tokens[id] = {.content = content, .normalized = !is_special, .special = is_special};
  }
  return out;
}

std::vector<AddedToken> TokenizerFolder::special_tokens() const {
  std::vector<AddedToken> out;
  const auto add = [&](const Json& json, const std::string& name) {
    AddedToken token;
    if (json.is_object()) token = read_added_token(json, path_ + ": " + name);
    if (json.is_string()) token.content = json.get<std::string>();
    token.special = true;
    if (!token.content.empty()) out.push_back(token);
  };
  for (const char* role : kRoles) {
    if (roles_.contains(role)) add(roles_[role], role);
  }
  for (const char* list : kLists) {
    const auto found = config_.find(list);
    if (found == config_.end() || found->is_null()) continue;
    for (const Json& token : *found) add(token, list);
  }
  return out;
}

void TokenizerFolder::add_listed_tokens() {
  const Bpe& bpe = pipeline_->bpe;
  AddedTokens& added = added_;
  const Listed listed = listed_tokens();
  std::vector<std::string> fresh, flags, moved, absent;
  for (const auto& [id, token] : listed.tokens) {
    TokenId known = added.find(token.content);
    if (known < 0) {
      known = bpe.find(token.content);
      if (known < 0) known = next_id(bpe, added);
      fresh.push_back(token.content);
    } else if (*added.find(known) != token) {
      flags.push_back(token.content);
    }
    if (known != id)
      moved.push_back(token.content + "' (" + std::to_string(id) + ", and here " + std::to_string(known) +
                      ")'");
    added.set(token, known);
  }
  const auto say = [&](const std::vector<std::string>& tokens, const std::string& what) {
    if (!tokens.empty())
      warn_once(listed.file + " and tokenizer.json differ: " + counted(tokens) + " " + what);
  };
  say(fresh, "(missing in tokenizer.json; added here, as in transformers 5)");
  say(flags, "(with other flags; the flags of the first file count, as in transformers 5)");
  if (!moved.empty()) {
    warn_once(listed.file + " gives ids to " + std::to_string(moved.size()) +
              " tokens that transformers 5 does not give them, as '" +
              moved[0].substr(0, moved[0].size() - 1) +
              ": the ids of tokenizer.json count, or the next free ones");
  }
  if (has_decoder()) {
    std::set<std::string> contents;
    for (const auto& [id, token] : listed.tokens) contents.insert(token.content);
    for (const auto& [id, token] : added.all()) {
      if (!contents.contains(token.content)) absent.push_back(token.content);
    }
    say(absent, "(only in tokenizer.json; kept here)");
  }
  const std::int64_t rows = rows_of_model(path_);
  for (const AddedToken& token : special_tokens()) {
    if (added.find(token.content) >= 0) continue;
    const TokenId known = bpe.find(token.content), id = known >= 0 ? known : next_id(bpe, added);
    if (id >= rows) {
      warn_once(path_ + ": the special token " + quoted(token.content) +
                " is in no vocabulary. transformers 5 adds it as " + std::to_string(id) +
                ", but the model has no row for this id, so it is left out");
      continue;
    }
    added.set(token, id);
    warn_once(path_ + ": the special token " + quoted(token.content) +
              " is not an added token of tokenizer.json; it is added, as in " +
              "transformers 5, with the id " + std::to_string(id));
  }
}

void TokenizerFolder::compare_chat_templates() const {
  const std::string own = path_ + "/chat_template.jinja";
  const auto listed = config_.find("chat_template");
  if (listed == config_.end() || listed->is_null() || !path_exists(own)) return;
  const auto same = [](const std::string& a, const std::string& b) { return trim(a) == trim(b); };
  const std::string text = read_file(own);
  bool found = listed->is_string() && same(listed->get<std::string>(), text);
  for (const Json& one : listed->is_structured() ? *listed : Json::array())
    found |= same((listed->is_array() ? one.at("template") : one).get<std::string>(), text);
  if (found) return;
  warn_once(path_ +
            ": chat_template.jinja and the chat_template of tokenizer_config.json differ: "
            "chat_template.jinja counts, as in transformers 5. Remove the wrong template");
}

void save_tokenizer_files(const std::vector<std::string>& files, const TokenChanges* changes,
                          const std::string& folder) {
  const auto set_roles = [&](Json& config) {
    if (!changes->eos.empty()) set_role(config, "eos_token", changes->eos);
    if (!changes->pad.empty()) set_role(config, "pad_token", changes->pad);
  };
  bool configured = false;
  for (const std::string& path : files) {
    const std::string name = path.substr(path.rfind('/') + 1);
    std::string text = read_file(path);
    if (changes != nullptr && name == "tokenizer.json") {
      auto tokens = changes->added.all();
      std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      Json list = Json::array();
      for (const auto& [id, token] : tokens) {
        Json one = {{"id", id}};
        one.update(token_json(token));
        list.push_back(std::move(one));
      }
      text = with_json_value(text, "added_tokens", list.dump(2));
    } else if (changes != nullptr && (name == kConfig || name == "special_tokens_map.json")) {
      Json config = read_json(path);
      set_roles(config);
      if (const auto it = config.find("added_tokens_decoder"); it != config.end() && !it->is_null()) {
        for (const auto& [id, token] : changes->added.all()) (*it)[std::to_string(id)] = token_json(token);
      }
      text = config.dump(2, ' ', false) + "\n";
    }
    write_file_atomically(folder + "/" + name, text);
    configured |= name == kConfig;
  }
  if (changes == nullptr || configured) return;
  Json config = Json::object();
  set_roles(config);
  write_file_atomically(folder + "/" + kConfig, config.dump(2, ' ', false) + "\n");
}

}  // namespace octet::text
