#include "answerer.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/device/device.h"
#include "octet/generate/cache_budget.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/routers.h"
#include "octet/setup/adapters.h"
#include "octet/weights/convert.h"

namespace octet::answers {
namespace {

/// Random number streams: sample s of a row uses stream s. Retries start at this offset.
constexpr std::int64_t kRetryNumbers = std::int64_t{1} << 20;

/// Returns "qwen3-8b" for "models/qwen3-8b/".
std::string folder_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

generate::DecoderOptions decoder_options(const GenerateOptions& o, const ModelSource& source) {
  generate::DecoderOptions decoder;
  decoder.architecture = source.architecture;
  decoder.trained = source.trained;
  decoder.adapters = source.added;
  decoder.recipe.compute = o.dtype;
  if (o.fp8) decoder.recipe.kind = o.fp8_blocks ? precision::RecipeKind::block : precision::RecipeKind::rows;
  decoder.strict = o.strict;
  decoder.fp8_cache = o.fp8_cache;
  decoder.page_tokens = o.page_tokens;
  decoder.share_prefixes = o.share_prefixes;
  decoder.keep_experts = !o.save_routing.empty();
  decoder.sequences = o.score ? 1 : o.batch;
  decoder.capacity = o.max_length;
  decoder.score_rows = o.score ? std::min<std::int64_t>(o.max_length, 128) : 0;
  return decoder;
}

/// Runs `body`. If the model computes non-finite values, the error names the tensor in the files of `source`.
template <typename Body>
auto naming_tensor(const ModelSource& source, const Body& body) {
  try {
    return body();
  } catch (const generate::NotFinite& error) {
    std::string tensor;
    if (source.trained.checkpoint == nullptr || source.trained.part)
      tensor = weights::first_not_finite_tensor(source.folder);
    for (auto adapter = source.adapters.begin(); tensor.empty() && adapter != source.adapters.end();
         ++adapter)
      tensor = weights::first_not_finite_tensor(*adapter, "adapter_model");
    if (tensor.empty()) throw;
    Problem problem = error.problem();
    problem.found += "; values that are not finite are in " + tensor;
    problem.fix = "fetch the weights again, or name a model with finite weights";
    throw generate::NotFinite(problem);
  }
}

}  // namespace

/// Collects the tokens of an answer as text until a stop text occurs in it.
struct Answerer::Listener {
  Listener(const text::Tokenizer& tokenizer, const std::vector<std::string>& stop_texts,
           std::function<void(const std::string&)> teller)
      : decoder(tokenizer), stops(stop_texts), tell(std::move(teller)) {
    for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  }

  // Returns false if the answer ends here or has ended already. The text decoder may still flush bytes after
  // that.
  bool hear(const std::string& piece) {
    if (stopped) return false;
    // A stop text may have begun in an earlier piece.
    const std::size_t from = text.size() < longest ? 0 : text.size() - longest + 1;
    text += piece;
    std::size_t end = std::string::npos;
    for (const std::string& stop : stops) end = std::min(end, text.find(stop, from));
    stopped = end != std::string::npos;
    if (stopped) text.resize(end);
    // Text that may begin a stop text is held back.
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
                   const ModelSource& source)
    : options_(o), source_(source), answers_(o.answers), tells_(session.prints()) {
  generate::DecoderOptions decoder;
  session.job().together([&] {
    decoder = decoder_options(o, source);
    decoder.prefill =
        generate::batched_tokens(o.batched_tokens, session.device().stands_for(), decoder.sequences);
    writer_.emplace(o, source);
    if (writer_->has_tokenizer())
      runtime::require_fit(writer_->tokenizer(), decoder.architecture, source.folder);
    answers_.stop_ids = o.stop_ids;
    if (!o.ignore_eos) {
      std::ranges::copy(o.eos_ids, std::back_inserter(answers_.stop_ids));
      std::ranges::copy(writer_->stop_ids(), std::back_inserter(answers_.stop_ids));
    }
    std::ranges::sort(answers_.stop_ids);
    const auto twice = std::ranges::unique(answers_.stop_ids);
    answers_.stop_ids.erase(twice.begin(), twice.end());
    if (team != nullptr) decoder.architecture.share = team->share();
    decoder.cache_bytes = generate::cache_bytes(
        {.bytes = o.kv_cache_bytes, .share = o.gpu_memory_utilization}, decoder, session.device());
    decoder.architecture.share = {};
  });
  // All ranks of a replica need the same number of pages. The minimum is over the whole job, because its
  // devices should be alike.
  if (team != nullptr)
    decoder.cache_bytes =
        static_cast<std::size_t>(session.job().all_min(static_cast<std::int64_t>(decoder.cache_bytes)));
  session.job().together([&] {
    try {
      decoder_ = team != nullptr ? std::make_unique<generate::Decoder>(session.device(), *team, decoder)
                                 : std::make_unique<generate::Decoder>(session.device(), session.job(),
                                                                       session.data(), decoder);
    } catch (const Error& error) {
      if (!is_out_of_memory(error)) throw;
      Problem problem = error.problem();
      problem.fix = "lower --batch, --max-length, --max-num-batched-tokens or --kv-cache-bytes";
      problem.code = ExitCode::usage;
      throw Error(problem);
    }
  });
  session.job().together([&] {
    if (tells_) fingerprint_ = source.fingerprint();
  });
  decoder_->load_weights(source.folder);
  if (!tells_) return;
  if (!writer_->told().empty()) log::info(writer_->told());
  if (!writer_->doubt().empty()) log::warn(writer_->doubt());
}

Answerer::~Answerer() = default;

std::vector<std::int32_t> Answerer::prompt(const Question& question) {
  const bool text = question.prompt_ids.empty() && !question.turns.empty();
  if (text && tells_ && !told_continuing_ && writer_->has_tokenizer() && !chats()) {
    log::info(
        "the model has no chat template: questions are continued as plain text (--template NAME writes them "
        "as chat messages)");
    told_continuing_ = true;
  }
  return writer_->prompt(question);
}

std::size_t Answerer::submit(const std::vector<std::int32_t>& prompt, std::uint64_t row, std::int64_t sample,
                             std::int64_t retry) {
  generate::AnswerOptions options = answers_;
  options.sampling.temperature *= 1.0 + kHotter * static_cast<double>(retry);
  const auto number = static_cast<std::uint32_t>(sample + retry * kRetryNumbers);
  const std::size_t request = decoder_->submit({.prompt = prompt, .row = row, .sample = number}, options);
  listeners_.resize(request + 1);
  if (writer_->has_tokenizer())
    listeners_[request] = std::make_unique<Listener>(writer_->tokenizer(), options_.stops, nullptr);
  return request;
}

std::vector<Answerer::Finished> Answerer::step() {
  const auto on_token = [this](std::size_t request, std::int32_t token) {
    Listener* listener = listeners_[request].get();
    return listener == nullptr || listener->hear(listener->decoder.push(token));
  };
  std::vector<Finished> finished;
  for (generate::Decoder::Finished& done : naming_tensor(source_, [&] { return decoder_->step(on_token); })) {
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

generate::Decoder::Score Answerer::score(const std::vector<std::int32_t>& ids) {
  return naming_tensor(source_, [&] { return decoder_->score(ids, options_.best); });
}

std::int64_t Answerer::best() const {
  return std::min(options_.best, decoder_->options().architecture.vocabulary);
}

runtime::Routers Answerer::routers() const {
  return runtime::routers_of(decoder_->options().architecture);
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
  if (!writer_->has_tokenizer()) return source;
  // Only tokenizer.json decides the ids; the other files are for templates.
  for (const std::string& file : writer_->tokenizer().files()) {
    if (file.ends_with("/tokenizer.json")) source.tokenizer = hash128_hex(read_file(file));
  }
  return source;
}

std::string Answerer::recipe() const {
  return "weights=" + fingerprint_ + "\n" + writer_->recipe();
}

}  // namespace octet::answers
