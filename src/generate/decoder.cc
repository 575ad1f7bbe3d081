#include "octet/generate/decoder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "octet/base/error.h"
#include "octet/runtime/scoring.h"
#include "sequences.h"

namespace octet::generate {

namespace {

std::int64_t most_tokens(const DecoderOptions& options) {
  return std::max({options.prefill, options.sequences, options.scored, options.score_rows});
}

std::int64_t logit_rows(const DecoderOptions& options) {
  return std::max(options.sequences, options.score_rows);
}

model::TransformerOptions core_options(const DecoderOptions& options) {
  model::TransformerOptions core;
  core.max_tokens = most_tokens(options);
  core.max_length = core.max_tokens;
  core.max_positions = std::max(options.capacity, options.scored);
  core.max_labels = std::max(logit_rows(options), options.scored);
  core.training = false;
  return core;
}

runtime::InstanceOptions instance_options(const DecoderOptions& options) {
  runtime::InstanceOptions instance;
  instance.architecture = options.architecture;
  instance.added = options.adapters;
  instance.store.recipe = options.recipe;
  instance.store.training = false;
  instance.transformer = core_options(options);
  // Questions have ever other lengths, and nobody waits seconds for the best algorithm for each.
  instance.reproducible = true;
  return instance;
}

DecoderOptions options_for(const runtime::Instance& model, DecoderOptions options) {
  options.architecture = model.options().architecture;
  options.recipe = model.options().store.recipe;
  return options;
}

/// Of a core beside one in training, which fills micro-batches up as that one does.
model::TransformerOptions core_beside(const runtime::Instance& model, const DecoderOptions& options) {
  model::TransformerOptions core = core_options(options);
  core.fixed_order = model.options().transformer.fixed_order;
  const std::int64_t unit = model.options().token_unit;
  core.max_tokens = (core.max_tokens + unit - 1) / unit * unit;
  core.max_length = std::max(core.max_length, unit - 1);
  return core;
}

}  // namespace

Decoder::Decoder(Device& device, comm::Job& job, comm::Collectives& data, const DecoderOptions& options)
    : options_(options),
      own_(std::make_unique<runtime::Instance>(device, job, data, instance_options(options))),
      model_(own_.get()),
      arena_(&own_->arena()),
      core_(&own_->core()) {
  reserve();
}

Decoder::Decoder(runtime::Instance& model, const DecoderOptions& options)
    : options_(options_for(model, options)),
      own_arena_(std::make_unique<Arena>(model.device())),
      model_(&model),
      arena_(own_arena_.get()) {
  own_core_ = std::make_unique<model::Transformer>(options_.architecture, options_.recipe, *arena_,
                                                   core_beside(model, options_));
  core_ = own_core_.get();
  reserve();
}

Decoder::~Decoder() = default;

void Decoder::reserve() {
  cache_ = std::make_unique<model::KvCache>(*arena_, options_.architecture, options_.recipe.compute,
                                            options_.sequences, options_.capacity);
  sequences_ = std::make_unique<Sequences>(options_.sequences, options_.capacity);
  const auto words = static_cast<std::size_t>(3 * most_tokens(options_) + logit_rows(options_));
  words_ = arena_->reserve_as<std::int32_t>("decode/words", words);
  host_words_ = arena_->reserve_as<std::int32_t>("decode/words", words, MemoryKind::pinned);
  const auto logits = static_cast<std::size_t>(logit_rows(options_) * options_.architecture.vocabulary);
  logits_ = arena_->reserve_as<float>("decode/logits", logits);
  host_logits_ = arena_->reserve_as<float>("decode/logits", logits, MemoryKind::pinned);
  if (options_.scored > 0) {
    staging_ = std::make_unique<runtime::Staging>(
        *arena_, runtime::StagingOptions{.tokens = core_->options().max_tokens,
                                         .labels = options_.scored,
                                         .documents = 2,  // one fills up
                                         .length = core_->options().max_length,
                                         .vocabulary = options_.architecture.vocabulary,
                                         .token_unit = model_->options().token_unit});
  }
  arena_->seal();
}

void Decoder::load_weights(const std::string& folder) {
  check(own_ != nullptr, "the weights of a model in training are not read by a decoder");
  own_->load_weights(folder);
  own_->store().synchronize(compute());
  sequences_->forget();
}

void Decoder::initialise(std::uint64_t seed) {
  check(own_ != nullptr, "the weights of a model in training are not made by a decoder");
  own_->initialise(seed);
  own_->store().synchronize(compute());
  sequences_->forget();
}

std::int64_t Decoder::parameter_count() const {
  return model_->store().layout().parameter_count();
}

bool Decoder::walks_together() const {
  return model_->job().size() > 1 && model_->options().store.stage == 3;
}

void Decoder::require(const std::function<void()>& checks) {
  if (walks_together()) {
    model_->job().together(checks);
  } else {
    checks();
  }
}

bool Decoder::goes_on(bool here) {
  return walks_together() ? model_->job().all_max(here ? 1 : 0) == 1 : here;
}

void Decoder::take_scales() {
  precision::ScaleSet* const own = core_->activation_scales();
  if (own_ != nullptr || own == nullptr || options_.recipe.kind != precision::RecipeKind::delayed) return;
  model_->store().synchronize(compute());  // those of gradients are set on another stream
  own->take(compute(), *model_->core().activation_scales());
}

std::vector<std::vector<double>> Decoder::log_probabilities(
    const std::vector<std::vector<std::int32_t>>& sequences) {
  require([&] {
    for (const std::vector<std::int32_t>& sequence : sequences) {
      const auto length = static_cast<std::int64_t>(sequence.size());
      if (length > 0 && length <= options_.scored) continue;
      throw Error({.what = "a sequence cannot be scored",
                   .expected = "1 to " + std::to_string(options_.scored) + " tokens",
                   .found = std::to_string(length),
                   .code = ExitCode::usage});
    }
  });
  take_scales();
  std::vector<std::vector<double>> out;
  while (goes_on(out.size() < sequences.size())) {
    if (out.size() == sequences.size()) {
      model_->store().pass_by(compute());
      continue;
    }
    const std::vector<std::int32_t>& sequence = sequences[out.size()];
    runtime::HostBatch batch;
    runtime::add_document(batch, sequence, sequence);
    out.push_back(runtime::log_probabilities(*core_, model_->store(), compute(),
                                             staging_->upload(compute(), batch), batch.targets,
                                             staging_->loss_sum()));
  }
  return out;
}

// Keys and values of the pass go into the cache; the logits of its rows come to the host.
void Decoder::forward(const PassTokens& pass) {
  std::int32_t* host = host_words_;
  const auto send = [&](const std::vector<std::int32_t>& from) {
    std::memcpy(host, from.data(), from.size() * sizeof(std::int32_t));
    std::int32_t* to = words_ + (host - host_words_);
    model_->device().copy_to_device(compute(), to, host, from.size() * sizeof(std::int32_t));
    host += from.size();
    return to;
  };
  model::DecodeBatch batch;
  batch.tokens = std::ssize(pass.ids);
  batch.alone = pass.alone;
  batch.row_count = std::ssize(pass.rows);
  batch.ids = send(pass.ids), batch.slots = send(pass.slots), batch.positions = send(pass.positions),
  batch.rows = send(pass.rows);
  const std::int64_t vocabulary = options_.architecture.vocabulary;
  const ops::Matrix logits{logits_, DType::f32, batch.row_count, vocabulary, vocabulary};
  core_->decode(model_->store(), compute(), batch, *cache_, logits);
  model_->device().copy_to_host(compute(), host_logits_, logits_,
                                static_cast<std::size_t>(batch.row_count * vocabulary) * sizeof(float));
  compute().synchronize();
  ++counts_.passes;
}

std::span<const float> Decoder::logits_of(std::size_t row) const {
  const auto vocabulary = static_cast<std::size_t>(options_.architecture.vocabulary);
  return {host_logits_ + row * vocabulary, vocabulary};
}

void Decoder::require_ids(const std::vector<std::int32_t>& ids, std::int64_t most) const {
  const auto length = std::ssize(ids);
  if (length == 0)
    throw Error({.what = "a prompt is empty", .fix = "ask something", .code = ExitCode::usage});
  if (length > most) {
    throw Error({.what = "a prompt is too long",
                 .expected = "at most " + std::to_string(most) + " tokens",
                 .found = std::to_string(length),
                 .fix = "shorten it, or raise --max-length",
                 .code = ExitCode::usage});
  }
  const std::int64_t vocabulary = options_.architecture.vocabulary;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    throw Error({.what = "a token id is outside the model's vocabulary",
                 .expected = "ids below " + std::to_string(vocabulary),
                 .found = std::to_string(id),
                 .fix = "use the tokenizer that belongs to the model",
                 .code = ExitCode::usage});
  }
}

std::size_t Decoder::submit(const Request& request, const AnswerOptions& options) {
  require_possible(options.sampling);
  require_ids(request.prompt, options_.capacity - 1);
  // A model in training may have learnt since the last answer.
  if (own_ == nullptr && !busy()) {
    sequences_->forget();
    take_scales();
  }
  Sequence sequence{.request = submitted_, .asked = request, .options = options, .tokens = request.prompt};
  counts_.prompt_tokens += std::ssize(request.prompt);
  sequences_->submit(std::move(sequence));
  return submitted_++;
}

bool Decoder::busy() const {
  return sequences_->busy();
}

std::int64_t Decoder::room() const {
  return sequences_->room();
}

// Chooses the next token of a sequence; true when its answer goes on.
bool Decoder::extend(Sequence& s, std::span<const float> logits, const OnToken& on_token) {
  const AnswerOptions& o = s.options;
  const Draw draw{.row = s.asked.row, .sample = s.asked.sample, .position = s.tokens.size()};
  std::optional<LogProbabilities> raw;
  std::vector<TokenScore> best;
  if (o.logprobs >= 0) raw.emplace(logits);
  if (o.logprobs > 0) best = raw->best(o.logprobs);
  std::vector<float> allowed;
  if (std::ssize(s.answer.ids) < o.min_new) {
    allowed.assign(logits.begin(), logits.end());
    for (const std::int32_t id : o.stop_ids) {
      if (id >= 0 && id < std::ssize(allowed)) {
        allowed[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  const std::int32_t token =
      choose(allowed.empty() ? logits : std::span<const float>(allowed), o.sampling, draw, s.tokens);
  if (std::ranges::find(o.stop_ids, token) != o.stop_ids.end()) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  s.tokens.push_back(token);
  s.answer.ids.push_back(token);
  ++counts_.new_tokens;
  if (raw) s.answer.logprobs.push_back(raw->of(token));
  if (o.logprobs > 0) s.answer.top.push_back(std::move(best));
  if (on_token && !on_token(s.request, token)) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  return std::ssize(s.tokens) < options_.capacity && std::ssize(s.answer.ids) < o.max_new;
}

std::vector<Decoder::Finished> Decoder::step(const OnToken& on_token) {
  for (const PrefixCopy& copy : sequences_->admit()) {
    cache_->copy_prefix(model_->device(), compute(), copy.from, copy.to,
                        static_cast<std::int64_t>(copy.tokens));
  }
  counts_.shared_tokens = sequences_->shared();
  const PassTokens pass = sequences_->next_pass(static_cast<std::size_t>(most_tokens(options_)));
  if (pass.ids.empty()) {
    if (walks_together()) model_->store().pass_by(compute());  // others still answer
    return {};
  }
  forward(pass);
  std::vector<Finished> finished;
  for (std::size_t row = 0; row < pass.sequences.size(); ++row) {
    Sequence& s = *pass.sequences[row];
    if (extend(s, logits_of(row), on_token)) continue;
    finished.push_back({s.request, std::move(s.answer)});
    sequences_->end(s);
  }
  return finished;
}

std::vector<Answer> Decoder::complete(const std::vector<Request>& requests, const AnswerOptions& options,
                                      const OnToken& on_token) {
  check(!busy(), "a list of requests is answered when no other is");
  require([&] {
    require_possible(options.sampling);
    for (const Request& request : requests) require_ids(request.prompt, options_.capacity - 1);
  });
  const std::size_t first = submitted_;
  for (const Request& request : requests) submit(request, options);
  const auto of_list = [&](std::size_t request, std::int32_t token) {
    return on_token(request - first, token);
  };
  std::vector<Answer> answers(requests.size());
  while (goes_on(busy())) {
    for (Finished& done : step(on_token ? OnToken(of_list) : OnToken())) {
      answers[done.request - first] = std::move(done.answer);
    }
  }
  return answers;
}

// Takes all of a text through the first slot, `piece` tokens at a time; `see` reads the logits of tokens
// [begin, end).
void Decoder::take_text(const std::vector<std::int32_t>& ids, std::int64_t piece,
                        const std::function<void(std::int64_t begin, std::int64_t end)>& see) {
  check(!busy(), "texts are taken between answers");
  sequences_->forget();
  for (std::int64_t begin = 0; begin < std::ssize(ids); begin += piece) {
    const std::int64_t end = std::min(std::ssize(ids), begin + piece);
    PassTokens pass;
    for (std::int64_t t = begin; t < end; ++t) {
      pass.ids.push_back(ids[static_cast<std::size_t>(t)]);
      pass.slots.push_back(0);
      pass.positions.push_back(static_cast<std::int32_t>(t));
      pass.rows.push_back(static_cast<std::int32_t>(t - begin));
    }
    forward(pass);
    see(begin, end);
  }
}

Decoder::Score Decoder::score(const std::vector<std::int32_t>& ids, std::int64_t best) {
  check(options_.score_rows > 0, "the decoder was made for scores");
  require_ids(ids, options_.capacity);
  Score score;
  take_text(ids, options_.score_rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < std::min(end, std::ssize(ids) - 1); ++t) {
      const LogProbabilities raw(logits_of(static_cast<std::size_t>(t - begin)));
      score.logprobs.push_back(raw.of(ids[static_cast<std::size_t>(t) + 1]));
      score.top.push_back(raw.best(best));
    }
  });
  return score;
}

std::vector<float> Decoder::next_logits(const std::vector<std::int32_t>& prompt) {
  require_ids(prompt, options_.capacity);
  std::vector<float> last;
  take_text(prompt, logit_rows(options_), [&](std::int64_t begin, std::int64_t end) {
    const std::span<const float> logits = logits_of(static_cast<std::size_t>(end - begin - 1));
    last.assign(logits.begin(), logits.end());
  });
  return last;
}

const char* to_string(FinishReason reason) {
  return reason == FinishReason::stop ? "stop" : "length";
}

}  // namespace octet::generate
