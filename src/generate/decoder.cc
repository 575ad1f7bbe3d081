#include "octet/generate/decoder.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cache_size.h"
#include "octet/base/error.h"
#include "octet/ops/elementwise.h"
#include "octet/runtime/scoring.h"
#include "repeated_passes.h"
#include "sequences.h"
#include "standing_parameters.h"

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
  core.fixed_order = options.strict;
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
  options.strict = model.options().transformer.fixed_order;
  return options;
}

/// What rounds a token with its neighbours, or otherwise than training does, has no place in strict answers.
void require_strict_possible(const DecoderOptions& options, const Device& device) {
  if (!options.strict) return;
  const auto refuse = [](const std::string& what, const std::string& expected, const std::string& fix) {
    throw Error({.what = what,
                 .expected = expected,
                 .where = "deterministic: strict",
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  const precision::Recipe& recipe = options.recipe;
  const char* const in_blocks = "fp8_recipe: block, whose scales are those of 128 values of a row";
  if (recipe.kind == precision::RecipeKind::delayed)
    refuse("answers with fp8_recipe: delayed are not strict: what is rounded depends on a history", in_blocks,
           "set fp8_recipe: block, or deterministic: true");
  if (recipe.kind == precision::RecipeKind::current)
    refuse(
        "answers with fp8_recipe: current are not strict: a token's scale is that of all tokens of its batch",
        in_blocks, "set fp8_recipe: block, or deterministic: true");
  if (recipe.rows())
    refuse("answers with FP8 scales of whole rows are not strict: nothing is trained with them", in_blocks,
           "take fp8_recipe: block, or bf16");
  if (recipe.fp8() && device.stands_for() == DeviceKind::cuda)
    refuse("answers in FP8 are not strict on a GPU, whose library chooses by the number of tokens",
           "bf16 or fp32 on a GPU", "set fp8: false, or device: cpu");
  if (options.fp8_cache)
    refuse("answers from a cache in FP8 are not strict: training rounds no keys and values",
           "keys and values as they are computed", "leave the cache's format at auto");
}

DecoderOptions possible(const DecoderOptions& options, const Device& device) {
  require_strict_possible(options, device);
  return options;
}

/// Of a core beside one in training, which fills micro-batches up as that one does.
model::TransformerOptions core_beside(const runtime::Instance& model, const DecoderOptions& options) {
  model::TransformerOptions core = core_options(options);
  const std::int64_t unit = model.options().token_unit;
  core.max_tokens = (core.max_tokens + unit - 1) / unit * unit;
  core.max_length = std::max(core.max_length, unit - 1);
  return core;
}

}  // namespace

Decoder::Decoder(Device& device, comm::Job& job, comm::Collectives& data, const DecoderOptions& options)
    : options_(possible(options, device)),
      own_(std::make_unique<runtime::Instance>(device, job, data, instance_options(options))),
      model_(own_.get()),
      arena_(&own_->arena()),
      core_(&own_->core()) {
  reserve();
}

Decoder::Decoder(runtime::Instance& model, const DecoderOptions& options)
    : options_(possible(options_for(model, options), model.device())),
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
  const model::KvLayout layout = cache_layout(options_);
  const CacheShape shape = asked_cache(options_, layout);
  cache_ = std::make_unique<model::KvCache>(*arena_, options_.architecture, layout, options_.sequences,
                                            options_.capacity, shape.pages);
  sequences_ = std::make_unique<Sequences>(options_.sequences, options_.capacity, shape);
  count();
  const auto words = static_cast<std::size_t>(3 * most_tokens(options_) + logit_rows(options_));
  words_ = arena_->reserve_as<std::int32_t>("decode/words", words);
  host_words_ = arena_->reserve_as<std::int32_t>("decode/words", words, MemoryKind::pinned);
  const auto logits = static_cast<std::size_t>(logit_rows(options_) * options_.architecture.vocabulary);
  logits_ = arena_->reserve_as<float>("decode/logits", logits);
  host_logits_ = arena_->reserve_as<float>("decode/logits", logits, MemoryKind::pinned);
  // Training's logits are rounded to what it computes in.
  const DType compute_in = options_.recipe.compute;
  if (options_.strict && compute_in != DType::f32)
    narrow_logits_ = arena_->reserve("decode/logits", logits * size_of(compute_in));
  const auto rows = static_cast<std::size_t>(logit_rows(options_));
  best_ = arena_->reserve_as<ops::BestToken>("decode/best tokens", rows);
  host_best_ = arena_->reserve_as<ops::BestToken>("decode/best tokens", rows, MemoryKind::pinned);
  // A model in training may gather its parameters pass by pass, and is waited for.
  if (own_ != nullptr) standing_ = std::make_unique<StandingParameters>(own_->store());
  // Where experts are picked the host looks what became of it.
  const bool repeats = own_ != nullptr && options_.architecture.experts.count == 0;
  repeated_ = std::make_unique<RepeatedPasses>(repeats ? &own_->compute() : nullptr, options_.sequences);
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
  standing_->forget(compute());
  own_->load_weights(folder);
  own_->store().synchronize(compute());
  sequences_->forget();
}

void Decoder::initialise(std::uint64_t seed) {
  check(own_ != nullptr, "the weights of a model in training are not made by a decoder");
  standing_->forget(compute());
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

namespace {

/// Whether the most probable token is all that a sequence wants of its next logits. Strict log-probabilities
/// are made on the host, where those of training are.
bool takes_the_best(const Sequence& s, bool strict) {
  const AnswerOptions& o = s.options;
  const bool every_token = std::ssize(s.answer.ids) >= o.min_new || o.stop_ids.empty();
  return o.sampling.temperature <= 0 && o.sampling.repetition_penalty == 1.0 &&
         o.logprobs <= (strict ? -1 : 0) && every_token;
}

}  // namespace

LogProbabilities Decoder::log_softmax(std::size_t row) const {
  using Rounding = LogProbabilities::Rounding;
  return LogProbabilities(logits_of(row), options_.strict ? Rounding::of_training : Rounding::of_answers);
}

Decoder::Wanted Decoder::wanted_of(const PassTokens& pass) const {
  Wanted wanted{.logits = std::vector<bool>(pass.rows.size(), true)};
  for (std::size_t row = 0; row < pass.sequences.size(); ++row) {
    const Sequence& s = *pass.sequences[row];
    if (!takes_the_best(s, options_.strict)) continue;
    wanted.best = true;
    wanted.normalizers = wanted.normalizers || s.options.logprobs == 0;
    wanted.logits[row] = false;
  }
  return wanted;
}

model::DecodeBatch Decoder::batch_of(const PassTokens& pass, bool repeated) {
  const auto tokens = std::ssize(pass.ids), rows = std::ssize(pass.rows);
  const std::int64_t made = repeated ? repeated_->rounded(tokens) : tokens;
  const std::int64_t made_rows = repeated ? made : rows;
  model::DecodeBatch batch{.tokens = made, .alone = repeated ? made : pass.alone, .row_count = made_rows};
  std::int64_t at = 0;
  const auto lay_out = [&](const std::vector<std::int32_t>& from, std::int64_t count) {
    std::copy(from.begin(), from.end(), host_words_ + at);
    std::fill(host_words_ + at + std::ssize(from), host_words_ + at + count, from.empty() ? 0 : from.front());
    const std::int32_t* there = words_ + at;
    at += count;
    return there;
  };
  batch.ids = lay_out(pass.ids, made);
  batch.slots = lay_out(pass.slots, made);
  batch.positions = lay_out(pass.positions, made);
  batch.rows = lay_out(pass.rows, made_rows);
  return batch;
}

void Decoder::enqueue(const model::DecodeBatch& batch, const Wanted& wanted) {
  Device& device = model_->device();
  const auto words = static_cast<std::size_t>(3 * batch.tokens + batch.row_count);
  device.copy_to_device(compute(), words_, host_words_, words * sizeof(std::int32_t));
  const std::int64_t vocabulary = options_.architecture.vocabulary;
  const ops::Matrix logits{logits_, DType::f32, batch.row_count, vocabulary, vocabulary};
  model::ParameterSource& parameters =
      standing_ ? static_cast<model::ParameterSource&>(*standing_) : model_->store();
  if (narrow_logits_ != nullptr) {
    const DType narrow = options_.recipe.compute;
    core_->decode(parameters, compute(), batch, *cache_,
                  {narrow_logits_, narrow, batch.row_count, vocabulary, vocabulary});
    ops::convert(compute(), narrow_logits_, narrow, logits_, DType::f32, batch.row_count * vocabulary);
  } else {
    core_->decode(parameters, compute(), batch, *cache_, logits);
  }
  if (!wanted.best) return;
  ops::best_tokens(compute(), {.logits = logits, .normalizers = wanted.normalizers, .out = best_});
  device.copy_to_host(compute(), host_best_, best_,
                      static_cast<std::size_t>(batch.row_count) * sizeof(ops::BestToken));
}

void Decoder::fetch_logits(const Wanted& wanted) {
  const auto vocabulary = static_cast<std::size_t>(options_.architecture.vocabulary);
  const std::vector<bool>& rows = wanted.logits;
  for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    end = begin + 1;
    if (!rows[begin]) continue;
    while (end < rows.size() && rows[end]) ++end;
    model_->device().copy_to_host(compute(), host_logits_ + begin * vocabulary, logits_ + begin * vocabulary,
                                  (end - begin) * vocabulary * sizeof(float));
  }
}

// Keys and values of the pass go into the cache; of its rows what is wanted comes to the host.
void Decoder::forward(const PassTokens& pass) {
  for (const PageChange& change : sequences_->take_changes())
    cache_->set_page(change.slot, change.group, change.index, change.page);
  cache_->upload(model_->device(), compute());
  const auto tokens = std::ssize(pass.ids);
  const Wanted wanted = wanted_of(pass);
  const bool repeated = repeated_->possible() && pass.alone == tokens && std::ssize(pass.rows) == tokens;
  const model::DecodeBatch batch = batch_of(pass, repeated);
  if (repeated) {
    const int kind = (wanted.best ? 1 : 0) + (wanted.normalizers ? 2 : 0);
    if (repeated_->make(batch.tokens, kind, [&] { enqueue(batch, wanted); })) ++counts_.replayed;
  } else {
    enqueue(batch, wanted);
  }
  fetch_logits(wanted);
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

Decoder::Choice Decoder::choose_token(const Sequence& s, std::size_t row) const {
  if (takes_the_best(s, options_.strict)) {
    const ops::BestToken& best = host_best_[row];
    require_finite(static_cast<double>(best.logit));
    return {.token = best.id, .logprob = static_cast<double>(best.logit) - best.normalizer};
  }
  const AnswerOptions& o = s.options;
  const std::span<const float> logits = logits_of(row);
  Choice choice;
  std::optional<LogProbabilities> raw;
  if (o.logprobs >= 0) raw.emplace(log_softmax(row));
  if (o.logprobs > 0) choice.best = raw->best(o.logprobs);
  std::vector<float> allowed;
  if (std::ssize(s.answer.ids) < o.min_new) {
    allowed.assign(logits.begin(), logits.end());
    for (const std::int32_t id : o.stop_ids) {
      if (id >= 0 && id < std::ssize(allowed)) {
        allowed[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  const Draw draw{.row = s.asked.row, .sample = s.asked.sample, .position = s.tokens.size()};
  choice.token =
      choose(allowed.empty() ? logits : std::span<const float>(allowed), o.sampling, draw, s.tokens);
  if (raw) choice.logprob = raw->of(choice.token);
  return choice;
}

// Takes the next token of a sequence; true when its answer goes on.
bool Decoder::extend(Sequence& s, std::size_t row, const OnToken& on_token) {
  const AnswerOptions& o = s.options;
  Choice choice = choose_token(s, row);
  const std::int32_t token = choice.token;
  if (std::ranges::find(o.stop_ids, token) != o.stop_ids.end()) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  s.tokens.push_back(token);
  s.answer.ids.push_back(token);
  ++counts_.new_tokens;
  if (o.logprobs >= 0) s.answer.logprobs.push_back(choice.logprob);
  if (o.logprobs > 0) s.answer.top.push_back(std::move(choice.best));
  if (on_token && !on_token(s.request, token)) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  return std::ssize(s.tokens) < options_.capacity && std::ssize(s.answer.ids) < o.max_new;
}

void Decoder::count() {
  counts_.shared_tokens = sequences_->shared();
  counts_.put_back = sequences_->put_back();
  counts_.recomputed_tokens = sequences_->recomputed();
  counts_.cache_pages = sequences_->pages().pages();
  counts_.cache_pages_used = sequences_->pages().most_held();
}

std::vector<Decoder::Finished> Decoder::step(const OnToken& on_token) {
  for (const PageCopy& copy : sequences_->admit())
    cache_->copy_page(model_->device(), compute(), copy.from, copy.to, copy.tokens);
  const PassTokens pass = sequences_->next_pass(static_cast<std::size_t>(most_tokens(options_)));
  count();
  if (pass.ids.empty()) {
    if (walks_together()) model_->store().pass_by(compute());  // others still answer
    return {};
  }
  forward(pass);
  std::vector<Finished> finished;
  for (std::size_t row = 0; row < pass.sequences.size(); ++row) {
    Sequence& s = *pass.sequences[row];
    if (extend(s, row, on_token)) continue;
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
  sequences_->begin_text(ids);
  try {
    for (std::int64_t begin = 0; begin < std::ssize(ids); begin += piece) {
      const std::int64_t end = std::min(std::ssize(ids), begin + piece);
      forward(sequences_->next_of_text(piece));
      see(begin, end);
    }
  } catch (...) {
    sequences_->end_text();
    throw;
  }
  sequences_->end_text();
}

Decoder::Score Decoder::score(const std::vector<std::int32_t>& ids, std::int64_t best) {
  check(options_.score_rows > 0, "the decoder was made for scores");
  require_ids(ids, options_.capacity);
  Score score;
  take_text(ids, options_.score_rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < std::min(end, std::ssize(ids) - 1); ++t) {
      const LogProbabilities raw = log_softmax(static_cast<std::size_t>(t - begin));
      score.logprobs.push_back(raw.of(ids[static_cast<std::size_t>(t) + 1]));
      score.top.push_back(raw.best(best));
    }
  });
  return score;
}

std::vector<float> Decoder::next_logits(const std::vector<std::int32_t>& prompt) {
  require_ids(prompt, options_.capacity);
  std::vector<float> last;
  take_text(prompt, std::min(logit_rows(options_), piece_of(options_)),
            [&](std::int64_t begin, std::int64_t end) {
              const std::span<const float> logits = logits_of(static_cast<std::size_t>(end - begin - 1));
              last.assign(logits.begin(), logits.end());
            });
  return last;
}

const char* to_string(FinishReason reason) {
  return reason == FinishReason::stop ? "stop" : "length";
}

}  // namespace octet::generate
