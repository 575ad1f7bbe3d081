#include "octet/generate/decoder.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "octet/base/error.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/model/build.h"

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

Decoder::Decoder(Device& device, comm::Job& job, comm::Collectives& data, const DecoderOptions& options)
    : device_(device),
      job_(job),
      options_(options),
      arena_(device),
      compute_(device.make_stream({.name = "compute"})) {
  store::Options store;
  store.recipe = options_.recipe;
  store.training = false;
  store_ = std::make_unique<store::ParameterStore>(model::build_layout(options_.architecture), arena_, data,
                                                   store);
  const std::int64_t tokens = std::max(options_.prefill, options_.sequences);
  model::TransformerOptions core;
  core.max_tokens = tokens;
  core.max_length = tokens;
  core.max_positions = options_.capacity;
  core.max_labels = options_.sequences;
  core.training = false;
  core_ = std::make_unique<model::Transformer>(options_.architecture, options_.recipe, arena_, core);
  cache_ = std::make_unique<model::KvCache>(arena_, options_.architecture, options_.recipe.compute,
                                            options_.sequences, options_.capacity);
  const auto words = static_cast<std::size_t>(3 * tokens + options_.sequences);
  words_ = arena_.reserve_as<std::int32_t>("decode/words", words);
  host_words_ = arena_.reserve_as<std::int32_t>("decode/words", words, MemoryKind::pinned);
  const auto logits = static_cast<std::size_t>(options_.sequences * options_.architecture.vocabulary);
  logits_ = arena_.reserve_as<float>("decode/logits", logits);
  host_logits_ = arena_.reserve_as<float>("decode/logits", logits, MemoryKind::pinned);
  arena_.seal();
}

Decoder::~Decoder() = default;

void Decoder::load_weights(const std::string& folder) {
  std::unique_ptr<checkpoint::WeightFolder> weights;
  job_.together([&] {
    weights = std::make_unique<checkpoint::WeightFolder>(folder);
    weights->require_used(model::tensor_names(store_->layout()), core_->architecture().tensor_prefix);
  });
  store_->initialise(*compute_, [&](const std::vector<TensorSlice>& slices) {
    job_.together([&] {
      for (const TensorSlice& slice : slices) weights->read(slice);
    });
  });
  store_->synchronize(*compute_);
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
    device_.copy_to_device(*compute_, to, host, from.size() * sizeof(std::int32_t));
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
  core_->decode(*store_, *compute_, batch, *cache_, logits);
  device_.copy_to_host(*compute_, host_logits_, logits_,
                       static_cast<std::size_t>(batch.row_count * vocabulary) * sizeof(float));
  compute_->synchronize();
}

std::vector<std::vector<std::int32_t>> Decoder::complete(const std::vector<Request>& requests,
                                                         const std::vector<std::int32_t>& stop_ids,
                                                         std::int64_t max_new, const Sampling& sampling,
                                                         const OnToken& on_token) {
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
  std::vector<std::vector<std::int32_t>> answers(requests.size());
  std::deque<Sequence> sequences;
  std::vector<std::int32_t> free_slots;
  for (auto slot = static_cast<std::int32_t>(options_.sequences); slot-- > 0;) free_slots.push_back(slot);
  std::vector<Sequence*> active;
  std::size_t next = 0;
  while (next < requests.size() || !active.empty()) {
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
