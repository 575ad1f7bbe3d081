#include "generate/answerer.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "generate/cache_size.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/runtime/model_folder.h"

namespace octet::cli {
namespace {

// A retry is a tenth of the temperature hotter than the attempt before it.
constexpr double kHotter = 0.1;
/// Samples of a row have numbers of their own, retries stand far behind them.
constexpr std::int64_t kRetryNumbers = std::int64_t{1} << 20;

// The last adapter that brings a tokenizer, with the tokens and the template of its training; else the base.
std::string tokenizer_folder(const setup::NamedModel& model) {
  for (auto folder = model.adapters.rbegin(); folder != model.adapters.rend(); ++folder) {
    if (path_exists(*folder + "/tokenizer.json")) return *folder;
  }
  return model.folder;
}

/// "qwen3-8b" of "models/qwen3-8b/".
std::string folder_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

data::TemplateEncoderOptions encoder_options(const GenerateOptions& o, const std::string& folder) {
  data::TemplateEncoderOptions encoder{.folder = folder, .match_template = o.template_name.empty()};
  if (!o.template_name.empty()) encoder.template_name = o.template_name;
  encoder.options.cutoff_len = o.max_length;
  encoder.text_cut = data::TextCut::truncate;
  return encoder;
}

generate::DecoderOptions decoder_options(const GenerateOptions& o, const setup::NamedModel& named) {
  generate::DecoderOptions decoder;
  decoder.architecture = runtime::read_model(named.folder);
  decoder.adapters = setup::added_adapters(named.adapters, decoder.architecture);
  decoder.recipe.compute = o.dtype;
  if (o.fp8) decoder.recipe.kind = o.fp8_blocks ? precision::RecipeKind::block : precision::RecipeKind::rows;
  decoder.strict = o.strict;
  decoder.fp8_cache = o.fp8_cache;
  decoder.page_tokens = o.page_tokens;
  decoder.share_prefixes = o.share_prefixes;
  decoder.sequences = o.score ? 1 : o.batch;
  decoder.capacity = o.max_length;
  decoder.score_rows = o.score ? std::min<std::int64_t>(o.max_length, 128) : 0;
  return decoder;
}

}  // namespace

/// Hears the tokens of an answer as text, until a stop text stands in it.
struct Answerer::Listener {
  Listener(const text::Tokenizer& tokenizer, const std::vector<std::string>& stop_texts,
           std::function<void(const std::string&)> teller)
      : decoder(tokenizer), stops(stop_texts), tell(std::move(teller)) {
    for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  }

  // False when the answer ends here, or has ended: bytes that the text decoder held back come after that.
  bool hear(const std::string& piece) {
    if (stopped) return false;
    // A stop text may have begun in what was said before.
    const std::size_t from = text.size() < longest ? 0 : text.size() - longest + 1;
    text += piece;
    std::size_t end = std::string::npos;
    for (const std::string& stop : stops) end = std::min(end, text.find(stop, from));
    stopped = end != std::string::npos;
    if (stopped) text.resize(end);
    // What may be the beginning of a stop text is held back.
    const std::size_t sure =
        stopped ? text.size() : text.size() - std::min(text.size(), longest > 0 ? longest - 1 : 0);
    say(sure);
    return !stopped;
  }
  void say(std::size_t end) {
    if (tell && end > told) tell(text.substr(told, end - told));
    told = std::max(told, end);
  }

  text::StreamDecoder decoder;
  std::vector<std::string> stops;
  std::function<void(const std::string&)> tell;
  std::size_t longest = 0;
  std::string text;
  std::size_t told = 0;
  bool stopped = false;
};

Answerer::Answerer(runtime::Session& session, generate::Team* team, const GenerateOptions& o,
                   const setup::NamedModel& named)
    : options_(o), answers_(o.answers) {
  const std::string words = tokenizer_folder(named);
  generate::DecoderOptions decoder;
  session.job().together([&] {
    decoder = decoder_options(o, named);
    decoder.prefill = batched_tokens(o.batched_tokens, session.device().stands_for(), decoder.sequences);
    if (path_exists(words + "/tokenizer.json")) {
      encoder_.emplace(encoder_options(o, words));
      runtime::require_fit(encoder_->tokenizer(), decoder.architecture, named.folder);
    } else {
      const auto needs_one = [&](bool given, const char* option) {
        if (!given) return;
        throw Error({.what = std::string(option) + " needs a tokenizer",
                     .where = words + "/tokenizer.json",
                     .code = ExitCode::usage});
      };
      needs_one(!o.template_name.empty(), "--template");
      needs_one(!o.system.empty(), "--system");
      needs_one(!o.stops.empty(), "--stop");
      needs_one(o.extract.has_value(), "--extract");
      needs_one(!o.prompt_file.empty(), "--prompt-file");
    }
    answers_.stop_ids = o.stop_ids;
    if (!o.ignore_eos) {
      std::ranges::copy(o.eos_ids, std::back_inserter(answers_.stop_ids));
      if (encoder_) std::ranges::copy(encoder_->stop_ids(), std::back_inserter(answers_.stop_ids));
    }
    std::ranges::sort(answers_.stop_ids);
    const auto twice = std::ranges::unique(answers_.stop_ids);
    answers_.stop_ids.erase(twice.begin(), twice.end());
    if (team != nullptr) decoder.architecture.share = team->share();
    decoder.cache_bytes = cache_bytes(o, decoder, session.device());
    decoder.architecture.share = {};
  });
  // All ranks of a replica have the same pages; of the whole job, since their devices should be alike.
  if (team != nullptr)
    decoder.cache_bytes =
        static_cast<std::size_t>(session.job().all_min(static_cast<std::int64_t>(decoder.cache_bytes)));
  session.job().together([&] {
    decoder_ = team != nullptr ? std::make_unique<generate::Decoder>(session.device(), *team, decoder)
                               : std::make_unique<generate::Decoder>(session.device(), session.job(),
                                                                     session.data(), decoder);
  });
  if (session.prints()) fingerprint_ = checkpoint::WeightFolder(named.folder).fingerprint();
  decoder_->load_weights(named.folder);
  if (session.prints() && encoder_ && o.template_name.empty() && encoder_->chat_template()) {
    log::info("template: " + encoder_->chat_template()->name() + ", as the model's own writes");
  }
}

Answerer::~Answerer() = default;

const text::Tokenizer& Answerer::tokenizer() const {
  if (encoder_) return encoder_->tokenizer();
  throw Error({.what = "text needs a tokenizer",
               .expected = "tokenizer.json, or rows of prompt_ids",
               .where = options_.model,
               .code = ExitCode::usage});
}

std::vector<std::int32_t> Answerer::prompt(const Question& question) const {
  if (!question.prompt_ids.empty() || question.turns.empty()) return question.prompt_ids;
  const text::Tokenizer& words = tokenizer();
  const auto& chat = encoder_->chat_template();
  if (!chat) return words.encode(question.text(), {.add_special = true}).ids;
  text::Conversation conversation;
  for (const data::Turn& turn : question.turns) conversation.messages.push_back({turn.role, turn.content});
  conversation.system = question.system.empty() ? options_.system : question.system;
  conversation.tools = question.tools;
  const text::Prompt prompt = chat->encode_prompt(words, conversation);
  if (prompt.outcome != text::Example::Outcome::kept) {
    throw Error({.what = "a question cannot be written with this template",
                 .found = prompt.reason,
                 .code = ExitCode::usage});
  }
  return prompt.prompt_ids;
}

std::vector<std::int32_t> Answerer::whole(const Question& question) const {
  if (!question.prompt_ids.empty() || question.turns.empty()) return question.prompt_ids;
  data::Sample sample;
  sample.plain = question.plain;
  if (question.plain) {
    sample.text = question.text();
  } else {
    sample.turns = question.turns;
    sample.turns.push_back({"assistant", question.answer});
    sample.system = question.system.empty() ? options_.system : question.system;
    sample.tools = question.tools;
  }
  (void)tokenizer();
  const data::EncodedSample encoded = encoder_->encode(sample);
  if (encoded.dropped || encoded.documents.empty()) {
    throw Error({.what = "a row gives no tokens with this template", .code = ExitCode::usage});
  }
  if (encoded.truncated) {
    throw Error({.what = "a text is too long",
                 .expected = "at most " + std::to_string(options_.max_length) + " tokens",
                 .fix = "raise --max-length",
                 .code = ExitCode::usage});
  }
  return encoded.documents.front().ids;
}

std::size_t Answerer::submit(const std::vector<std::int32_t>& prompt, std::uint64_t row, std::int64_t sample,
                             std::int64_t retry) {
  generate::AnswerOptions options = answers_;
  options.sampling.temperature *= 1.0 + kHotter * static_cast<double>(retry);
  const auto number = static_cast<std::uint32_t>(sample + retry * kRetryNumbers);
  const std::size_t request = decoder_->submit({.prompt = prompt, .row = row, .sample = number}, options);
  listeners_.resize(request + 1);
  if (encoder_)
    listeners_[request] = std::make_unique<Listener>(encoder_->tokenizer(), options_.stops, nullptr);
  return request;
}

std::vector<Answerer::Finished> Answerer::step() {
  const auto on_token = [this](std::size_t request, std::int32_t token) {
    Listener* listener = listeners_[request].get();
    return listener == nullptr || listener->hear(listener->decoder.push(token));
  };
  std::vector<Finished> finished;
  for (generate::Decoder::Finished& done : decoder_->step(on_token)) {
    Said said{.text = "", .answer = std::move(done.answer)};
    if (std::unique_ptr<Listener> listener = std::move(listeners_[done.request])) {
      listener->hear(listener->decoder.finish());
      listener->say(listener->text.size());
      said.text = std::move(listener->text);
    }
    finished.push_back({done.request, std::move(said)});
  }
  return finished;
}

std::string Answerer::answer(const Question& question, std::uint64_t row,
                             const std::function<void(const std::string&)>& tell) {
  const std::size_t request = submit(prompt(question), row, 0);
  listeners_[request]->tell = tell;
  std::string text;
  while (decoder_->busy()) {
    for (Finished& done : step()) text = std::move(done.said.text);
  }
  return text;
}

std::int64_t Answerer::best() const {
  return std::min(options_.best, decoder_->options().architecture.vocabulary);
}

ScoreSource Answerer::score_source() const {
  ScoreSource source{.model = folder_name(options_.model),
                     .adapter = "",
                     .weights = fingerprint_,
                     .tokenizer = "",
                     .vocabulary = decoder_->options().architecture.vocabulary,
                     .best = best()};
  if (!options_.adapter.empty()) {
    for (const std::string& folder : setup::adapter_folders(options_.adapter)) {
      source.adapter += (source.adapter.empty() ? "" : ",") + folder_name(folder);
    }
  }
  if (!encoder_) return source;
  // The ids are those of this file; what stands beside it is of templates.
  for (const std::string& file : encoder_->tokenizer().files()) {
    if (file.ends_with("/tokenizer.json")) source.tokenizer = hash128_hex(read_file(file));
  }
  return source;
}

std::string Answerer::recipe() const {
  std::string recipe = "weights=" + fingerprint_ + "\n";
  if (!encoder_) return recipe;
  for (const auto& [name, value] : encoder_->recipe()) recipe += name + "=" + value + "\n";
  return recipe;
}

}  // namespace octet::cli
