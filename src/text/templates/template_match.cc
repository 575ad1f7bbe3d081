#include "octet/text/template_match.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"
#include "octet/text/jinja.h"
#include "octet/text/template_jinja.h"
#include "templates/template_file.h"
#include "templates/template_row.h"

namespace octet::text {
namespace {

// A test conversation. `asks`: its text ends before an answer.
struct Probe {
  const char* name;
  Conversation conversation;
  bool asks = false;
};

const std::vector<Probe>& probes() {
  static const std::vector<Probe> all{
      {"two turns with a system message",
       {.messages = {{"user", "What is 6 times 7?"},
                     {"assistant", "42."},
                     {"user", "And 7 times 8?"},
                     {"assistant", "It is 56."}},
        .system = "Answer briefly."}},
      {"two turns",
       {.messages = {{"user", "What is 6 times 7?"},
                     {"assistant", "42."},
                     {"user", "And 7 times 8?"},
                     {"assistant", "It is 56."}}}},
      {"one turn", {.messages = {{"user", "What is 6 times 7?"}, {"assistant", "42."}}}},
      {"a question", {.messages = {{"user", "What is 6 times 7?"}}}, true}};
  return all;
}

Probe tool_probe() {
  return {"a tool's answer",
          {.messages = {{"user", "What is 6 times 7?"},
                        {"assistant", "I ask the calculator."},
                        {"observation", "42"},
                        {"assistant", "It is 42."}}}};
}

std::string rendered(const JinjaTemplate& jinja, const Tokenizer& tokenizer, const Probe& probe) {
  Json messages = Json::array();
  const Conversation& c = probe.conversation;
  if (!c.system.empty()) messages.push_back({{"role", "system"}, {"content", c.system}});
  for (const Message& m : c.messages) {
    messages.push_back({{"role", m.role == "observation" ? "tool" : m.role}, {"content", m.content}});
  }
  Json variables{{"messages", messages},
                 {"add_generation_prompt", probe.asks},
                 {"tools", nullptr},
                 {"documents", nullptr}};
  if (!tokenizer.bos_token().empty()) variables["bos_token"] = tokenizer.bos_token();
  if (!tokenizer.eos_token().empty()) variables["eos_token"] = tokenizer.eos_token();
  if (!tokenizer.pad_token().empty()) variables["pad_token"] = tokenizer.pad_token();
  return jinja.render(variables);
}

std::string written(const std::string& name, const Tokenizer& tokenizer, const Probe& probe) {
  return write_text(*find_row(name), tokenizer, probe.conversation);
}

std::size_t common_length(const std::string& a, const std::string& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::string behind(const std::string& text, std::size_t at) {
  return Json(text.substr(std::min(at, text.size()), 40))
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// How a template treats blanks around contents.
struct BlanksMatch {
  std::set<std::string> trims;  ///< roles with trimmed contents
  std::string other;            ///< a role that is written differently; "" for none
};

/// Compares a template with a row that writes equal texts for contents without blanks. Skips roles that the
/// template refuses.
BlanksMatch match_blanks(const JinjaTemplate& jinja, const ChatTemplate::Row& row,
                         const Tokenizer& tokenizer) {
  BlanksMatch out;
  for (const char* role : {"system", "user", "assistant", "observation"}) {
    Probe probe = tool_probe();
    if (std::string_view(role) != "observation") probe = probes().front();
    const auto pad = [&](std::string& text) { text = " \u3000\n" + text + "\n\u3000 "; };
    if (std::string_view(role) == "system") pad(probe.conversation.system);
    for (Message& message : probe.conversation.messages) {
      if (message.role == role) pad(message.content);
    }
    std::string want;
    try {
      want = rendered(jinja, tokenizer, probe);
    } catch (const Error&) {
      continue;
    }
    if (want == write_text(row, tokenizer, probe.conversation)) continue;
    ChatTemplate::Row trims = row;
    trims.trims = {role};
    if (want == write_text(trims, tokenizer, trimmed(trims, probe.conversation))) {
      out.trims.insert(role);
    } else if (std::string_view(role) != "observation" && out.other.empty()) {
      out.other = role;
    }
  }
  return out;
}

// Describes the row with the longest common beginning with `want`, and the first difference.
std::string nearest(const std::string& want, const Tokenizer& tokenizer, const Probe& probe) {
  std::string best, text;
  for (const auto& name : row_names_in_order()) {
    std::string candidate = written(name, tokenizer, probe);
    if (!best.empty() && common_length(candidate, want) <= common_length(text, want)) continue;
    best = name;
    text = std::move(candidate);
  }
  const std::size_t same = common_length(text, want);
  return "'" + best + "' is the nearest: for " + probe.name + " it writes " + behind(text, same) +
         " but the model's template writes " + behind(want, same);
}

}  // namespace

bool is_template_file(const std::string& name) {
  return name.ends_with(".jinja") || name.ends_with(".jinja2") || name.ends_with(".j2");
}

ChatTemplate template_named(const std::string& name, const Tokenizer& tokenizer) {
  ChatTemplate named = ChatTemplate::find(name);
  const auto& file = ChatTemplate::Row::of(named).file;
  if (!file || file->kind() != TemplateFile::Kind::conversation) return named;
  const TemplateMatch match = match_jinja(file->source(), "the chat template " + name, tokenizer);
  return match.found && match.other_blanks.empty() ? *match.found : named;
}

std::string told_of_trims(const ChatTemplate& chat) {
  std::string roles;
  for (const std::string& role : ChatTemplate::Row::of(chat).trims)
    roles += (roles.empty() ? "" : ", ") + role;
  return roles.empty() ? "" : "; blanks around contents are trimmed: " + roles;
}

std::string told_of_file(const std::string& name, const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const auto& file = ChatTemplate::Row::of(chat).file;
  if (!file)
    return "template: " + chat.name() + " (it writes the same text as " + name + " writes" +
           told_of_trims(chat) + ")";
  if (file->kind() == TemplateFile::Kind::question)
    return "template: " + name + ", the prompt of one question, filled in from '" + file->question() +
           "'; the answer and " + tokenizer.eos_token() + " follow it";
  const std::string end = file->end_token(tokenizer);
  return "template: " + name + ", a chat template, rendered for each conversation; answers end in " +
         (end.empty() ? "no token, so that the model does not learn to stop" : end);
}

TemplateMatch match_template(const std::string& folder, const Tokenizer& tokenizer) {
  const auto source = folder_template(folder);
  if (!source) return {};
  return match_jinja(*source, "the model's own chat template", tokenizer);
}

// Test calls of a model's own chat template. The own template is kept if it writes the same text as the row
// of the table for everything that the row supports, including tools and thoughts.

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

std::vector<Call> thinking_calls(const WordPair& words) {
  const std::string thought = words.begin + "6 * 7 = 42" + words.end;
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

/// Returns the name with the template that writes the same text as `own` for the most test calls with tools
/// and thoughts. The first name wins among equals.
std::string most_alike(const std::vector<std::string>& names, const JinjaTemplate& own,
                       const Tokenizer& tokenizer) {
  std::vector<Call> all = tool_calls();
  const auto thinks =
      std::ranges::find_if(names, [](const std::string& name) { return ChatTemplate::find(name).thinks(); });
  if (thinks != names.end()) {
    for (Call& call : thinking_calls(find_row(*thinks)->thought_words)) all.push_back(std::move(call));
  }
  std::vector<std::optional<std::string>> want;
  for (const Call& call : all) want.push_back(written(own, tokenizer, call));
  std::string best;
  int most = -1;
  for (const std::string& name : names) {
    const JinjaTemplate row(jinja_of(ChatTemplate::find(name), {}, &tokenizer));
    int same = 0;
    for (std::size_t i = 0; i < all.size(); ++i) same += written(row, tokenizer, all[i]) == want[i] ? 1 : 0;
    if (same <= most) continue;
    best = name, most = same;
  }
  return best;
}

}  // namespace

TemplateMatch match_jinja(const std::string& source, const std::string& whose, const Tokenizer& tokenizer) {
  std::vector<std::string> left = row_names_in_order();
  std::string near, failure;
  int rendered_probes = 0;
  BlanksMatch blanks;
  try {
    const JinjaTemplate jinja(source);
    for (const Probe& probe : probes()) {
      std::string want;
      try {
        want = rendered(jinja, tokenizer, probe);
      } catch (const Error& e) {
        // Many templates refuse system messages.
        failure = e.problem().what;
        continue;
      }
      ++rendered_probes;
      std::erase_if(left, [&](const std::string& name) { return written(name, tokenizer, probe) != want; });
      if (left.empty() && near.empty()) near = nearest(want, tokenizer, probe);
    }
    if (left.size() > 1 && rendered_probes > 0) {
      try {
        const Probe probe = tool_probe();
        const std::string want = rendered(jinja, tokenizer, probe);
        std::vector<std::string> same;
        std::ranges::copy_if(left, std::back_inserter(same), [&](const std::string& name) {
          return written(name, tokenizer, probe) == want;
        });
        if (!same.empty()) left = std::move(same);
      } catch (const Error&) {
        // The template has no tools: keep all names.
      }
      left = {most_alike(left, jinja, tokenizer)};
    }
    if (!left.empty() && rendered_probes > 0)
      blanks = match_blanks(jinja, *find_row(left.front()), tokenizer);
  } catch (const Error& e) {
    failure = e.problem().what + (e.problem().where.empty() ? "" : " (" + e.problem().where + ")");
  }
  if (rendered_probes == 0) return {.found = {}, .reason = whose + " cannot be rendered: " + failure};
  if (left.empty()) {
    return {.found = {}, .reason = whose + " writes other text than every built-in template; " + near};
  }
  ChatTemplate::Row row = *find_row(left.front());
  row.trims = blanks.trims;
  return {.found = ChatTemplate::Row::make(std::move(row)), .reason = "", .other_blanks = blanks.other};
}

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

bool folder_writes_images(const std::string& folder) {
  const bool processor =
      path_exists(folder + "/preprocessor_config.json") || path_exists(folder + "/processor_config.json");
  if (!processor) return false;
  if (path_exists(folder + "/chat_template.json")) return true;  // of the processor
  const std::optional<std::string> own = folder_template(folder);
  return own && own->find("image") != std::string::npos;
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
  const ToolFormat& format =
      *find_tool_format(options.tool_format.value_or(ChatTemplate::Row::of(chat).tool_format));
  const bool refuses = !format.refused.empty() || format.most_calls < std::numeric_limits<std::size_t>::max();
  std::vector<Call> all = plain_calls();
  const auto add = [&](const std::vector<Call>& more) { all.insert(all.end(), more.begin(), more.end()); };
  add(blank_calls());
  add(tool_calls());
  if (chat.thinks()) add(thinking_calls(ChatTemplate::Row::of(chat).thought_words));
  for (const Call& call : all) {
    const auto want = written(wanted, tokenizer, call);
    // Training never writes tools and calls that the row refuses.
    check(want || refuses, "the template of a row writes what the row can write");
    if (!want) continue;
    if (written(call.tools ? *with_tools : *plain, tokenizer, call) != want) return false;
  }
  return true;
}

}  // namespace octet::text
