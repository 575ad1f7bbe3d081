#include "octet/data/template_encoder.h"

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/text/template_jinja.h"
#include "octet/text/template_match.h"
#include "octet/text/tokenizer.h"

namespace octet::data {
namespace {

// Truncates to `pieces` * `length` ids (0: no limit). Returns whether ids were removed.
bool shorten(std::vector<text::TokenId>& ids, std::int64_t pieces, std::int64_t length) {
  if (pieces == 0 || static_cast<std::int64_t>(ids.size()) <= pieces * length) return false;
  ids.resize(static_cast<std::size_t>(pieces * length));
  return true;
}

/// Returns at most the first `most` bytes of a text, cut at a character boundary.
std::string head(const std::string& text, std::size_t most) {
  std::size_t end = std::min(most, text.size());
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

/// Warns once per process if more than half of one of the first 64 texts is unknown to the tokenizer.
void watch_unknown(const text::Tokenizer& tokenizer, const Sample& sample) {
  static std::atomic<int> left{64};
  static std::atomic<bool> said{false};
  if (said.load(std::memory_order_relaxed) || left.fetch_sub(1, std::memory_order_relaxed) <= 0) return;
  constexpr std::size_t read = 4096;
  std::string all = sample.plain ? head(sample.text, read) : "";
  for (const Turn& turn : sample.turns) all += head(turn.content, read) + "\n";
  if (!is_utf8(all)) return;  // refused when the row is written
  const double share = text::unknown_share(tokenizer, all);
  if (share <= 0.5 || said.exchange(true)) return;
  log::warn("most of a text is unknown to the tokenizer: " + std::to_string(static_cast<int>(share * 100)) +
                " % of its bytes vanish or become the unknown token, in the row that begins '" +
                head(all, 40) +
                "'. Check that tokenizer.json is complete, and fits the model and the language of the data",
            log::Importance::training);
}

}  // namespace

text::Conversation conversation_of(const Sample& sample) {
  text::Conversation out;
  for (const Turn& turn : sample.turns) {
    out.messages.push_back({.role = turn.role,
                            .content = turn.content,
                            .thought = turn.thought,
                            .thought_field = turn.thought_field,
                            .text = turn.text,
                            .trained = turn.trained});
  }
  out.system = sample.system;
  out.tools = sample.tools;
  out.enable_thinking = sample.enable_thinking;
  return out;
}

TemplateEncoder::TemplateEncoder(const TemplateEncoderOptions& options)
    : options_(options.options),
      answers_(options.answers),
      text_cut_(options.text_cut),
      most_pieces_(options.most_pieces),
      tokenizer_(text::Tokenizer::from_folder(options.folder)) {
  if (options.add_bos.value_or(tokenizer_.add_bos_token().value_or(false)))
    begin_of_text_ = tokenizer_.bos_token();
  if (options.template_name) {
    template_ = text::template_named(*options.template_name, tokenizer_);
  } else if (options.match_template) {
    text::TemplateMatch match = text::match_template(options.folder, tokenizer_);
    template_ = std::move(match.found);
    why_no_template_ = std::move(match.reason);
    if (template_ && !match.other_blanks.empty()) {
      log::warn(options.folder +
                    ": the model's own chat template changes blanks around contents of the role '" +
                    match.other_blanks + "'; they are trained as the template '" + template_->name() +
                    "' writes them. To train as the chat template writes, set template: to its file",
                log::Importance::training);
    }
  }
  if (template_) {
    template_->check(options_);
    template_->prepare(tokenizer_);
  }
  // Llama 3 ends texts and turns with different tokens.
  const bool llama3 = template_ && template_->name() == "llama3";
  end_of_text_ = llama3 ? "<|end_of_text|>" : tokenizer_.eos_token();
}

Recipe TemplateEncoder::recipe() const {
  Recipe out;
  for (const std::string& file : tokenizer_.files()) {
    out.emplace_back(std::filesystem::path(file).filename().string(), hash128_hex(read_file(file)));
  }
  const auto flag = [&out](const char* name, bool value) {
    out.emplace_back(name, value ? "true" : "false");
  };
  const auto text = [&out](const char* name, const std::optional<std::string>& value) {
    if (value) out.emplace_back(name, *value);
  };
  if (template_) {
    out.emplace_back("template", template_->name());
    out.emplace_back("template's words", template_->words_hash());
    if (template_->prints_date(options_)) out.emplace_back("date in the template", text::today(options_));
    flag("mask_history", options_.mask_history);
    flag("train_on_prompt", options_.train_on_prompt);
    if (options_.enable_thinking) flag("enable_thinking", *options_.enable_thinking);
    flag("preserve_thinking", options_.preserve_thinking);
    text("default_system", options_.default_system);
    text("tool_format", options_.tool_format);
  }
  if (answers_ == Answers::pairs) flag("pairs of answers", true);
  if (answers_ == Answers::judged) flag("judged answers", true);
  out.emplace_back("cutoff_len", std::to_string(options_.cutoff_len));
  flag("split_special_tokens", options_.split_special_tokens);
  out.emplace_back("cutting of texts", text_cut_ == TextCut::pieces     ? "pieces"
                                       : text_cut_ == TextCut::truncate ? "truncate"
                                                                        : "whole");
  if (most_pieces_ > 0) out.emplace_back("pieces of a text, at most", std::to_string(most_pieces_));
  out.emplace_back("before a text", begin_of_text_);
  out.emplace_back("behind a text", end_of_text_);
  return out;
}

std::string TemplateEncoder::decode(std::span<const std::int32_t> ids) const {
  return tokenizer_.decode(ids);
}

std::int32_t TemplateEncoder::text_bos_id() const {
  return begin_of_text_.empty() ? -1 : tokenizer_.token_to_id(begin_of_text_);
}

std::optional<std::string> TemplateEncoder::jinja_for(const std::string& folder) const {
  if (!template_) return std::nullopt;
  if (text::folder_writes_as(folder, *template_, options_, tokenizer_)) return std::nullopt;
  if (text::folder_writes_images(folder)) {
    log::warn(folder +
              ": the chat template of the model is kept, because it writes images. It writes some texts " +
              "otherwise than training (tools, system texts or thoughts)");
    return std::nullopt;
  }
  return text::jinja_of(*template_, options_, &tokenizer_);
}

std::vector<std::int32_t> TemplateEncoder::stop_ids() const {
  if (template_) return template_->stop_ids(tokenizer_);
  return tokenizer_.eos_id() >= 0 ? std::vector<std::int32_t>{tokenizer_.eos_id()}
                                  : std::vector<std::int32_t>{};
}

std::vector<text::TokenId> TemplateEncoder::text_ids(const std::string& begin,
                                                     const std::string& text) const {
  const text::Span users{static_cast<std::uint32_t>(begin.size()),
                         static_cast<std::uint32_t>(begin.size() + text.size())};
  text::EncodeOptions how;
  if (options_.split_special_tokens) how.literal = {&users, 1};
  return tokenizer_.encode(begin + text + end_of_text_, how).ids;
}

EncodedSample TemplateEncoder::encode_text(const std::string& text) const {
  EncodedSample result;
  if (text_cut_ == TextCut::whole) {
    result.fragment = true;
    auto ids = text_ids("", text);
    result.truncated = shorten(ids, most_pieces_, options_.cutoff_len);
    result.dropped = ids.empty();
    if (!result.dropped) result.documents.push_back({ids, ids});
    return result;
  }
  auto ids = text_ids(begin_of_text_, text);
  const auto cutoff = static_cast<std::size_t>(options_.cutoff_len);
  result.truncated = shorten(ids, text_cut_ == TextCut::truncate ? 1 : most_pieces_, options_.cutoff_len);
  for (std::size_t begin = 0; begin < ids.size(); begin += cutoff) {
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto count = static_cast<std::ptrdiff_t>(std::min(cutoff, ids.size() - begin));
    EncodedSample::Document document;
    document.ids.assign(from, from + count);
    document.labels = document.ids;
    result.documents.push_back(std::move(document));
  }
  result.dropped = result.documents.empty();
  return result;
}

void TemplateEncoder::require_template() const {
  if (template_) return;
  throw Error({.what = "conversations need a chat template",
               .expected = "template: llama3, qwen, chatml, …",
               .found = why_no_template_.empty() ? "no template" : "no template: " + why_no_template_,
               .where = "configuration key 'template'",
               .fix = "name the template that the model was made for",
               .code = ExitCode::usage});
}

void TemplateEncoder::require_written(text::Example::Outcome outcome, const std::string& reason) const {
  // The user wrote this template for this data, so a row that it cannot write is an error.
  if (outcome == text::Example::Outcome::refused && text::is_template_file(template_->name())) {
    throw Error({.what = "a row cannot be written with the template " + template_->name(),
                 .expected = "a text for the messages before an answer, and this text followed by the answer",
                 .found = reason,
                 .fix = "correct the file or the row, or remove the row",
                 .code = ExitCode::usage});
  }
}

EncodedSample TemplateEncoder::encode_pair(const Sample& sample) const {
  require_template();
  text::Conversation rejected = conversation_of({.turns = {*sample.rejected}});
  text::AnswerPair pair =
      template_->encode_pair(tokenizer_, conversation_of(sample), rejected.messages.front(), options_);
  require_written(pair.outcome, pair.reason);
  EncodedSample result;
  result.pair = true;
  result.dropped = pair.outcome != text::Example::Outcome::kept;
  if (result.dropped) result.why = std::move(pair.reason);
  result.truncated = pair.chosen.truncated || pair.rejected.truncated;
  result.cut_answer = pair.chosen.answer_truncated || pair.rejected.answer_truncated;
  if (result.dropped) return result;
  for (text::Example* example : {&pair.chosen, &pair.rejected})
    result.documents.push_back({std::move(example->input_ids), std::move(example->labels)});
  return result;
}

EncodedSample TemplateEncoder::encode_judged(const Sample& sample) const {
  require_template();
  text::Example example = template_->encode_answer(tokenizer_, conversation_of(sample), options_);
  require_written(example.outcome, example.reason);
  EncodedSample result;
  result.dropped = example.outcome != text::Example::Outcome::kept;
  if (result.dropped) result.why = std::move(example.reason);
  result.truncated = example.truncated;
  result.cut_answer = example.answer_truncated;
  if (result.dropped) return result;
  example.labels.front() = *sample.desirable ? kDesirable : kUndesirable;
  result.documents.push_back({std::move(example.input_ids), std::move(example.labels)});
  return result;
}

EncodedSample TemplateEncoder::encode(const Sample& sample) const {
  watch_unknown(tokenizer_, sample);
  if (sample.plain) return encode_text(sample.text);
  if (text_cut_ == TextCut::whole) {
    throw Error({.what = "blocks of text are made of plain text, not of conversations",
                 .expected = "rows with a text",
                 .found = "a conversation",
                 .where = "configuration keys 'stage: pt' and 'packing_strategy: llamafactory'",
                 .fix = "use packing_strategy: best_fit, which mixes both, or name the text's column in "
                        "dataset_info.json",
                 .code = ExitCode::usage});
  }
  if (sample.rejected) return encode_pair(sample);
  if (sample.desirable) return encode_judged(sample);
  require_template();
  text::Example example = template_->encode_example(tokenizer_, conversation_of(sample), options_);
  require_written(example.outcome, example.reason);
  EncodedSample result;
  result.dropped = example.outcome != text::Example::Outcome::kept || example.input_ids.empty();
  if (result.dropped) result.why = std::move(example.reason);
  result.truncated = example.truncated;
  result.cut_answer = example.answer_truncated;
  if (!result.dropped) result.documents.push_back({std::move(example.input_ids), std::move(example.labels)});
  return result;
}

}  // namespace octet::data
