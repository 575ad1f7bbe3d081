// Writes a built-in chat template, which is a row of a table, as a Jinja chat template. Every literal is part
// of an expression, and every tag strips the blanks around it. The file can therefore have line breaks
// between tags.
#include "octet/text/template_jinja.h"

#include <algorithm>
#include <vector>

#include "jinja/python_text.h"
#include "octet/base/error.h"
#include "templates/jinja_lines.h"
#include "templates/jinja_tools.h"
#include "templates/template_file.h"
#include "templates/template_row.h"

namespace octet::text {
namespace {

constexpr std::string_view kContent = "{{content}}";

/// Adds `slot` with its {{content}} replaced by the value of the expression `content`.
void add_filled(Joined& to, const std::string& slot, const std::string& content) {
  const std::size_t at = slot.find(kContent);
  to.literal(std::string_view(slot).substr(0, at));
  if (at == std::string::npos) return;
  to.expression(content);
  to.literal(std::string_view(slot).substr(at + kContent.size()));
}

/// Tags before this statement strip all blanks. Text after this statement keeps its leading blanks.
const std::string kKeepsBlanks = "{%- if true %}{% endif %}\n";

/// Training tokenises each part of a conversation separately, and some tokenizers add a blank before each
/// text. The template tokenises one long text, so it must write these blanks between parts.
struct Blanks {
  const Tokenizer* tokenizer = nullptr;  ///< null: it adds no blanks
  bool before_blanks = false;            ///< also adds a blank before a text that begins with one
  bool after_tokens = false;             ///< also adds a blank after a special token inside a text

  explicit Blanks(const Tokenizer* one) {
    const auto bare = one == nullptr ? std::vector<TokenId>{} : one->encode("x").ids;
    const std::string first = bare.empty() ? "" : one->id_to_token(bare.front());
    if (!first.starts_with("\xE2\x96\x81") && !first.starts_with("\xC4\xA0")) return;  // Llama's, GPT-2's
    tokenizer = one;
    before_blanks = one->encode(" x").ids != bare;
    const auto with_token = one->encode(one->eos_token() + "x").ids;
    after_tokens =
        with_token.size() == bare.size() + 1 && std::equal(bare.begin(), bare.end(), with_token.begin() + 1);
  }

  /// Returns the expression before a part that begins with `text`: `gap`, or "".
  std::string before(const std::string& gap, const std::string& text) const {
    if (tokenizer == nullptr || gap == "''" || (!before_blanks && text.starts_with(' '))) return "";
    const auto ids = tokenizer->encode(text).ids;
    const bool token = ids.empty() || text.starts_with(tokenizer->id_to_token(ids.front()));
    return token ? "" : gap;
  }
  /// Like before(), for a part that is the value of the expression `value`.
  std::string before_value(const std::string& gap, const std::string& value) const {
    if (tokenizer == nullptr || gap == "''") return "";
    return before_blanks ? gap : "('' if " + value + ".startswith(' ') else " + gap + ")";
  }
  std::string after_token() const { return after_tokens ? "''" : "' '"; }
};

/// Prints slots with their {{content}} replaced by the value of the expression `content`. ns.gap is the text
/// before the next part.
void print_slots(Lines& out, const Slots& slots, const std::string& content, const Blanks& blanks) {
  if (slots.empty()) return;
  Joined all;
  std::string gap = "ns.gap";
  for (const Slot& slot : slots) {
    if (slot.kind != Slot::Kind::text) {
      all.expression(slot.kind == Slot::Kind::bos ? "bos" : "eos");
      gap = blanks.after_token();
      continue;
    }
    const bool value_first = slot.text.starts_with(kContent), bare = slot.text == kContent;
    const std::string blank = value_first ? blanks.before_value(gap, content)
                                          : blanks.before(gap, slot.text.substr(0, slot.text.find(kContent)));
    if (bare && !blank.empty()) {
      all.expression("(" + blank + " + " + content + " if " + content + " else '')");
    } else {
      // If the content is empty, the text after the content comes first.
      const std::string rest = value_first ? blanks.before(gap, slot.text.substr(kContent.size())) : blank;
      const std::string other = rest.empty() ? "''" : rest;
      if (!blank.empty())
        all.expression(rest == blank ? blank : "(" + blank + " if " + content + " else " + other + ")");
      add_filled(all, slot.text, content);
    }
    gap = bare ? "(' ' if " + content + " else " + gap + ")" : "' '";
  }
  out.print(all.text());
  if (blanks.tokenizer != nullptr) out.set("ns.gap", gap);
}

/// Returns whether the slots of an answer write text before its content, like the line end of GLM.
bool has_text_before_content(const Slots& slots) {
  return !slots.empty() && slots.front().kind == Slot::Kind::text &&
         !slots.front().text.starts_with("{{content}}");
}

void print_empty_thought(Lines& out, const ChatTemplate::Row& row, const Blanks& blanks) {
  const std::string blank = blanks.before("ns.gap", row.empty_thought);
  out.print((blank.empty() ? "" : blank + " + ") + jinja_string(row.empty_thought));
}

/// Removes thoughts of earlier answers unless they are preserved. Without thinking, removes the thoughts of
/// every answer. A removed thought extends from its start tag to the next end tag. Leading line ends of the
/// remaining text are removed, too. A last answer without a thought gets an empty thought.
void handle_thoughts(Lines& out, const ChatTemplate::Row& row, const Blanks& blanks) {
  const WordPair& words = row.thought_words;
  const std::string begin = jinja_string(words.begin), end = jinja_string(words.end);
  out.tag("if thinking == false or not (loop.last or preserved)");
  out.set("ns.kept", "''");
  out.set("ns.open", "''");
  out.tag("for part in content.split(" + begin + ")");
  out.tag("if loop.first");
  out.set("ns.kept", "part");
  out.tag("elif " + end + " in part");
  out.set("ns.kept", "ns.kept + part.split(" + end + ", 1)[1]");
  out.set("ns.open", "''");
  out.tag("else");
  out.set("ns.open", "ns.open + " + begin + " + part");
  out.tag("endif");
  out.tag("endfor");
  out.set("content", "(ns.kept + ns.open).lstrip('\\n')");
  out.tag("endif");
  const auto absent = [](const std::string& word) {
    return jinja_string(python::strip(word)) + " not in content";
  };
  out.tag("if loop.last and " + absent(words.begin) + " and " + absent(words.end));
  if (has_text_before_content(row.assistant)) {
    print_empty_thought(out, row, blanks);
  } else {
    const std::string blank = blanks.before_value("' '", "content");
    const std::string answer = blank.empty() ? "content" : "(" + blank + " + content if content else '')";
    out.set("content", jinja_string(row.empty_thought) + " + " + answer);
  }
  out.tag("endif");
}

/// Sets `system` to the system text of the messages, or to `usual`. Sets `turns` to the other messages.
void take_system(Lines& out, const std::string& usual, bool trims) {
  out.set("system", jinja_string(usual));
  out.set("turns", "messages");
  out.tag("if messages and messages[0]['role'] == 'system'");
  const std::string content = std::string("messages[0]['content']") + (trims ? " | trim" : "");
  out.tag("if " + content).set("system", content).tag("endif");
  out.set("turns", "messages[1:]");
  out.tag("endif");
}

/// Writes the text before the first turn. If the system text is part of the first turn, sets ns.begin to it.
void write_begin(Lines& out, const ChatTemplate::Row& row, const Blanks& blanks) {
  print_slots(out, row.prefix, "''", blanks);
  out.tag("if system");
  if (row.fuse_system) {
    Joined fused;
    add_filled(fused, row.system.at(0).text, "system");
    out.set("ns.begin", fused.text());
  } else {
    print_slots(out, row.system, "system", blanks);
  }
  out.tag("endif");
}

void write_turn(Lines& out, const ChatTemplate::Row& row, const ToolFormat& format, const Slots& function,
                const Blanks& blanks) {
  out.set("content", "message['content'] if message['content'] else ''");
  std::string trims;
  for (const std::string& role : row.trims) {
    if (role != "system")
      trims += (trims.empty() ? "'" : ", '") + (role == "observation" ? "tool" : role) + "'";
  }
  if (!trims.empty())
    out.tag("if message['role'] in [" + trims + "]").set("content", "content | trim").tag("endif");
  if (row.fuse_system) {
    out.tag("if loop.first").set("content", "ns.begin + content").tag("endif");
  }
  out.tag("if message['role'] == 'user'");
  print_slots(out, row.user, "content", blanks);
  out.tag("elif message['role'] == 'tool'");
  print_slots(out, row.observation, "content", blanks);
  out.tag("elif message['role'] == 'assistant'");
  if (row.thinks) handle_thoughts(out, row, blanks);
  out.tag("if message['tool_calls']");
  write_jinja_calls(out, format);
  print_slots(out, function, row.fuse_system ? "ns.calls" : "(content + ns.calls)", blanks);
  out.tag("else");
  print_slots(out, row.assistant, "content", blanks);
  out.tag("endif");
  out.tag("else").print("raise_exception('a message has the role ' + message['role'])").tag("endif");
}

/// Writes the text after the last turn.
void write_end(Lines& out, const ChatTemplate::Row& row, const Blanks& blanks) {
  if (row.efficient_eos) {
    out.tag("if turns and turns[-1]['role'] == 'assistant' and not add_generation_prompt").print("eos");
    out.tag("endif");
  }
  if (row.thinks) {
    out.tag("if add_generation_prompt and not thinking");
    print_empty_thought(out, row, blanks);
    out.tag("endif");
  }
}

/// Returns the default of enable_thinking, which is an option of the run, as a Jinja expression.
std::string usually_thinks(const TemplateOptions& options) {
  if (!options.enable_thinking) return "none";
  return *options.enable_thinking ? "true" : "false";
}

}  // namespace

std::string jinja_of_file(const TemplateFile& file, const TemplateOptions& options,
                          const Tokenizer& tokenizer) {
  const std::string usual = jinja_string(options.default_system.value_or(""));
  if (file.kind() == TemplateFile::Kind::conversation) {
    Lines out;
    if (options.enable_thinking == false) {
      out.tag("if enable_thinking is not defined").set("enable_thinking", "false").tag("endif");
    }
    if (usual != "''") {
      out.tag("if not (messages and messages[0]['role'] == 'system' and messages[0]['content'])");
      out.set("messages", "[{'role': 'system', 'content': " + usual + "}] + messages").tag("endif");
    }
    const std::string before = out.text();
    return before.empty() ? file.source() : before + kKeepsBlanks + file.source();
  }
  Lines out;
  out.set("told", "namespace(system=" + usual + ", first=true)");
  out.tag("for message in messages");
  out.tag("if message['role'] == 'system'");
  out.set("told.system", "message['content'] or told.system");
  out.tag("elif message['role'] == 'user'");
  out.set("system", "told.system").set(file.question(), "message['content']");
  out.set("add_generation_prompt", "true");
  if (file.adds_bos(tokenizer)) out.print("bos_token if told.first else ''");
  out.set("told.first", "false").set("told.system", "''");
  Lines end;
  end.tag("elif message['role'] == 'assistant'").print("message['content'] + eos_token");
  end.tag("else").print("raise_exception('a message has the role ' + message['role'])").tag("endif");
  end.tag("endfor");
  // Jinja omits the last line end of a template. A final expression keeps the blanks before it.
  std::string body = file.source();
  if (body.ends_with('\n')) body.pop_back();
  return out.text() + kKeepsBlanks + body + "{{ '' }}\n" + end.text();
}

std::string jinja_of(const ChatTemplate& chat, const TemplateOptions& options, const Tokenizer* tokenizer) {
  if (const auto& file = ChatTemplate::Row::of(chat).file) {
    check(tokenizer != nullptr, "a file is written for a tokenizer");
    return jinja_of_file(*file, options, *tokenizer);
  }
  const ChatTemplate::Row* const row = &ChatTemplate::Row::of(chat);
  const ToolFormat* format = find_tool_format(options.tool_format.value_or(row->tool_format));
  check(format != nullptr, "the options of a chat template were checked");
  const Blanks blanks(tokenizer);
  Lines out;
  out.set("bos", "bos_token if bos_token else ''").set("eos", "eos_token if eos_token else ''");
  const std::string parameters = format->call_form == "parameters" ? "parameters='', " : "";
  out.set("ns", "namespace(tools='', names='', calls='', " + parameters + "begin='', gap='')");
  if (row->thinks) {
    out.set("thinking", "enable_thinking if enable_thinking is defined else " + usually_thinks(options));
    out.set("preserved", options.preserve_thinking ? "true" : "false");
  }
  take_system(out, options.default_system.value_or(row->default_system), row->trims.contains("system"));
  write_jinja_tools(out, *format);
  write_begin(out, *row, blanks);
  out.tag("for message in turns");
  write_turn(out, *row, *format, function_slots(*row, options), blanks);
  out.tag("endfor");
  write_end(out, *row, blanks);
  return out.text();
}

}  // namespace octet::text
