#include "octet/generate/decoder.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "octet/base/error.h"
#include "octet/runtime/scoring.h"

namespace octet::generate {

// A request while it is being answered.
struct Decoder::Sequence {
  std::size_t request = 0;
  std::uint64_t number = 0;
  std::int32_t slot = 0;
  std::vector<std::int32_t> tokens;  ///< prompt, then answer
  std::size_t prompt = 0;            ///< tokens of the prompt
  std::size_t cached = 0;            ///< tokens whose keys and values are in the cache
  std::int64_t logits_row = -1;      ///< row of the last forward call that predicts its next token; -1: none
};

namespace {

std::int64_t most_tokens(const DecoderOptions& options) {
  return std::max({options.prefill, options.sequences, options.scored});
}

model::TransformerOptions core_options(const DecoderOptions& options) {
  model::TransformerOptions core;
  core.max_tokens = most_tokens(options);
  core.max_length = core.max_tokens;
  core.max_positions = std::max(options.capacity, options.scored);
  core.max_labels = std::max(options.sequences, options.scored);
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
  const auto words = static_cast<std::size_t>(3 * most_tokens(options_) + options_.sequences);
  words_ = arena_->reserve_as<std::int32_t>("decode/words", words);
  host_words_ = arena_->reserve_as<std::int32_t>("decode/words", words, MemoryKind::pinned);
  const auto logits = static_cast<std::size_t>(options_.sequences * options_.architecture.vocabulary);
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

// One pass over the tokens of `active` that the cache does not hold yet, as many as fit; the last one of a
// sequence yields logits.
void Decoder::forward(const std::vector<Sequence*>& active) {
  const std::int64_t room = core_->options().max_tokens;
  std::vector<std::int32_t> ids, slots, positions, rows;
  for (Sequence* s : active) {
    s->logits_row = -1;
    while (s->cached < s->tokens.size() && static_cast<std::int64_t>(ids.size()) < room) {
      ids.push_back(s->tokens[s->cached]);
      slots.push_back(s->slot);
      positions.push_back(static_cast<std::int32_t>(s->cached++));
      if (s->cached == s->tokens.size()) {
        s->logits_row = static_cast<std::int64_t>(rows.size());
        rows.push_back(static_cast<std::int32_t>(ids.size()) - 1);
      }
    }
  }
  std::int32_t* host = host_words_;
  const auto send = [&](const std::vector<std::int32_t>& from) {
    std::memcpy(host, from.data(), from.size() * sizeof(std::int32_t));
    std::int32_t* to = words_ + (host - host_words_);
    model_->device().copy_to_device(compute(), to, host, from.size() * sizeof(std::int32_t));
    host += from.size();
    return to;
  };
  model::DecodeBatch batch;
  batch.tokens = static_cast<std::int64_t>(ids.size());
  batch.row_count = static_cast<std::int64_t>(rows.size());
  batch.ids = send(ids), batch.slots = send(slots), batch.positions = send(positions),
  batch.rows = send(rows);
  const std::int64_t vocabulary = options_.architecture.vocabulary;
  const ops::Matrix logits{logits_, DType::f32, batch.row_count, vocabulary, vocabulary};
  core_->decode(model_->store(), compute(), batch, *cache_, logits);
  model_->device().copy_to_host(compute(), host_logits_, logits_,
                                static_cast<std::size_t>(batch.row_count * vocabulary) * sizeof(float));
  compute().synchronize();
}

void Decoder::require_answerable(const std::vector<Request>& requests) const {
  const std::int64_t vocabulary = options_.architecture.vocabulary;
  for (const Request& request : requests) {
    const auto length = static_cast<std::int64_t>(request.prompt.size());
    if (length == 0)
      throw Error({.what = "a prompt is empty", .fix = "ask something", .code = ExitCode::usage});
    if (length >= options_.capacity) {
      throw Error({.what = "a prompt is too long",
                   .expected = "at most " + std::to_string(options_.capacity - 1) + " tokens",
                   .found = std::to_string(length),
                   .fix = "shorten it, or raise --max-length",
                   .code = ExitCode::usage});
    }
    for (const std::int32_t id : request.prompt) {
      if (id >= 0 && id < vocabulary) continue;
      throw Error({.what = "a token id is outside the model's vocabulary",
                   .expected = "ids below " + std::to_string(vocabulary),
                   .found = std::to_string(id),
                   .fix = "use the tokenizer that belongs to the model",
                   .code = ExitCode::usage});
    }
  }
}

std::vector<std::vector<std::int32_t>> Decoder::complete(const std::vector<Request>& requests,
                                                         const std::vector<std::int32_t>& stop_ids,
                                                         std::int64_t max_new, const Sampling& sampling,
                                                         const OnToken& on_token) {
  require([&] { require_answerable(requests); });
  take_scales();
  const std::int64_t vocabulary = options_.architecture.vocabulary;
  std::vector<std::vector<std::int32_t>> answers(requests.size());
  std::deque<Sequence> sequences;
  std::vector<std::int32_t> free_slots;
  for (auto slot = static_cast<std::int32_t>(options_.sequences); slot-- > 0;) free_slots.push_back(slot);
  std::vector<Sequence*> active;
  std::size_t next = 0;
  while (goes_on(next < requests.size() || !active.empty())) {
    while (next < requests.size() && !free_slots.empty()) {
      sequences.push_back({.request = next,
                           .number = requests[next].number,
                           .slot = free_slots.back(),
                           .tokens = requests[next].prompt,
                           .prompt = requests[next].prompt.size()});
      free_slots.pop_back();
      active.push_back(&sequences.back());
      ++next;
    }
    if (active.empty()) {  // others still answer
      model_->store().pass_by(compute());
      continue;
    }
    forward(active);
    std::erase_if(active, [&](Sequence* s) {
      if (s->logits_row < 0) return false;
      const float* logits = host_logits_ + s->logits_row * vocabulary;
      const std::int32_t token = choose(logits, vocabulary, sampling, s->number, s->tokens.size());
      const bool stop = std::ranges::find(stop_ids, token) != stop_ids.end();
      if (!stop) {
        s->tokens.push_back(token);
        answers[s->request].push_back(token);
        if (on_token) on_token(s->request, token);
      }
      const bool full = static_cast<std::int64_t>(s->tokens.size()) >= options_.capacity;
      const bool enough = static_cast<std::int64_t>(s->tokens.size() - s->prompt) >= max_new;
      if (!stop && !full && !enough) return false;
      free_slots.push_back(s->slot);
      return true;
    });
  }
  return answers;
}

}  // namespace octet::generate
