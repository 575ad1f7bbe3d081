#include <algorithm>
#include <map>

#include "jinja/python_text.h"
#include "octet/base/json.h"
#include "templates/template_row.h"

namespace octet::text {
namespace {

constexpr const char* kWhere = "the table of templates";

/// The rows by name, and their names in the order of the table.
struct Rows {
  std::map<std::string, std::shared_ptr<const ChatTemplate::Row>> by_name;
  std::vector<std::string> order;
};

Slots read_slots(const Json& row, const char* key, const Slots& fallback) {
  const auto it = row.find(key);
  if (it == row.end()) return fallback;
  Slots out;
  for (const auto& slot : *it) {
    if (slot.is_string()) {
      out.push_back({Slot::Kind::text, slot.get<std::string>()});
    } else {
      out.push_back({slot.at("token") == "bos" ? Slot::Kind::bos : Slot::Kind::eos, ""});
    }
  }
  return out;
}

WordPair read_words(const Json& row, const char* key, const WordPair& fallback) {
  const auto it = row.find(key);
  if (it == row.end()) return fallback;
  return {it->at(0).get<std::string>(), it->at(1).get<std::string>()};
}

ChatTemplate::Row read_row(const Json& json) {
  const std::string where = kWhere;
  const Slots content{{Slot::Kind::text, "{{content}}"}};
  ChatTemplate::Row out;
  out.name = json_string(json, "name", "", where);
  out.replace_eos = json_bool(json, "replace_eos", false, where);
  out.efficient_eos = json_bool(json, "efficient_eos", false, where);
  out.fuse_system = json_bool(json, "fuse_system", false, where);
  out.thinks = json_bool(json, "thinks", false, where);
  out.tool_format = json_string(json, "tool_format", "default", where);
  out.default_system = json_string(json, "default_system", "", where);
  out.thought_words = read_words(json, "thought_words", out.thought_words);
  out.empty_thought =
      json_string(json, "empty_thought", out.thought_words.begin + out.thought_words.end, where);
  Slots answer = content;
  if (!out.efficient_eos) answer.push_back({Slot::Kind::eos, ""});
  out.prefix = read_slots(json, "prefix", {});
  out.system = read_slots(json, "system", content);
  out.user = read_slots(json, "user", content);
  out.assistant = read_slots(json, "assistant", answer);
  out.observation = read_slots(json, "observation", out.user);
  out.function = read_slots(json, "function", out.assistant);
  if (json.contains("stop_words")) {
    for (const auto& word : json.at("stop_words")) out.stop_words.push_back(word.get<std::string>());
  }
  return out;
}

const Rows& rows() {
  static const Rows all = [] {
    Rows out;
    for (const auto& json : template_table().at("templates")) {
      auto row = std::make_shared<const ChatTemplate::Row>(read_row(json));
      out.order.push_back(row->name);
      out.by_name[row->name] = std::move(row);
    }
    return out;
  }();
  return all;
}

/// Other names in LLaMA-Factory for the text of a row. Most belong to models of images or sounds, which are
/// not part of the text.
const std::map<std::string, std::string>& other_names() {
  static const std::map<std::string, std::string> all{
      {"gemma3n", "gemma3"},  {"gemma4n", "gemma4"},       {"glm_ocr", "glm4"},
      {"keye_vl", "qwen3"},   {"ministral3", "ministral"}, {"mllama", "llama3"},
      {"phi_small", "phi"},   {"pixtral", "ministral"},    {"qwen2_omni", "qwen2_vl"},
      {"qwen3_6", "qwen3_5"}, {"qwen3_omni", "qwen3"},     {"qwen3_omni_nothink", "qwen3_nothink"},
      {"qwen3_vl", "qwen3"},  {"video_llava", "vicuna"},   {"qwen3_vl_nothink", "qwen3_nothink"},
      {"yi", "smollm"}};
  return all;
}

/// Adds the rows of a part of the table to `out`, with the fields of `like`.
void add_rows(std::string_view text, Json& out) {
  for (Json row : parse_json(text, kWhere)) {
    if (const std::string like = json_string(row, "like", "", kWhere); !like.empty()) {
      Json whole = *std::ranges::find_if(
          out, [&](const Json& other) { return other.at("name").get<std::string>() == like; });
      row.erase("like");
      whole.update(row);
      row = std::move(whole);
    }
    out.push_back(std::move(row));
  }
}

}  // namespace

std::shared_ptr<const ChatTemplate::Row> find_row(const std::string& name) {
  const auto other = other_names().find(name);
  const auto it = rows().by_name.find(other == other_names().end() ? name : other->second);
  return it == rows().by_name.end() ? nullptr : it->second;
}

Conversation trimmed(const ChatTemplate::Row& row, Conversation conversation) {
  if (row.trims.contains("system")) conversation.system = python::strip(conversation.system);
  for (Message& message : conversation.messages) {
    if (row.trims.contains(message.role)) message.content = python::strip(message.content);
    // In a message with tool calls, the text before the calls is the answer's content.
    if (message.role == "function" && row.trims.contains("assistant"))
      message.text = python::strip(message.text);
  }
  return conversation;
}

std::string row_words(const std::string& name) {
  // The option tool_format can select each of these formats for each row.
  std::string words = parse_json(general_rows().formats, kWhere).dump();
  for (const auto& json : template_table().at("templates")) {
    if (json.at("name").get<std::string>() != name) continue;
    words += json.dump();
    const std::string format = json_string(json, "tool_format", "default", kWhere);
    for (const auto& other : parse_json(family_rows().formats, kWhere)) {
      if (other.at("name").get<std::string>() == format) words += other.dump();
    }
  }
  return words;
}

std::vector<std::string> row_names() {
  std::vector<std::string> out = rows().order;
  std::ranges::sort(out);
  return out;
}

std::vector<std::string> row_names_in_order() {
  return rows().order;
}

std::vector<std::string> template_names() {
  std::vector<std::string> out = rows().order;
  for (const auto& [name, row] : other_names()) out.push_back(name);
  std::ranges::sort(out);
  return out;
}

// Fields of a template:
// - `like`: the name of an earlier row. Its fields are the defaults.
// - `prefix`, `system`, `user`, `assistant`, `observation`, `function`: lists of slots. A slot is a string or
//   {"token": "bos" or "eos"}. Defaults: `prefix` is empty; `system` and `user` are only the content;
//   `assistant` is the content and an eos (no eos with `efficient_eos`); `observation` equals `user`;
//   `function` equals `assistant`.
// - `tool_format`: the format of tools and calls; default "default".
// - `default_system`: the system text of conversations without one.
// - `stop_words`: strings that end an answer. They are registered as special tokens.
// - `replace_eos`: the first stop word becomes the eos.
// - `efficient_eos`: one eos after the last turn instead of one per turn.
// - `fuse_system`: the system text is part of the first question.
// - `thinks`: answers have a thought, which may be empty.
// - `thought_words`: the words before and after a thought.
// - `empty_thought`: an empty thought; default: the two words.
//
// Fields of a tool format:
// - `refused`: why rows with tools or calls are refused. This format has no further fields.
// - `prompt`: the text after the system text, with {{tools}}, {{names}}, {{date}}.
// - `tool`: how tools are written. `form` "json" writes each tool as JSON (`indent`, text `before` and
//   `after`); `before` may have {{name}}. "json list" writes one JSON list, "description" a description of
//   each tool, and "raw" the text of the data. `as`: a tool is written as {"type": "function", "function":
//   ...} ("wrapped", the default), without this object ("bare"), or as in the data ("given").
// - `call`: how calls are written. `form` "text" writes each call as `text` with {{name}} and {{arguments}}.
//   "parameters" writes `before` with {{name}}, then `parameter` with {{key}} and {{value}} for each
//   argument, then `after`. "json" writes an object; `arguments` is the key of its arguments, and `list` is
//   "always", "when several" or "never" (the default). Without a list, `before` and `after` are texts around
//   each object. `between` is the text between calls. `most`: the largest number of calls in an answer.
const Json& template_table() {
  static const Json all = [] {
    Json out{{"tool_formats", Json::array()}, {"templates", Json::array()}};
    for (const TemplateTable& part : {general_rows(), family_rows()}) {
      for (const Json& format : parse_json(part.formats, kWhere)) out["tool_formats"].push_back(format);
      add_rows(part.rows, out["templates"]);
    }
    return out;
  }();
  return all;
}

}  // namespace octet::text
