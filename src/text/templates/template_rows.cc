#include <map>

#include "jinja/python_text.h"
#include "octet/base/json.h"
#include "templates/template_row.h"
#include "templates/template_table.h"

namespace octet::text {
namespace {

using Rows = std::map<std::string, std::shared_ptr<const ChatTemplate::Row>>;

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

ChatTemplate::Row read_row(const Json& json) {
  const std::string where = "the table of templates";
  const Slots content{{Slot::Kind::text, "{{content}}"}};
  ChatTemplate::Row out;
  out.name = json_string(json, "name", "", where);
  out.replace_eos = json_bool(json, "replace_eos", false, where);
  out.efficient_eos = json_bool(json, "efficient_eos", false, where);
  out.fuse_system = json_bool(json, "fuse_system", false, where);
  out.thinks = json_bool(json, "thinks", false, where);
  out.tool_format = json_string(json, "tool_format", "default", where);
  out.default_system = json_string(json, "default_system", "", where);
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
    const Json table = parse_json(template_table(), "the table of templates");
    for (const auto& json : table.at("templates")) {
      auto row = std::make_shared<const ChatTemplate::Row>(read_row(json));
      out[row->name] = std::move(row);
    }
    return out;
  }();
  return all;
}

}  // namespace

std::shared_ptr<const ChatTemplate::Row> find_row(const std::string& name) {
  const auto it = rows().find(name);
  return it == rows().end() ? nullptr : it->second;
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
  const Json table = parse_json(template_table(), "the table of templates");
  std::string words = table.at("tool_formats").dump();
  for (const auto& json : table.at("templates")) {
    if (json_string(json, "name", "", "the table of templates") == name) words += json.dump();
  }
  return words;
}

std::vector<std::string> row_names() {
  std::vector<std::string> out;
  for (const auto& [name, row] : rows()) out.push_back(name);
  return out;
}

}  // namespace octet::text
