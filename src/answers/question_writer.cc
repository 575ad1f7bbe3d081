#include "question_writer.h"

#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/setup/run_options.h"
#include "octet/text/template_match.h"
#include "octet/train/start_checks.h"

namespace octet::answers {
namespace {

/// Returns the template settings that decide how questions are rendered. Settings of labels and truncation
/// belong to training.
data::TemplateEncoderOptions encoder_options(const GenerateOptions& o, const ModelSource& source) {
  data::TemplateEncoderOptions encoder;
  if (source.words_of_run()) {
    const data::TemplateEncoderOptions run =
        setup::encoder_options(source.run, source.run.model_name_or_path);
    encoder.template_name = run.template_name;
    encoder.options.enable_thinking = run.options.enable_thinking;
    encoder.options.default_system = run.options.default_system;
    encoder.options.preserve_thinking = run.options.preserve_thinking;
    encoder.options.tool_format = run.options.tool_format;
    encoder.options.split_special_tokens = run.options.split_special_tokens;
  }
  encoder.folder = source.tokenizer;
  if (!o.template_name.empty()) encoder.template_name = o.template_name;
  encoder.match_template = !encoder.template_name;
  if (o.default_system) encoder.options.default_system = o.default_system;
  if (o.enable_thinking == "null") {
    encoder.options.enable_thinking.reset();
  } else if (!o.enable_thinking.empty()) {
    encoder.options.enable_thinking = o.enable_thinking == "true";
  }
  encoder.options.cutoff_len = o.max_length;
  encoder.text_cut = data::TextCut::truncate;
  return encoder;
}

/// Returns function calls in the form that Jinja templates read.
Json tool_calls(const std::string& content) {
  const Json parsed = parse_json(content, "the calls of a turn");
  Json calls = Json::array();
  for (const Json& call : parsed.is_array() ? parsed : Json::array({parsed}))
    calls.push_back({{"type", "function"}, {"function", call}});
  return calls;
}

Json message_of(const data::Turn& turn) {
  Json out{{"role", turn.role == "observation" ? "tool" : turn.role}, {"content", turn.content}};
  if (turn.role == "function")
    out = {{"role", "assistant"}, {"content", turn.text}, {"tool_calls", tool_calls(turn.content)}};
  if (!turn.thought.empty()) out["reasoning_content"] = turn.thought;
  return out;
}

Json variables_of(const text::Tokenizer& tokenizer) {
  Json variables{{"messages", Json::array()},
                 {"add_generation_prompt", true},
                 {"tools", nullptr},
                 {"documents", nullptr}};
  if (!tokenizer.bos_token().empty()) variables["bos_token"] = tokenizer.bos_token();
  if (!tokenizer.eos_token().empty()) variables["eos_token"] = tokenizer.eos_token();
  if (!tokenizer.pad_token().empty()) variables["pad_token"] = tokenizer.pad_token();
  return variables;
}

}  // namespace

QuestionWriter::QuestionWriter(const GenerateOptions& options, const ModelSource& source)
    : options_(options), folder_(source.tokenizer) {
  if (path_exists(source.tokenizer + "/tokenizer.json")) {
    const data::TemplateEncoderOptions encoder = encoder_options(options, source);
    how_ = encoder.options;
    encoder_.emplace(encoder);
    if (source.words_of_run() && options.template_name.empty()) {
      train::require_template_of(*source.checkpoint, source.run, *encoder_,
                                 "restore the file, or name another template with --template");
    }
    find_template(source);
  }
  require_settings_fit(source.tokenizer);
}

// Compiles the Jinja template of the folder if no template of the table renders like it. It must be able to
// render a question.
void QuestionWriter::find_template(const ModelSource& source) {
  if (const auto& chat = encoder_->chat_template()) {
    if (!options_.template_name.empty()) return;
    const bool run = source.words_of_run() && source.run.template_name;
    told_ = "template: " + chat->name() +
            (run ? ", from the run of the checkpoint"
                 : ", which writes the same text as the model's own template");
    return;
  }
  const std::optional<std::string> own = text::folder_template(source.tokenizer);
  if (!own) return;
  source_ = *own;
  try {
    jinja_.emplace(source_);
    (void)rendered(ask("What is 6 times 7?", ""), true);
  } catch (const Error& e) {
    const Problem& problem = e.problem();
    why_not_ = problem.what + (problem.where.empty() ? "" : " (" + problem.where + ")");
    jinja_.reset();
    return;
  }
  told_ = "template: the model's own, in Jinja, since no built-in template writes the same text";
}

void QuestionWriter::require_settings_fit(const std::string& words) const {
  const auto needs = [&](bool given, const char* option, const char* what, const std::string& where,
                         const std::string& fix) {
    if (!given) return;
    throw Error({.what = std::string(option) + " needs a " + what,
                 .where = where,
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  const GenerateOptions& o = options_;
  if (!encoder_) {
    const auto needs_words = [&](bool given, const char* option) {
      needs(given, option, "tokenizer", words + "/tokenizer.json", "");
    };
    needs_words(!o.template_name.empty(), "--template");
    needs_words(!o.system.empty(), "--system");
    needs_words(o.default_system.has_value(), "--default-system");
    needs_words(!o.enable_thinking.empty(), "--enable-thinking");
    needs_words(!o.stops.empty(), "--stop");
    needs_words(o.extract.has_value(), "--extract");
    needs_words(!o.prompt_file.empty(), "--prompt-file");
    return;
  }
  if (chats()) return;
  const auto needs_chat = [&](bool given, const char* option) {
    needs(given, option, "chat template", words, "name one with --template");
  };
  needs_chat(!o.system.empty(), "--system");
  needs_chat(o.default_system.has_value(), "--default-system");
  needs_chat(!o.enable_thinking.empty(), "--enable-thinking");
}

const text::Tokenizer& QuestionWriter::tokenizer() const {
  if (encoder_) return encoder_->tokenizer();
  throw Error({.what = "text needs a tokenizer",
               .expected = "tokenizer.json, or rows of prompt_ids",
               .where = options_.model,
               .fix = "copy the tokenizer's files into the model's folder",
               .code = ExitCode::usage});
}

std::string QuestionWriter::system_of(const Question& question) const {
  return question.system.empty() ? options_.system : question.system;
}

// Renders a conversation with the Jinja template of the folder.
std::string QuestionWriter::rendered(const Question& question, bool asks) const {
  Json variables = variables_of(encoder_->tokenizer());
  variables["add_generation_prompt"] = asks;
  std::string system = system_of(question);
  if (system.empty()) system = how_.default_system.value_or("");
  if (!system.empty()) variables["messages"].push_back({{"role", "system"}, {"content", system}});
  for (const data::Turn& turn : question.turns) variables["messages"].push_back(message_of(turn));
  if (!asks) variables["messages"].push_back(message_of({"assistant", question.answer, question.thought}));
  if (!question.tools.empty()) variables["tools"] = parse_json(question.tools, "tools of a row");
  // enable_thinking is only passed if it is set; otherwise the template decides. "null" is passed as false,
  // as in training.
  if (!options_.enable_thinking.empty()) variables["enable_thinking"] = how_.enable_thinking.value_or(false);
  if (question.enable_thinking) variables["enable_thinking"] = *question.enable_thinking;
  return jinja_->render(variables);
}

// Throws if the template of the model cannot be rendered: a chat model must not be asked without its
// template.
void QuestionWriter::require_usable() const {
  if (why_not_.empty()) return;
  throw Error({.what = "conversations need a chat template",
               .expected = "a built-in template, or a template in Jinja that can be rendered",
               .found = "the template of the model cannot be rendered: " + why_not_,
               .where = folder_,
               .fix = "name the template that the model was made for with --template",
               .code = ExitCode::usage});
}

std::string QuestionWriter::doubt() const {
  if (options_.enable_thinking.empty() || !encoder_) return "";
  const auto& chat = encoder_->chat_template();
  const bool thinks = chat ? chat->thinks() : source_.find("enable_thinking") != std::string::npos;
  return thinks ? "" : "the template writes no thoughts: --enable-thinking has no effect";
}

std::vector<std::int32_t> QuestionWriter::prompt(const Question& question) const {
  if (!question.prompt_ids.empty() || question.turns.empty()) return question.prompt_ids;
  const text::Tokenizer& words = tokenizer();
  require_usable();
  if (jinja_) return words.encode(rendered(question, true)).ids;
  const auto& chat = encoder_->chat_template();
  if (!chat) return words.encode(question.text(), {.add_special = true}).ids;
  data::Sample sample;
  sample.turns = question.turns;
  sample.system = system_of(question);
  sample.tools = question.tools;
  sample.enable_thinking = question.enable_thinking;
  const text::Prompt prompt = chat->encode_prompt(words, data::conversation_of(sample), how_);
  if (prompt.outcome != text::Example::Outcome::kept) {
    throw Error({.what = "a question cannot be written with this template",
                 .found = prompt.reason,
                 .fix = "correct the row, or name another --template",
                 .code = ExitCode::usage});
  }
  return prompt.prompt_ids;
}

std::vector<std::int32_t> QuestionWriter::whole(const Question& question, bool judged) const {
  if (!question.prompt_ids.empty() || question.turns.empty()) return question.prompt_ids;
  const text::Tokenizer& words = tokenizer();
  const auto refuse_long = [&](bool too_long) {
    if (!too_long) return;
    throw Error({.what = "a text is too long",
                 .expected = "at most " + std::to_string(options_.max_length) + " tokens",
                 .fix = "raise --max-length",
                 .code = ExitCode::usage});
  };
  if (!question.plain) require_usable();
  if (jinja_ && !question.plain) {
    std::vector<std::int32_t> ids = words.encode(rendered(question, false)).ids;
    refuse_long(std::ssize(ids) > options_.max_length);
    return ids;
  }
  data::Sample sample;
  sample.plain = question.plain;
  if (question.plain) {
    sample.text = question.text();
  } else {
    sample.turns = question.turns;
    sample.turns.push_back({"assistant", question.answer, question.thought});
    if (judged) sample.desirable = true;
    sample.system = system_of(question);
    sample.tools = question.tools;
    sample.enable_thinking = question.enable_thinking;
  }
  const data::EncodedSample encoded = encoder_->encode(sample);
  if (encoded.dropped || encoded.documents.empty()) {
    throw Error({.what = "a row gives no tokens with this template",
                 .found = encoded.why,
                 .fix = "correct the row, or name another --template",
                 .code = ExitCode::usage});
  }
  refuse_long(encoded.truncated);
  return encoded.documents.front().ids;
}

std::vector<std::int32_t> QuestionWriter::stop_ids() const {
  return encoder_ ? encoder_->stop_ids() : std::vector<std::int32_t>();
}

std::string QuestionWriter::recipe() const {
  std::string recipe;
  if (!encoder_) return recipe;
  for (const auto& [name, value] : encoder_->recipe()) recipe += name + "=" + value + "\n";
  if (!jinja_) return recipe;
  recipe += "jinja=" + hash128_hex(source_) + "\n";
  if (how_.default_system) recipe += "default_system=" + *how_.default_system + "\n";
  if (!options_.enable_thinking.empty()) recipe += "enable_thinking=" + options_.enable_thinking + "\n";
  return recipe;
}

}  // namespace octet::answers
