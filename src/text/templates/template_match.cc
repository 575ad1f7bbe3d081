#include "octet/text/template_match.h"

#include <algorithm>
#include <set>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/text/jinja.h"
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

std::string all_names() {
  std::string all;
  for (const auto& name : ChatTemplate::names()) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// Describes the row with the longest common beginning with `want`, and the first difference.
std::string nearest(const std::string& want, const Tokenizer& tokenizer, const Probe& probe) {
  std::string best, text;
  for (const auto& name : ChatTemplate::names()) {
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

TemplateMatch match_jinja(const std::string& source, const std::string& whose, const Tokenizer& tokenizer) {
  std::vector<std::string> left = ChatTemplate::names();
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
        const auto same = std::ranges::find_if(
            left, [&](const std::string& name) { return written(name, tokenizer, probe) == want; });
        if (same != left.end()) left = {*same};
      } catch (const Error&) {
        // The template has no tools: keep the first name.
      }
    }
    if (!left.empty() && rendered_probes > 0)
      blanks = match_blanks(jinja, *find_row(left.front()), tokenizer);
  } catch (const Error& e) {
    failure = e.problem().what + (e.problem().where.empty() ? "" : " (" + e.problem().where + ")");
  }
  if (rendered_probes == 0) return {.found = {}, .reason = whose + " cannot be rendered: " + failure};
  if (left.empty()) {
    return {.found = {}, .reason = whose + " writes other text than each of " + all_names() + "; " + near};
  }
  ChatTemplate::Row row = *find_row(left.front());
  row.trims = blanks.trims;
  return {.found = ChatTemplate::Row::make(std::move(row)), .reason = "", .other_blanks = blanks.other};
}

}  // namespace octet::text
