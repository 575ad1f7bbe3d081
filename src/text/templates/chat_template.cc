#include "octet/text/chat_template.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/text/template_match.h"
#include "templates/template_file.h"
#include "templates/template_row.h"

namespace octet::text {

Lengths fit(std::size_t question, std::size_t answer, std::size_t left) {
  std::size_t most;
  if (answer * 2 < left) {
    most = left;
  } else if (question * 2 < left) {
    most = left - question;
  } else {
    const double share = static_cast<double>(answer) / static_cast<double>(question + answer);
    most = static_cast<std::size_t>(static_cast<double>(left) * share);
  }
  const std::size_t kept = std::min(most, answer);
  return {std::min(left - kept, question), kept};
}

namespace {

/// A question and its answer with their labels, truncated to the tokens that fit.
struct EncodedPair {
  std::vector<TokenId> ids, labels;
};

template <class Result>
Result ended(Example::Outcome outcome, const std::string& reason) {
  Result out;
  out.outcome = outcome;
  out.reason = reason;
  return out;
}

void append(std::vector<TokenId>& out, const std::vector<TokenId>& more) {
  out.insert(out.end(), more.begin(), more.end());
}

/// Inserts the thoughts of answers into their texts, as the templates of the table write them. Throws Refusal
/// if the template writes no thoughts.
Conversation with_thoughts(const ChatTemplate::Row& row, Conversation conversation) {
  for (Message& message : conversation.messages) {
    if (message.thought.empty()) continue;
    if (!row.thinks) throw Refusal{unwritten_thought(message)};
    std::string& text = message.role == "function" ? message.text : message.content;
    const auto strip = [](const std::string& from, bool end) {
      const std::size_t first = std::min(from.find_first_not_of('\n'), from.size());
      const std::size_t last = end ? from.find_last_not_of('\n') + 1 : from.size();
      return from.substr(first, std::max(first, last) - first);
    };
    text =
        row.thought_words.begin + strip(message.thought, true) + row.thought_words.end + strip(text, false);
    message.thought.clear();
  }
  return conversation;
}

std::string comma_separated(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

/// Returns "did you mean '…'?" with the nearest name. Returns "" if no name is near, or if the nearest name
/// is another version.
std::string offered(const std::string& name, const std::vector<std::string>& names) {
  const std::string near = nearest_name(name, names);
  return near.empty() || !same_digits(name, near) ? "" : "did you mean '" + near + "'?";
}

/// Splits the last answer from all turns before it. The answer is empty if the last turn is a question.
Prompt last_turn(const EncodedTurns& turns) {
  Prompt out;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    append(i % 2 == 1 && i + 1 == turns.size() ? out.response_ids : out.prompt_ids, turns[i]);
  }
  return out;
}

}  // namespace

ChatTemplate ChatTemplate::find(const std::string& name) {
  if (is_template_file(name)) {
    auto row = std::make_shared<Row>();
    row->name = name;
    row->file = std::make_shared<const TemplateFile>(name);
    return ChatTemplate(std::move(row));
  }
  if (auto row = find_row(name)) return ChatTemplate(std::move(row));
  const std::vector<std::string> family = names_of_family(name, template_names());
  const std::string offer = offered(name, template_names());
  static const std::string kOwn =
      "leave template out to use the model's own chat template, or name a file (template: FILE.jinja)";
  throw Error({.what = "there is no chat template '" + name.substr(0, 60) + "'",
               .expected = (family.empty() ? "one of " : "a name such as ") +
                           comma_separated(family.empty() ? template_names() : family) +
                           ", or a file in Jinja",
               .where = "template",
               .fix = offer.empty() ? kOwn : offer + " Otherwise " + kOwn,
               .code = ExitCode::usage});
}

std::vector<std::string> ChatTemplate::names() {
  return row_names();
}

const std::string& ChatTemplate::name() const {
  return row_->name;
}
std::string ChatTemplate::words_hash() const {
  std::string words = row_->file ? row_->file->source() : row_words(row_->name);
  for (const std::string& role : row_->trims) words += " trims " + role;
  return hash128_hex(words);
}
bool ChatTemplate::prints_date(const TemplateOptions& options) const {
  if (row_->file) return row_->file->asks_for_the_time();
  const ToolFormat* format = find_tool_format(options.tool_format.value_or(row_->tool_format));
  return format && format->prompt.find("{{date}}") != std::string::npos;
}
std::string today(const TemplateOptions& options) {
  return written_date(options.date);
}
bool ChatTemplate::efficient_eos() const {
  return row_->efficient_eos;
}
bool ChatTemplate::thinks() const {
  return row_->thinks || (row_->file && row_->file->asks_for("enable_thinking"));
}

void ChatTemplate::check(const TemplateOptions& options) const {
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error({.what = what, .where = "template " + row_->name, .fix = fix, .code = ExitCode::usage});
  };
  if (options.mask_history && options.train_on_prompt) {
    refuse("mask_history and train_on_prompt exclude each other",
           "set mask_history or train_on_prompt to false");
  }
  if (options.train_on_prompt && row_->efficient_eos) {
    refuse("this template does not support train_on_prompt", "leave train_on_prompt false");
  }
  if (options.cutoff_len < 1)
    refuse("cutoff_len must be at least 1", "set cutoff_len to the tokens of a sequence, such as 2048");
  if (options.tool_format && !find_tool_format(*options.tool_format)) {
    const std::string offer = offered(*options.tool_format, tool_format_names());
    throw Error({.what = "there is no tool format '" + options.tool_format->substr(0, 60) + "'",
                 .expected = "one of " + comma_separated(tool_format_names()),
                 .where = "tool_format",
                 .fix = offer.empty() ? "leave tool_format out to use the template's format" : offer,
                 .code = ExitCode::usage});
  }
  (void)written_date(options.date);
  if (row_->file) row_->file->check(options);
}

std::vector<std::string> ChatTemplate::prepare(Tokenizer& tokenizer) const {
  const std::int64_t before = tokenizer.vocab_size();
  std::vector<std::string> words = row_->stop_words;
  if (row_->replace_eos) {
    tokenizer.set_eos_token(words.at(0));
    words.erase(words.begin());
  }
  if (tokenizer.eos_id() < 0) tokenizer.set_eos_token("<|endoftext|>");
  if (tokenizer.pad_id() < 0) tokenizer.set_pad_token(tokenizer.eos_token());
  for (const auto& word : words) tokenizer.add_special_token(word);
  if (row_->file) row_->file->require_usable(tokenizer);
  std::vector<std::string> added;
  for (std::int64_t id = before; id < tokenizer.vocab_size(); ++id) {
    added.push_back(tokenizer.id_to_token(static_cast<TokenId>(id)));
  }
  return added;
}

std::vector<TokenId> ChatTemplate::stop_ids(const Tokenizer& tokenizer) const {
  std::vector<TokenId> out{tokenizer.eos_id()};
  for (const auto& word : row_->stop_words) out.push_back(tokenizer.token_to_id(word));
  if (row_->file) {
    const std::string end = row_->file->end_token(tokenizer);
    if (!end.empty()) out.push_back(tokenizer.token_to_id(end));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (!out.empty() && out[0] < 0) out.erase(out.begin());
  return out;
}

Example ChatTemplate::encode_example(const Tokenizer& tokenizer, const Conversation& conversation,
                                     const TemplateOptions& given) const {
  TemplateOptions options = given;
  if (conversation.enable_thinking) options.enable_thinking = conversation.enable_thinking;
  EncodedTurns turns;
  try {
    check(options);
    if (conversation.messages.empty() || conversation.messages.size() % 2 != 0) {
      return ended<Example>(Example::Outcome::dropped,
                            "the number of messages is not even: questions and answers do not pair up");
    }
    turns = row_->file ? row_->file->turns(tokenizer, conversation, options, options.mask_history)
                       : encode_turns(*row_, tokenizer, with_thoughts(*row_, trimmed(*row_, conversation)),
                                      options, options.mask_history && !options.preserve_thinking);
  } catch (const Refusal& refusal) {
    return ended<Example>(Example::Outcome::refused, refusal.reason);
  } catch (const Error& error) {
    return ended<Example>(Example::Outcome::refused, error.problem().what);
  }

  Example out;
  const bool history = options.mask_history;
  const std::size_t pairs = turns.size() / 2;
  const auto cutoff = static_cast<std::size_t>(options.cutoff_len);
  std::size_t total = row_->efficient_eos ? 1 : 0;
  std::vector<EncodedPair> kept;
  for (std::size_t k = 0; k < pairs; ++k) {
    const std::size_t i = history ? pairs - 1 - k : k;
    auto& question = turns[2 * i];
    auto& answer = turns[2 * i + 1];
    const bool trained = (!history || k == 0) && conversation.messages[2 * i + 1].trained;
    const Lengths lengths =
        total < cutoff ? fit(question.size(), answer.size(), cutoff - total) : Lengths{0, 0};
    out.truncated |= lengths.question < question.size() || lengths.answer < answer.size();
    out.answer_truncated |= trained && lengths.answer < answer.size();
    if (total >= cutoff) continue;
    question.resize(lengths.question);
    answer.resize(lengths.answer);
    total += lengths.question + lengths.answer;
    EncodedPair pair;
    append(pair.ids, question);
    append(pair.ids, answer);
    if (options.train_on_prompt) {
      pair.labels = question;
    } else {
      pair.labels.assign(question.size(), kIgnore);
      // The template writes a single eos at the end. The model learns to write it after each earlier answer,
      // too.
      const bool learnt = i == 0 || conversation.messages[2 * i - 1].trained;
      if (row_->efficient_eos && k != 0 && learnt && !question.empty()) pair.labels[0] = tokenizer.eos_id();
    }
    if (trained) {
      append(pair.labels, answer);
    } else {
      pair.labels.insert(pair.labels.end(), answer.size(), kIgnore);
    }
    kept.push_back(std::move(pair));
  }
  if (history) std::reverse(kept.begin(), kept.end());
  for (const EncodedPair& pair : kept) {
    append(out.input_ids, pair.ids);
    append(out.labels, pair.labels);
  }
  if (row_->efficient_eos) {
    out.input_ids.push_back(tokenizer.eos_id());
    out.labels.push_back(conversation.messages.back().trained ? tokenizer.eos_id() : kIgnore);
  }
  return out;
}

Prompt ChatTemplate::encode_prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                                   const TemplateOptions& given) const {
  TemplateOptions options = given;
  if (conversation.enable_thinking) options.enable_thinking = conversation.enable_thinking;
  if (conversation.messages.empty()) return ended<Prompt>(Example::Outcome::dropped, "there are no messages");
  try {
    if (row_->file) return last_turn(row_->file->turns(tokenizer, conversation, options, true));
    Conversation whole = with_thoughts(*row_, trimmed(*row_, conversation));
    if (whole.messages.size() % 2 != 0) whole.messages.push_back({"assistant", ""});
    (void)written_date(options.date);
    return encode_last_turn(*row_, tokenizer, std::move(whole), options);
  } catch (const Refusal& refusal) {
    return ended<Prompt>(Example::Outcome::refused, refusal.reason);
  } catch (const Error& error) {
    return ended<Prompt>(Example::Outcome::refused, error.problem().what);
  }
}

Example ChatTemplate::encode_answer(const Tokenizer& tokenizer, const Conversation& conversation,
                                    const TemplateOptions& options) const {
  if (conversation.messages.empty() || conversation.messages.size() % 2 != 0) {
    return ended<Example>(Example::Outcome::dropped,
                          "the number of messages is not even: questions and answers do not pair up");
  }
  Prompt whole = encode_prompt(tokenizer, conversation, options);
  if (whole.outcome != Example::Outcome::kept) return ended<Example>(whole.outcome, whole.reason);
  std::vector<TokenId>&question = whole.prompt_ids, &answer = whole.response_ids;
  if (row_->efficient_eos) answer.push_back(tokenizer.eos_id());
  const Lengths lengths = fit(question.size(), answer.size(), static_cast<std::size_t>(options.cutoff_len));
  Example out;
  out.answer_truncated = lengths.answer < answer.size();
  out.truncated = out.answer_truncated || lengths.question < question.size();
  question.resize(lengths.question);
  answer.resize(lengths.answer);
  // The first token of a text is not predicted.
  if (answer.size() < (question.empty() ? 2u : 1u))
    return ended<Example>(Example::Outcome::dropped, "no token of an answer is trained");
  out.labels.assign(question.size(), kIgnore);
  append(out.labels, answer);
  out.input_ids = std::move(question);
  append(out.input_ids, answer);
  return out;
}

AnswerPair ChatTemplate::encode_pair(const Tokenizer& tokenizer, const Conversation& conversation,
                                     const Message& rejected, const TemplateOptions& options) const {
  if (conversation.messages.empty() || conversation.messages.size() % 2 != 0) {
    return ended<AnswerPair>(Example::Outcome::dropped,
                             "the number of messages is not even: questions and answers do not pair up");
  }
  Conversation other = conversation;
  other.messages.back() = rejected;
  Prompt chosen = encode_prompt(tokenizer, conversation, options);
  Prompt worse = encode_prompt(tokenizer, other, options);
  for (const Prompt* prompt : {&chosen, &worse}) {
    if (prompt->outcome != Example::Outcome::kept) return ended<AnswerPair>(prompt->outcome, prompt->reason);
  }
  std::vector<TokenId>& question = chosen.prompt_ids;
  std::vector<TokenId>* const answers[] = {&chosen.response_ids, &worse.response_ids};
  AnswerPair out;
  Example* const examples[] = {&out.chosen, &out.rejected};
  if (row_->efficient_eos) {
    for (std::vector<TokenId>* answer : answers) answer->push_back(tokenizer.eos_id());
  }
  const Lengths lengths = fit(question.size(), std::max(answers[0]->size(), answers[1]->size()),
                              static_cast<std::size_t>(options.cutoff_len));
  const bool cut = lengths.question < question.size();
  question.resize(lengths.question);
  for (std::size_t i = 0; i < 2; ++i) {
    examples[i]->answer_truncated = lengths.answer < answers[i]->size();
    examples[i]->truncated = cut || examples[i]->answer_truncated;
    answers[i]->resize(std::min(lengths.answer, answers[i]->size()));
    examples[i]->labels.assign(question.size(), kIgnore);
    examples[i]->input_ids = question;
    append(examples[i]->input_ids, *answers[i]);
    append(examples[i]->labels, *answers[i]);
  }
  // The first token of a text is not predicted.
  const std::size_t least = question.empty() ? 2 : 1;
  if (std::min(answers[0]->size(), answers[1]->size()) < least)
    return ended<AnswerPair>(Example::Outcome::dropped, "no token of an answer is trained");
  if (*answers[0] == *answers[1])
    return ended<AnswerPair>(Example::Outcome::dropped, "both answers have equal tokens");
  return out;
}

}  // namespace octet::text
