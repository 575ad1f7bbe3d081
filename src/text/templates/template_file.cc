#include "templates/template_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "jinja/jinja_tree.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/text/template_match.h"

namespace octet::text {
namespace {

constexpr const char* kKey = "configuration key 'template'";
constexpr const char* kNameOne =
    "name a template that is built in: llama3, qwen, chatml, ...; or set template=null, for the model's own";

// Names of the question in SFT-Play's rows. If a file reads several of them, the first in this order gets the
// question.
constexpr std::array kQuestions{"user", "instruction", "prompt", "question", "input"};
// Other variables that a file for one question may read.
constexpr std::array kOthers{"system", "bos_token", "eos_token", "pad_token", "add_generation_prompt"};

// Limit on the messages of a conversation. Each turn is rendered with all earlier turns, so the time is
// quadratic.
constexpr std::size_t kMostMessages = 1000;
// Limit on the bytes of a text that is tokenised again for each added piece.
constexpr std::size_t kMostAtOnce = std::size_t{64} << 10;

Conversation sample() {
  return {.messages = {{"user", "What is 6 times 7?"}, {"assistant", "42."}}, .system = {}, .tools = {}};
}

std::string listed(const std::set<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "'" : ", '") + name + "'";
  return all.empty() ? "no variables" : all;
}

std::string quoted(const std::string& text, std::size_t at) {
  std::string part = text.substr(std::min(at, text.size()), 40);
  return Json(part).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Describes the first difference if `whole` does not begin with `begin`; "" if it does.
std::string difference(const std::string& begin, const std::string& whole) {
  if (whole.starts_with(begin)) return "";
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(begin, whole).in1 - begin.begin());
  return quoted(whole, at) + " in place of " + quoted(begin, at);
}

/// Returns "file:3" for a problem in line 3 of the template, and otherwise the path.
std::string place(const std::string& path, const Problem& problem) {
  constexpr std::string_view line = "line ";
  if (!problem.where.starts_with(line)) return path;
  return path + ":" + problem.where.substr(line.size(), problem.where.find(' ', line.size()) - line.size());
}

/// The values of Jinja hold whole numbers of 64 bits with a sign. Throws Refusal for a larger one.
void refuse_long_numbers(const Json& value) {
  const std::string digits = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX
                                 ? value.dump()
                                 : json_digits(value);
  if (!digits.empty())
    throw Refusal{"the number " + digits.substr(0, 40) +
                  " has more digits than a template in a file supports"};
  if (!value.is_structured()) return;
  for (const Json& item : value) refuse_long_numbers(item);
}

Json parse_for_jinja(const std::string& text, const std::string& what) {
  Json parsed = parse_json_digits(text, what);
  refuse_long_numbers(parsed);
  return parsed;
}

/// Returns a message in the form that Jinja templates read, without its thought.
Json plain_message_of(const Message& message) {
  if (message.role == "user" || message.role == "assistant")
    return {{"role", message.role}, {"content", message.content}};
  if (message.role == "observation") return {{"role", "tool"}, {"content", message.content}};
  if (message.role != "function")
    throw Refusal{"a message has the role '" + message.role.substr(0, 40) + "'"};
  Json parsed = parse_for_jinja(message.content, "the calls of a turn"), calls = Json::array();
  if (!parsed.is_array()) parsed = Json::array({parsed});
  for (const Json& call : parsed) calls.push_back({{"type", "function"}, {"function", call}});
  return {{"role", "assistant"}, {"content", message.text}, {"tool_calls", calls}};
}

/// Like plain_message_of(), with the thought under the names that the file reads.
Json message_of(const Message& message, const std::string& source) {
  Json out = plain_message_of(message);
  if (message.thought.empty()) return out;
  bool read = false;
  for (const std::string& name : {std::string("reasoning_content"), message.thought_field}) {
    if (name.empty() || source.find(name) == std::string::npos) continue;
    out[name] = message.thought;
    read = true;
  }
  if (!read) throw Refusal{unwritten_thought(message)};
  return out;
}

std::string system_of(const Conversation& conversation, const TemplateOptions& options) {
  return conversation.system.empty() ? options.default_system.value_or("") : conversation.system;
}

}  // namespace

TemplateFile::TemplateFile(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path_, ignored)) {
    throw Error({.what = "the file of the chat template does not exist",
                 .expected = "a file in Jinja, relative to the working folder",
                 .found = path_,
                 .where = kKey,
                 .fix = std::string("check the path; or ") + kNameOne,
                 .code = ExitCode::usage});
  }
  source_ = read_file(path_);
  try {
    jinja_ = std::make_unique<const JinjaTemplate>(source_);
    asks_ = jinja::asked_names(jinja::parse(source_));
  } catch (const Error& e) {
    throw Error({.what = "the file of the chat template has an error, or uses unsupported Jinja",
                 .expected = "a template in Jinja, with the functions of chat templates",
                 .found = e.problem().what,
                 .where = place(path_, e.problem()),
                 .fix = std::string("correct this line; or ") + kNameOne,
                 .code = ExitCode::usage});
  }
  if (asks_for("messages")) return;
  kind_ = Kind::question;
  for (const char* name : kQuestions) {
    if (question_.empty() && asks_for(name)) question_ = name;
  }
  std::set<std::string> unknown = asks_;
  for (const char* name : kQuestions) unknown.erase(name);
  for (const char* name : kOthers) unknown.erase(name);
  if (asks_for("instruction") && asks_for("input")) unknown.insert("input");
  if (!question_.empty() && unknown.empty()) return;
  const bool answers = unknown.contains("assistant") || unknown.contains("target");
  throw Error(
      {.what = question_.empty() ? "the file of the chat template uses no question"
                                 : "the file of the chat template uses unknown variables",
       .expected = "'messages', or one question: user, instruction, prompt, question or input; also system, "
                   "bos_token and eos_token",
       .found = question_.empty() ? listed(asks_) : listed(unknown),
       .where = path_,
       .fix = answers ? "end the file where the answer begins: the program adds the answer and the end token"
              : unknown.contains("input")
                  ? "write only {{ instruction }}: the program adds the column input on a new line"
                  : "write the prompt with these variables; or put other text into the questions of the rows",
       .code = ExitCode::usage});
}

bool TemplateFile::adds_bos(const Tokenizer& tokenizer) const {
  if (kind_ != Kind::question || tokenizer.bos_id() < 0 || asks_for("bos_token")) return false;
  if (source_.starts_with(tokenizer.bos_token())) return false;
  const auto ids = tokenizer.encode("x", {.add_special = true}).ids;
  return !ids.empty() && ids.front() == tokenizer.bos_id();
}

void TemplateFile::check(const TemplateOptions& options) const {
  const auto refuse_option = [&](bool given, const std::string& name, const std::string& fix) {
    if (!given) return;
    throw Error({.what = "a template in a file does not support " + name,
                 .expected = "a built-in template, or no " + name,
                 .found = "the template " + path_,
                 .where = "configuration key '" + name + "'",
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  refuse_option(options.preserve_thinking, "preserve_thinking",
                "leave preserve_thinking false: the file sets which thoughts are kept");
  refuse_option(options.tool_format.has_value(), "tool_format",
                "leave tool_format out: the file sets how tools are written");
  refuse_option(options.split_special_tokens, "split_special_tokens",
                "leave split_special_tokens false: the file writes texts and special tokens as one text");
  refuse_option(!options.date.empty(), "template_date",
                "leave template_date out: the file prints today's date, or a fixed date");
}

void TemplateFile::refuse(const Error& error) const {
  throw Error({.what = "the file of the chat template cannot be rendered",
               .expected = "a text for a question and its answer",
               .found = error.problem().what,
               .where = place(path_, error.problem()),
               .fix = std::string("correct the file; or ") + kNameOne,
               .code = ExitCode::usage});
}

void TemplateFile::require_usable(const Tokenizer& tokenizer) const {
  const auto fail = [&](const std::string& what, const std::string& expected, const std::string& found,
                        const std::string& fix) {
    throw Error({.what = what,
                 .expected = expected,
                 .found = found,
                 .where = path_,
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  const Conversation asked = sample();
  const std::string &question = asked.messages[0].content, &answer = asked.messages[1].content;
  std::vector<std::string> written;
  try {
    written = texts(tokenizer, asked, {}, false);
  } catch (const Refusal& refusal) {
    fail("the file of the chat template does not write an answer as a continuation of its question",
         "the text of the messages before an answer (with add_generation_prompt: true), followed by the text "
         "of the answer",
         refusal.reason,
         "write the same text for the messages in both cases; put the text that asks for an answer under 'if "
         "add_generation_prompt'");
  } catch (const Error& e) {
    refuse(e);
  }
  if (written[0].find_first_not_of(" \t\r\n") == std::string::npos) {
    fail("the file of the chat template writes nothing", "the question and the text around it",
         "an empty text for the question " + quoted(question, 0), "print the question in the file");
  }
  if (written[0].find(question) == std::string::npos) {
    fail("the file of the chat template does not write the question", quoted(question, 0) + " in the text",
         quoted(written[0], 0), "print the question in the file");
  }
  if (written[1].find(answer) == std::string::npos) {
    fail("the file of the chat template does not write the answer", quoted(answer, 0) + " after the question",
         quoted(written[1], 0), "print messages of the role assistant, too");
  }
  if (kind_ != Kind::question) return;
  // Checks that the exported template writes the question and the answer as in training.
  const Json messages{{{"role", "user"}, {"content", question}},
                      {{"role", "assistant"}, {"content", answer}}};
  try {
    const JinjaTemplate exported(jinja_of_file(*this, {}, tokenizer));
    const std::string whole = exported.render({{"messages", messages},
                                               {"add_generation_prompt", false},
                                               {"bos_token", tokenizer.bos_token()},
                                               {"eos_token", tokenizer.eos_token()},
                                               {"pad_token", tokenizer.pad_token()}});
    if (whole != written[0] + written[1])
      throw Error("in a loop it writes " + quoted(whole, 0) + ", alone " + quoted(written[0], 0));
  } catch (const Error& e) {
    fail("the file of the chat template cannot be converted into a template of conversations",
         "a file that writes the same text inside a loop, as in the exported model", e.problem().what,
         "write the prompt without macros");
  }
}

std::string TemplateFile::end_token(const Tokenizer& tokenizer) const {
  if (kind_ == Kind::question) return tokenizer.eos_token();
  const Conversation asked = sample();
  const std::string& answer = asked.messages[1].content;
  const std::string written = texts(tokenizer, asked, {}, false).at(1);
  for (const TokenId id : tokenizer.encode(written.substr(written.rfind(answer) + answer.size())).ids) {
    if (tokenizer.is_special(id)) return tokenizer.id_to_token(id);
  }
  return "";
}

std::string TemplateFile::rendered(const Tokenizer& tokenizer, Json variables) const {
  if (!tokenizer.bos_token().empty()) variables["bos_token"] = tokenizer.bos_token();
  if (!tokenizer.eos_token().empty()) variables["eos_token"] = tokenizer.eos_token();
  if (!tokenizer.pad_token().empty()) variables["pad_token"] = tokenizer.pad_token();
  return jinja_->render(variables);
}

std::vector<std::string> TemplateFile::of_conversation(const Tokenizer& tokenizer,
                                                       const Conversation& conversation,
                                                       const TemplateOptions& options,
                                                       bool last_alone) const {
  Json variables{{"messages", Json::array()}, {"tools", nullptr}, {"documents", nullptr}};
  if (!conversation.tools.empty())
    variables["tools"] = parse_for_jinja(conversation.tools, "the tools of a row");
  // If neither the row nor the configuration sets it, the file decides.
  if (options.enable_thinking == false) variables["enable_thinking"] = false;
  if (conversation.enable_thinking) variables["enable_thinking"] = *conversation.enable_thinking;
  const std::string system = system_of(conversation, options);
  if (!system.empty()) variables["messages"].push_back({{"role", "system"}, {"content", system}});
  const std::size_t count = conversation.messages.size();
  std::vector<std::string> out;
  std::string done;
  bool again = false;  // the text up to the next question is one piece
  for (std::size_t i = 0; i < count; ++i) {
    variables["messages"].push_back(message_of(conversation.messages[i], source_));
    const bool asks = i % 2 == 0, last = i + 1 == count;
    variables["add_generation_prompt"] = asks;
    std::string now = rendered(tokenizer, variables);
    const std::string differs = difference(done, now);
    if (last_alone && asks && (again || !differs.empty())) {
      out.assign(1, now);
      again = false;
    } else if (differs.empty()) {
      out.push_back(now.substr(done.size()));
    } else if (last_alone && !last) {
      again = true;
    } else {
      throw Refusal{asks ? "before message " + std::to_string(i + 1) +
                               " it writes the earlier messages differently: " + differs +
                               "; mask_history: true works, which trains only the last answer"
                         : "with the answer it writes " + differs};
    }
    done = std::move(now);
  }
  return out;
}

std::vector<std::string> TemplateFile::of_questions(const Tokenizer& tokenizer,
                                                    const Conversation& conversation,
                                                    const TemplateOptions& options) const {
  if (!conversation.tools.empty()) throw Refusal{"the file writes no tools, but the row has tools"};
  std::vector<std::string> out;
  for (const Message& message : conversation.messages) {
    const bool asks = out.size() % 2 == 0;
    if (message.role != (asks ? "user" : "assistant"))
      throw Refusal{"the file writes only questions and answers, not a message of the role '" +
                    message.role.substr(0, 40) + "'"};
    if (!message.thought.empty()) throw Refusal{unwritten_thought(message)};
    if (!asks) {
      out.push_back(message.content + tokenizer.eos_token());
      continue;
    }
    const std::string prompt =
        rendered(tokenizer, {{question_, message.content},
                             {"system", out.empty() ? system_of(conversation, options) : ""},
                             {"add_generation_prompt", true}});
    out.push_back((out.empty() && adds_bos(tokenizer) ? tokenizer.bos_token() : "") + prompt);
  }
  return out;
}

std::vector<std::string> TemplateFile::texts(const Tokenizer& tokenizer, const Conversation& conversation,
                                             const TemplateOptions& options, bool last_alone) const {
  if (conversation.messages.size() > kMostMessages) {
    throw Refusal{std::to_string(conversation.messages.size()) + " messages, more than " +
                  std::to_string(kMostMessages)};
  }
  return kind_ == Kind::question ? of_questions(tokenizer, conversation, options)
                                 : of_conversation(tokenizer, conversation, options, last_alone);
}

EncodedTurns TemplateFile::turns(const Tokenizer& tokenizer, const Conversation& conversation,
                                 const TemplateOptions& options, bool last_alone) const {
  EncodedTurns out;
  std::string text;
  std::vector<TokenId> before;
  for (const std::string& piece : texts(tokenizer, conversation, options, last_alone)) {
    std::vector<TokenId> ids;
    const bool together = text.size() + piece.size() <= kMostAtOnce;
    if (together) ids = tokenizer.encode(text + piece).ids;
    if (together && ids.size() >= before.size() && std::equal(before.begin(), before.end(), ids.begin())) {
      text += piece;
    } else {
      text = piece;
      before.clear();
      ids = tokenizer.encode(piece).ids;
    }
    out.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(before.size()), ids.end());
    before = std::move(ids);
  }
  return out;
}

}  // namespace octet::text
