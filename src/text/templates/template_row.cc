#include "templates/template_row.h"

#include <array>
#include <ctime>

#include "jinja/python_text.h"
#include "octet/base/error.h"

namespace octet::text {
namespace {

/// The words around calls in an answer with other text.
const WordPair& call_words() {
  static const WordPair words{"<tool_call>", "</tool_call>"};
  return words;
}

/// Finds the first range from words.begin to words.end, both included. Returns false if there is none.
bool find_between(const std::string& text, std::size_t from, const WordPair& words, std::size_t& begin,
                  std::size_t& end) {
  begin = text.find(words.begin, from);
  if (begin == std::string::npos) return false;
  const std::size_t close = text.find(words.end, begin + words.begin.size());
  if (close == std::string::npos) return false;
  end = close + words.end.size();
  return true;
}

std::string without(const std::string& text, const std::string& part) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at; (at = text.find(part, done)) != std::string::npos; done = at + part.size()) {
    out.append(text, done, at - done);
  }
  return out.append(text, done);
}

std::string without_thoughts(const std::string& text, const WordPair& words) {
  std::string out;
  std::size_t done = 0, begin = 0, end = 0;
  while (find_between(text, done, words, begin, end)) {
    out.append(text, done, begin - done);
    done = end;
  }
  out.append(text, done);
  return out.substr(std::min(out.find_first_not_of('\n'), out.size()));
}

bool has_thought_word(const Message& message, const WordPair& words) {
  const std::string text = message.text + message.content;
  return text.find(python::strip(words.begin)) != std::string::npos ||
         text.find(python::strip(words.end)) != std::string::npos;
}

/// Returns an answer that calls functions: the reprinted calls. With `with_text`, the text around a tagged
/// call, or else a thought, is written before the calls.
std::string write_function(const ToolFormat& format, const ChatTemplate::Row& row, const std::string& content,
                           bool with_text) {
  std::size_t begin = 0, end = 0;
  if (with_text && find_between(content, 0, call_words(), begin, end)) {
    const std::string call = content.substr(begin, end - begin);
    const std::size_t front = call_words().begin.size(), around = front + call_words().end.size();
    return without(content, call) + format.write_calls(call.substr(front, call.size() - around));
  }
  if (with_text && find_between(content, 0, row.thought_words, begin, end)) {
    const std::string thought = content.substr(begin, end - begin);
    return thought + format.write_calls(without(content, thought));
  }
  return format.write_calls(content);
}

/// A text under construction, with the ranges that users wrote.
struct Written {
  std::string text;
  std::vector<Span> users;

  void template_words(std::string_view words) { text += words; }
  void user_words(std::string_view words) {
    const auto begin = static_cast<std::uint32_t>(text.size());
    text += words;
    if (!words.empty()) users.push_back({begin, static_cast<std::uint32_t>(text.size())});
  }
  void append(const Written& other) {
    const auto shift = static_cast<std::uint32_t>(text.size());
    text += other.text;
    for (const Span& span : other.users) users.push_back({span.begin + shift, span.end + shift});
  }
};

/// Returns `slot` with its {{content}}, if there is one, replaced by `content`.
Written fill_content(const std::string& slot, const Written& content) {
  static constexpr std::string_view kPlace = "{{content}}";
  const std::size_t at = slot.find(kPlace);
  Written out;
  out.template_words(std::string_view(slot).substr(0, at));
  if (at == std::string::npos) return out;
  out.append(content);
  out.template_words(std::string_view(slot).substr(at + kPlace.size()));
  return out;
}

Written users(const std::string& words) {
  Written out;
  out.user_words(words);
  return out;
}

/// The destination of a turn: ids, or text with this eos.
struct Sink {
  std::vector<TokenId>* ids = nullptr;
  std::string* text = nullptr;
  std::string eos = {};
};

/// Writes the turns of one conversation.
class Writer {
 public:
  Writer(const ChatTemplate::Row& row, const Tokenizer& tokenizer, const TemplateOptions& options)
      : row_(row), tokenizer_(tokenizer), options_(options) {
    format_ = find_tool_format(options.tool_format.value_or(row.tool_format));
    if (!format_)
      throw Refusal{"there is no tool format '" + options.tool_format.value_or(row.tool_format) + "'"};
  }

  EncodedTurns turns(const Conversation& conversation) const {
    EncodedTurns out;
    for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
      std::vector<TokenId> ids;
      turn(conversation, i, {.ids = &ids});
      out.push_back(std::move(ids));
    }
    return out;
  }

  void text(const Conversation& conversation, std::size_t i, const std::string& eos, std::string& out) const {
    turn(conversation, i, {.text = &out, .eos = eos});
  }

  void empty_thought(std::vector<TokenId>& ids) const { tokenizer_.encode_to(row_.empty_thought, ids); }

 private:
  void turn(const Conversation& conversation, std::size_t index, const Sink& out) const {
    const Message& message = conversation.messages[index];
    Written content = users(message.content);
    // The reference replaces the first {{idx}} in a user's text by the number of the turn, by accident. This
    // keeps its results equal.
    if (message.role == "user" && !row_.fuse_system) {
      content = users(fill(message.content, "idx", std::to_string(index / 2)));
    }
    if (index == 0) {
      append(row_.prefix, {}, out);
      const std::string system = conversation.system.empty()
                                     ? options_.default_system.value_or(row_.default_system)
                                     : conversation.system;
      if (!system.empty() || !conversation.tools.empty()) {
        Written text = users(system);
        if (!conversation.tools.empty()) {
          text.template_words(format_->write_tools(conversation.tools, date()));
        }
        if (row_.fuse_system) {
          Written both = fill_content(row_.system[0].text, text);
          both.append(content);
          content = std::move(both);
        } else {
          append(row_.system, text, out);
        }
      }
    }
    if (message.role == "user") {
      append(row_.user, content, out);
    } else if (message.role == "assistant") {
      append(row_.assistant, users(message.content), out);
    } else if (message.role == "observation") {
      append(row_.observation, users(message.content), out);
    } else if (message.role == "function") {
      if (!message.text.empty() && row_.fuse_system)
        throw Refusal{"a message has a text before its calls, which the template does not write"};
      Written calls = users(message.text);
      calls.template_words(write_function(*format_, row_, message.content, !row_.fuse_system));
      append(function_slots(row_, options_), calls, out);
    } else {
      throw Refusal{"a message has the role '" + message.role.substr(0, 40) + "'"};
    }
  }

  std::string date() const { return written_date(options_.date); }

  void append(const Slots& slots, const Written& content, const Sink& out) const {
    for (const Slot& slot : slots) {
      if (slot.kind == Slot::Kind::text) {
        words(fill_content(slot.text, content), out);
      } else if (slot.kind == Slot::Kind::bos) {
        token(tokenizer_.bos_id(), tokenizer_.bos_token(), out);
      } else {
        token(tokenizer_.eos_id(), out.eos, out);
      }
    }
  }

  static void token(TokenId id, const std::string& text, const Sink& out) {
    if (out.text) {
      *out.text += text;
    } else if (id >= 0) {
      out.ids->push_back(id);
    }
  }

  void words(const Written& written, const Sink& out) const {
    if (out.text) {
      *out.text += written.text;
      return;
    }
    EncodeOptions how;
    if (options_.split_special_tokens) how.literal = written.users;
    if (!written.text.empty()) tokenizer_.encode_to(written.text, *out.ids, how);
  }

  const ChatTemplate::Row& row_;
  const Tokenizer& tokenizer_;
  const TemplateOptions& options_;
  const ToolFormat* format_ = nullptr;
};

void drop_thoughts(Message& message, const WordPair& words) {
  message.content = without_thoughts(message.content, words);
  message.text = without_thoughts(message.text, words);
}

void drop_thoughts(std::vector<Message>& messages, std::size_t end, const WordPair& words) {
  for (std::size_t i = 1; i < end; i += 2) drop_thoughts(messages[i], words);
}

}  // namespace

std::string unwritten_thought(const Message& message) {
  const std::string field = message.thought_field.empty() ? "reasoning_content" : message.thought_field;
  return "'" + field + "' holds thoughts, and the template writes none";
}

const Slots& function_slots(const ChatTemplate::Row& row, const TemplateOptions& options) {
  static const Slots with_eos{{Slot::Kind::text, "{{content}}"}, {Slot::Kind::eos, ""}};
  static const Slots without_eos{{Slot::Kind::text, "{{content}}"}};
  if (!options.tool_format) return row.function;
  return row.efficient_eos ? without_eos : with_eos;
}

std::string written_date(const std::string& date) {
  std::tm day{};
  if (date.empty()) {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &day);
  } else {
    const bool shape = date.size() == 10 && date[4] == '-' && date[7] == '-' &&
                       date.find_first_not_of("0123456789-") == std::string::npos;
    const int year = shape ? std::atoi(date.substr(0, 4).c_str()) : 0;
    const int month = shape ? std::atoi(date.substr(5, 2).c_str()) : 0;
    const int of_month = shape ? std::atoi(date.substr(8, 2).c_str()) : 0;
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const int most = month >= 1 && month <= 12 ? kDays[month - 1] + (month == 2 && leap) : 0;
    if (year < 1 || of_month < 1 || of_month > most) {
      throw Error({.what = "a date cannot be used",
                   .expected = "YYYY-MM-DD",
                   .found = date.substr(0, 40),
                   .where = "template_date",
                   .fix = "write a date in this form, or leave template_date out",
                   .code = ExitCode::usage});
    }
    day.tm_year = year - 1900;
    day.tm_mon = month - 1;
    day.tm_mday = of_month;
  }
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::string number = std::to_string(day.tm_mday), year = std::to_string(day.tm_year + 1900);
  return (number.size() < 2 ? "0" : "") + number + " " + kMonths[day.tm_mon] + " " +
         std::string(year.size() < 4 ? 4 - year.size() : 0, '0') + year;
}

EncodedTurns encode_turns(const ChatTemplate::Row& row, const Tokenizer& tokenizer, Conversation conversation,
                          const TemplateOptions& options, bool discard_history) {
  const Writer writer(row, tokenizer, options);
  auto& messages = conversation.messages;
  if (row.thinks) {
    if (options.enable_thinking == false) drop_thoughts(messages, messages.size(), row.thought_words);
    if (discard_history) drop_thoughts(messages, messages.size() - 2, row.thought_words);
  }
  EncodedTurns turns = writer.turns(conversation);
  if (!row.thinks) return turns;
  for (std::size_t i = discard_history ? messages.size() - 2 : 0; i < messages.size(); i += 2) {
    if (has_thought_word(messages[i + 1], row.thought_words)) continue;
    if (options.enable_thinking.value_or(false)) {
      std::vector<TokenId> answer;
      writer.empty_thought(answer);
      answer.insert(answer.end(), turns[i + 1].begin(), turns[i + 1].end());
      turns[i + 1] = std::move(answer);
    } else {
      writer.empty_thought(turns[i]);
    }
  }
  return turns;
}

std::string write_text(const ChatTemplate::Row& row, const Tokenizer& tokenizer,
                       const Conversation& conversation) {
  const TemplateOptions options;
  const Writer writer(row, tokenizer, options);
  // The eos of a tokenizer that is prepared for the row.
  const std::string eos = row.replace_eos           ? row.stop_words.at(0)
                          : tokenizer.eos_id() >= 0 ? tokenizer.eos_token()
                                                    : "<|endoftext|>";
  std::string out;
  const std::size_t count = conversation.messages.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (row.thinks && i % 2 == 1 && i + 1 == count) out += row.empty_thought;
    writer.text(conversation, i, eos, out);
  }
  if (row.efficient_eos && count % 2 == 0) out += eos;
  return out;
}

Prompt encode_last_turn(const ChatTemplate::Row& row, const Tokenizer& tokenizer, Conversation conversation,
                        const TemplateOptions& options) {
  const Writer writer(row, tokenizer, options);
  auto& messages = conversation.messages;
  if (row.thinks) {
    if (!options.preserve_thinking) drop_thoughts(messages, messages.size() - 2, row.thought_words);
    if (options.enable_thinking == false) drop_thoughts(messages.back(), row.thought_words);
  }
  const EncodedTurns turns = writer.turns(conversation);
  Prompt out;
  for (std::size_t i = 0; i + 1 < turns.size(); ++i) {
    out.prompt_ids.insert(out.prompt_ids.end(), turns[i].begin(), turns[i].end());
  }
  if (row.thinks && !has_thought_word(messages.back(), row.thought_words)) {
    writer.empty_thought(options.enable_thinking.value_or(false) ? out.response_ids : out.prompt_ids);
  }
  out.response_ids.insert(out.response_ids.end(), turns.back().begin(), turns.back().end());
  return out;
}

}  // namespace octet::text
