#include "octet/data/template_encoder.h"

#include <algorithm>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/text/template_jinja.h"
#include "octet/text/template_match.h"

namespace octet::data {
namespace {

bool is_template_file(const std::string& name) {
  return name.ends_with(".jinja") || name.ends_with(".jinja2") || name.ends_with(".j2");
}

// Cuts off what is behind so many pieces (0: any number); whether something was.
bool shorten(std::vector<text::TokenId>& ids, std::int64_t pieces, std::int64_t length) {
  if (pieces == 0 || static_cast<std::int64_t>(ids.size()) <= pieces * length) return false;
  ids.resize(static_cast<std::size_t>(pieces * length));
  return true;
}

// What a template in Jinja computes, without what it only copies.
std::string code_of(const std::string& source) {
  std::string code;
  for (std::size_t at = 0; (at = source.find('{', at)) != std::string::npos; ++at) {
    const char kind = at + 1 < source.size() ? source[at + 1] : ' ';
    if (kind == '{' || kind == '%') code += source.substr(at, source.find('}', at) - at) + " ";
  }
  return code;
}

// A prompt of one question, as SFT-Play has it, which is filled from the columns of a row.
[[noreturn]] void refuse_prompt(const std::string& path, const std::string& code) {
  std::string filled;
  for (const char* name : {"system", "user", "assistant", "input", "prompt"}) {
    if (code.find(name) != std::string::npos) filled += (filled.empty() ? "" : ", ") + std::string(name);
  }
  throw Error({.what = "the template " + path + " writes the prompt of one question, not a conversation",
               .expected = "a chat template, which goes through the list 'messages', and writes what a "
                           "template of the table writes",
               .found = filled.empty() ? "no 'messages'" : "no 'messages', but single values: " + filled,
               .where = "configuration key 'template'",
               .fix = "set template=null, for the model's own chat template, or name one: llama3, qwen, "
                      "chatml, ...; to train on these very prompts write them into the rows, as "
                      "{\"input\": PROMPT, \"target\": ANSWER}, and set template=empty, which adds nothing",
               .code = ExitCode::usage});
}

// The row of the table that writes what a template in Jinja writes.
text::ChatTemplate template_of_file(const std::string& path, const text::Tokenizer& tokenizer) {
  if (!path_exists(path)) {
    throw Error({.what = "the file of the chat template does not exist",
                 .expected = "a file in Jinja, relative to the working folder",
                 .found = path,
                 .where = "configuration key 'template'",
                 .fix =
                     "check the path; or set template=null, for the model's own, or name one: llama3, qwen, "
                     "chatml, ...",
                 .code = ExitCode::usage});
  }
  const std::string source = read_file(path);
  const std::string code = code_of(source);
  if (code.find("messages") == std::string::npos) refuse_prompt(path, code);
  text::TemplateMatch match = text::match_jinja(source, "the chat template " + path, tokenizer);
  if (match.found) return *std::move(match.found);
  throw Error({.what = "a chat template in Jinja is none of those that are built",
               .expected = "one that writes what a template of the table writes",
               .found = match.reason,
               .where = "configuration key 'template'",
               .fix = "name a template: llama3, qwen, chatml, ...; or set template=null, for the model's own",
               .code = ExitCode::usage});
}

}  // namespace

TemplateEncoder::TemplateEncoder(const TemplateEncoderOptions& options)
    : options_(options.options),
      text_cut_(options.text_cut),
      most_pieces_(options.most_pieces),
      tokenizer_(text::Tokenizer::from_folder(options.folder)) {
  if (options.add_bos.value_or(tokenizer_.add_bos_token().value_or(false)))
    begin_of_text_ = tokenizer_.bos_token();
  if (options.template_name && is_template_file(*options.template_name)) {
    template_ = template_of_file(*options.template_name, tokenizer_);
  } else if (options.template_name) {
    template_ = text::ChatTemplate::find(*options.template_name);
  } else if (options.match_template) {
    text::TemplateMatch match = text::match_template(options.folder, tokenizer_);
    template_ = std::move(match.found);
    why_no_template_ = std::move(match.reason);
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

EncodedSample TemplateEncoder::encode(const Sample& sample) const {
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
  if (!template_) {
    throw Error({.what = "conversations need a chat template",
                 .expected = "template: llama3, qwen, chatml, …",
                 .found = why_no_template_.empty() ? "no template" : "no template: " + why_no_template_,
                 .where = "configuration key 'template'",
                 .fix = "name the template that the model was made for",
                 .code = ExitCode::usage});
  }
  text::Conversation conversation;
  for (const Turn& turn : sample.turns) conversation.messages.push_back({turn.role, turn.content});
  conversation.system = sample.system;
  conversation.tools = sample.tools;
  text::Example example = template_->encode_example(tokenizer_, conversation, options_);
  EncodedSample result;
  result.dropped = example.outcome != text::Example::Outcome::kept || example.input_ids.empty();
  result.truncated = example.truncated;
  result.cut_answer = example.answer_truncated;
  if (!result.dropped) result.documents.push_back({std::move(example.input_ids), std::move(example.labels)});
  return result;
}

}  // namespace octet::data
