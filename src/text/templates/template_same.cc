// Decides whether a model's own chat template is kept. It must write the same text as the row of the table
// for everything that the row supports, including tools and thoughts.
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"
#include "octet/text/jinja.h"
#include "octet/text/template_jinja.h"
#include "octet/text/template_match.h"
#include "templates/template_row.h"

namespace octet::text {
namespace {

/// Arguments of a test call of apply_chat_template.
struct Call {
  Json messages;
  bool asks = false;             ///< the text ends where an answer begins
  std::optional<bool> thinking;  ///< enable_thinking, if it is passed
  bool tools = false;
};

Json says(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Json calls(const std::string& content, const std::vector<std::string>& cities) {
  Json message = says("assistant", content);
  for (const std::string& city : cities) {
    const Json function{{"name", "get_weather"}, {"arguments", {{"city", city}, {"days", 2}}}};
    message["tool_calls"].push_back({{"type", "function"}, {"function", function}});
  }
  return message;
}

const Json& tools() {
  static const Json all = parse_json(
      R"json([
  {"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"city\", °C", "parameters":
    {"type": "object", "required": ["city"], "properties": {
      "city": {"type": "string", "description": "its name"},
      "days": {"type": "integer", "description": "how many"},
      "unit": {"type": "string", "description": "of degrees", "enum": ["C", "F"]},
      "hours": {"type": "array", "description": "which", "items": {"type": "integer"}}}}}},
  {"type": "function", "function": {"name": "now", "description": "The time", "parameters":
    {"type": "object", "properties": {}}}}])json",
      "the tools that chat templates are compared with");
  return all;
}

std::vector<Call> plain_calls() {
  const Json system = says("system", "Answer briefly.");
  const Json question = says("user", "What is 6 times 7?"), answer = says("assistant", "42.");
  const Json next = says("user", "And 7 times 8?"), last = says("assistant", "It is 56.");
  return {{.messages = {system, question, answer, next, last}},
          {.messages = {question, answer, next, last}},
          {.messages = {question, answer}},
          {.messages = {question}, .asks = true},
          {.messages = {system, question}, .asks = true},
          {.messages = {question, answer, next}, .asks = true}};
}

/// Test calls with blanks around contents. Many templates trim them.
std::vector<Call> blank_calls() {
  const auto padded = [](const char* role, const std::string& content) {
    return says(role, " \u3000\n" + content + "\n\u3000 ");
  };
  const Json question = says("user", "What is 6 times 7?"), answer = says("assistant", "42.");
  return {{.messages = {padded("system", "Answer briefly."), question, answer}},
          {.messages = {padded("user", "What is 6 times 7?"), answer}},
          {.messages = {question, padded("assistant", "42.")}}};
}

std::vector<Call> tool_calls() {
  const Json system = says("system", "Answer briefly."), question = says("user", "How is Oslo's weather?");
  const Json one = calls("", {"Oslo"}), two = calls("", {"Oslo", "Rome"});
  const Json found = says("tool", "{\"degrees\": 7}"), answer = says("assistant", "7 degrees.");
  const Json next = says("user", "And Rome's?");
  return {{.messages = {system, question}, .asks = true, .tools = true},
          {.messages = {question}, .asks = true, .tools = true},
          {.messages = {question, one}, .tools = true},
          {.messages = {question, two}, .tools = true},
          {.messages = {question, one, found}, .asks = true, .tools = true},
          {.messages = {system, question, one, found, answer}, .tools = true},
          {.messages = {question, one, found, answer, next}, .asks = true, .tools = true},
          // A conversation may contain calls although its tools are no longer listed.
          {.messages = {question, one, found, answer}}};
}

std::vector<Call> thinking_calls() {
  const std::string thought = "<think>\n6 * 7 = 42\n</think>\n\n";
  const Json question = says("user", "What is 6 times 7?"), answer = says("assistant", thought + "42.");
  const Json next = says("user", "And 7 times 8?"), last = says("assistant", "It is 56.");
  return {{.messages = {question}, .asks = true, .thinking = false},
          {.messages = {question}, .asks = true, .thinking = true},
          {.messages = {question, answer}},
          {.messages = {question, answer, next}, .asks = true},
          {.messages = {question, answer, next, last}},
          {.messages = {question, calls(thought, {"Oslo"})}, .tools = true}};
}

/// Returns nothing if the template raises an error.
std::optional<std::string> written(const JinjaTemplate& jinja, const Tokenizer& tokenizer, const Call& call) {
  Json variables{{"messages", call.messages},
                 {"add_generation_prompt", call.asks},
                 {"tools", call.tools ? tools() : Json()},
                 {"documents", nullptr}};
  if (call.thinking) variables["enable_thinking"] = *call.thinking;
  if (!tokenizer.bos_token().empty()) variables["bos_token"] = tokenizer.bos_token();
  if (!tokenizer.eos_token().empty()) variables["eos_token"] = tokenizer.eos_token();
  if (!tokenizer.pad_token().empty()) variables["pad_token"] = tokenizer.pad_token();
  try {
    return jinja.render(variables);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Returns nothing without a source, and if the source is not a template.
std::optional<JinjaTemplate> parsed(const std::optional<std::string>& source) {
  if (!source) return std::nullopt;
  try {
    return JinjaTemplate(*source);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Returns the template of this name in tokenizer_config.json: from a list or an object, like transformers.
std::optional<std::string> named_template(const Json& templates, const std::string& name) {
  if (templates.is_object() && templates.contains(name)) return templates.at(name).get<std::string>();
  for (const Json& one : templates.is_array() ? templates : Json::array()) {
    if (one.at("name") == Json(name)) return one.at("template").get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> folder_template(const std::string& folder, bool with_tools) {
  const std::string own = folder + "/chat_template.jinja";
  if (path_exists(own)) return read_file(own);
  const Json config = read_model_file(folder, "tokenizer_config.json");
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (with_tools) {
    if (auto named = named_template(*found, "tool_use")) return named;
  }
  return named_template(*found, "default");
}

bool folder_writes_as(const std::string& folder, const ChatTemplate& chat, const TemplateOptions& options,
                      const Tokenizer& tokenizer) {
  // The variables of a template file are unknown, so no test calls are possible: its text must be equal.
  if (ChatTemplate::Row::of(chat).file) {
    const std::string wanted = jinja_of(chat, options, &tokenizer);
    return folder_template(folder) == wanted && folder_template(folder, true) == wanted;
  }
  const auto plain = parsed(folder_template(folder)), with_tools = parsed(folder_template(folder, true));
  if (!plain || !with_tools) return false;
  const JinjaTemplate wanted(jinja_of(chat, options, &tokenizer));
  std::vector<Call> all = plain_calls();
  const auto add = [&](const std::vector<Call>& more) { all.insert(all.end(), more.begin(), more.end()); };
  add(blank_calls());
  add(tool_calls());
  if (chat.thinks()) add(thinking_calls());
  for (const Call& call : all) {
    const auto want = written(wanted, tokenizer, call);
    check(want.has_value(), "the template of a row writes what the row can write");
    if (written(call.tools ? *with_tools : *plain, tokenizer, call) != want) return false;
  }
  return true;
}

}  // namespace octet::text
