#include "octet/base/model_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <utility>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet {
namespace {

/// A type of values, as messages name it.
struct Type {
  const char* expected;
  bool (*fits)(const Json& value);
};

// Compared as doubles: a number beyond 63 bits becomes negative as an integer.
bool is_id(const Json& value) {
  return value.is_number_integer() && std::abs(value.get<double>()) <= INT32_MAX;
}
bool is_end(const Json& value) {
  return is_id(value) && value.get<double>() >= 0;
}
bool is_text(const Json& value) {
  return value.is_string();
}
bool is_flag(const Json& value) {
  return value.is_boolean();
}
bool is_number(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}
bool is_whole(const Json& value) {
  return is_number(value) && std::floor(value.get<double>()) == value.get<double>();
}
bool is_token(const Json& value) {
  if (!value.is_object()) return value.is_string();
  const auto content = value.find("content");
  return content != value.end() && content->is_string();
}
bool each_fits(const Json& value, bool (*fits)(const Json&)) {
  return std::all_of(value.begin(), value.end(), fits);
}
/// {"name": NAME, "template": TEXT}.
bool is_named_template(const Json& value) {
  if (!value.is_object()) return false;
  const auto name = value.find("name"), text = value.find("template");
  return name != value.end() && name->is_string() && text != value.end() && text->is_string();
}

constexpr Type kId{"a token's number, or null", is_id};
constexpr Type kEnds{"a token's number from 0, or a list of such numbers", [](const Json& value) {
                       return value.is_array() ? each_fits(value, is_end) : is_end(value);
                     }};
constexpr Type kFlag{"true or false", is_flag};
constexpr Type kNumber{"a finite number", is_number};
constexpr Type kWhole{"a whole number", is_whole};
constexpr Type kText{"a string", is_text};
constexpr Type kTexts{"a list of strings",
                      [](const Json& value) { return value.is_array() && each_fits(value, is_text); }};
constexpr Type kDtype{"the name of a dtype, as in \"bfloat16\"", [](const Json& value) {
                        // transformers also takes an object with a dtype for each part of a model.
                        return is_text(value) || (value.is_object() && each_fits(value, is_text));
                      }};
constexpr Type kToken{"a token's text, or an object with its text as content", is_token};
constexpr Type kTokens{"a list of tokens, each a text or an object with content",
                       [](const Json& value) { return value.is_structured() && each_fits(value, is_token); }};
constexpr Type kAdded{"an object of tokens by their numbers",
                      [](const Json& value) { return value.is_object(); }};
constexpr Type kTemplate{"a template's text, or a list of objects with name and template",
                         [](const Json& value) {
                           if (value.is_array()) return each_fits(value, is_named_template);
                           return is_text(value) || (value.is_object() && each_fits(value, is_text));
                         }};

struct Row {
  std::string_view file, key;
  Type type;
};

constexpr std::string_view kConfig = "config.json", kGeneration = "generation_config.json",
                           kTokenizer = "tokenizer_config.json", kMap = "special_tokens_map.json";

constexpr auto kRows = std::to_array<Row>({
    {kConfig, "eos_token_id", kEnds},
    {kConfig, "bos_token_id", kId},
    {kConfig, "pad_token_id", kId},
    {kConfig, "dtype", kDtype},
    {kConfig, "torch_dtype", kDtype},
    {kConfig, "architectures", kTexts},
    {kGeneration, "eos_token_id", kEnds},
    {kGeneration, "bos_token_id", kId},
    {kGeneration, "pad_token_id", kId},
    {kGeneration, "do_sample", kFlag},
    {kGeneration, "temperature", kNumber},
    {kGeneration, "top_p", kNumber},
    {kGeneration, "min_p", kNumber},
    {kGeneration, "top_k", kWhole},
    {kGeneration, "repetition_penalty", kNumber},
    {kGeneration, "max_new_tokens", kWhole},
    {kTokenizer, "add_bos_token", kFlag},
    {kTokenizer, "model_max_length", kNumber},
    {kTokenizer, "chat_template", kTemplate},
    {kTokenizer, "added_tokens_decoder", kAdded},
});

/// Keys of special tokens, which tokenizer_config.json and special_tokens_map.json share.
constexpr auto kRoles = std::to_array<Row>({
    {kMap, "bos_token", kToken},
    {kMap, "eos_token", kToken},
    {kMap, "unk_token", kToken},
    {kMap, "sep_token", kToken},
    {kMap, "pad_token", kToken},
    {kMap, "cls_token", kToken},
    {kMap, "mask_token", kToken},
    {kMap, "additional_special_tokens", kTokens},
    {kMap, "extra_special_tokens", kTokens},
});

void require_type(const Json& object, const Row& row, const std::string& where) {
  const auto found = object.find(row.key);
  if (found == object.end() || found->is_null() || row.type.fits(*found)) return;
  throw Error({.what = "value of '" + std::string(row.key) + "' cannot be used",
               .expected = row.type.expected,
               .found = short_json(*found),
               .where = where,
               .fix = "correct the value, or fetch the file again",
               .code = ExitCode::usage});
}

}  // namespace

void require_types(const Json& object, std::string_view name, const std::string& where) {
  for (const Row& row : kRows) {
    if (row.file == name) require_type(object, row, where);
  }
  if (name != kTokenizer && name != kMap) return;
  for (const Row& row : kRoles) require_type(object, row, where);
}

Json read_model_file(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  if (!path_exists(path)) return Json::object();
  Json object = read_json(path);
  if (!object.is_object()) {
    throw Error({.what = "a file of a model folder has no settings",
                 .expected = "an object of keys and values",
                 .found = short_json(object),
                 .where = path,
                 .fix = "fetch the file again, or remove it",
                 .code = ExitCode::usage});
  }
  require_types(object, name, path);
  return object;
}

std::vector<std::int32_t> token_ids(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return {};
  if (!found->is_array()) return {found->get<std::int32_t>()};
  return found->get<std::vector<std::int32_t>>();
}

std::string token_text(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->at("content").get<std::string>();
}

namespace {

bool is_word(const std::string& text) {
  return !text.empty() && text.front() != '.' && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

/// The folder of "owner/name" in the cache; "" if it is not a name on the hub.
std::string folder_of(HubKind kind, const std::string& name) {
  const std::size_t slash = name.find('/');
  const bool owned = slash != std::string::npos;
  if (!is_word(owned ? name.substr(0, slash) : name) || (owned && !is_word(name.substr(slash + 1))))
    return "";
  std::string folder = kind == HubKind::model ? "models--" : "datasets--";
  if (owned) folder += name.substr(0, slash) + "--";
  return folder + name.substr(owned ? slash + 1 : 0);
}

}  // namespace

std::string hub_folder(const VariableText& variable) {
  static constexpr std::array<std::pair<const char*, const char*>, 5> kPlaces{
      {{"HF_HUB_CACHE", ""},
       {"HUGGINGFACE_HUB_CACHE", ""},
       {"HF_HOME", "/hub"},
       {"XDG_CACHE_HOME", "/huggingface/hub"},
       {"HOME", "/.cache/huggingface/hub"}}};
  for (const auto& [name, below] : kPlaces) {
    if (const std::string set = variable(name); !set.empty()) return set + below;
  }
  return "";
}

std::string hub_folder() {
  return hub_folder([](const char* name) {
    const char* text = environment_variable(name);
    return std::string(text == nullptr ? "" : text);
  });
}

std::string hub_snapshot(const std::string& hub, HubKind kind, const std::string& name,
                         const std::string& revision) {
  const std::string folder = folder_of(kind, name);
  if (hub.empty() || folder.empty() || !is_word(revision)) return "";
  const std::string reference = hub + "/" + folder + "/refs/" + revision;
  const std::string commit =
      path_exists(reference) && !is_folder(reference) ? std::string(trim(read_file(reference))) : revision;
  if (!is_word(commit)) return "";
  std::string snapshot = hub + "/" + folder + "/snapshots/" + commit;
  return is_folder(snapshot) ? snapshot : "";
}

}  // namespace octet
