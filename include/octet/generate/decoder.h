// The generate room: answers from a model, token by token, with a KV cache. It runs the transformer core of
// training on parameters that a store gathers, so that what is heard here is what was trained.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/model/kv_cache.h"
#include "octet/model/transformer.h"
#include "octet/runtime/instance.h"
#include "octet/runtime/staging.h"

namespace octet::generate {

/// How the next token is chosen. Temperature 0 is greedy. Random numbers come from (seed, sequence,
/// position).
struct Sampling {
  double temperature = 0.0;
  double top_p = 1.0;      ///< keep the most probable tokens that together reach this probability
  std::int64_t top_k = 0;  ///< keep this many; 0: all
  std::uint64_t seed = 42;
};

/// Chooses a token from logits [vocabulary]. `sequence` and `position` name the random number.
std::int32_t choose(const float* logits, std::int64_t vocabulary, const Sampling& sampling,
                    std::uint64_t sequence, std::uint64_t position);

struct DecoderOptions {
  model::Architecture architecture;
  std::vector<runtime::AddedAdapter> adapters;  ///< added to the weights when they are loaded
  precision::Recipe recipe;      ///< how GEMMs read operands; delayed scaling only of a model in training
  std::int64_t sequences = 1;    ///< decoded side by side
  std::int64_t capacity = 1024;  ///< tokens of a sequence, prompt and answer
  std::int64_t prefill = 512;    ///< prompt tokens taken at a time
  std::int64_t scored = 0;       ///< most tokens of a sequence whose probabilities are asked for; 0: none is
};

/// What complete() is asked for.
struct Request {
  std::vector<std::int32_t> prompt;
  std::uint64_t number = 0;  ///< names the sequence's random numbers
};

/// Called with each new token of a request (its index in the list), before the next one is made.
using OnToken = std::function<void(std::size_t request, std::int32_t token)>;

/// A model that answers. All ranks construct it together; each then completes requests of its own, when it
/// wants to, because every rank holds all parameters. Only with those of a model in training at zero_stage 3
/// the ranks gather them together: then all make the same calls, each with requests of its own or none, and a
/// request that cannot be answered is an Error on all.
class Decoder {
 public:
  /// A model of its own, whose weights are read.
  Decoder(Device& device, comm::Job& job, comm::Collectives& data, const DecoderOptions& options);
  /// The weights of a model in training, as they are when it is asked: nothing of them is copied. What is
  /// decoded is enqueued on that model's stream, between its steps. Of `options`, architecture and recipe are
  /// those of `model`, which outlives the decoder. With FP8 activations are cast as the model's evaluations
  /// cast them: with delayed scaling by its scales as they are, and nothing is recorded.
  Decoder(runtime::Instance& model, const DecoderOptions& options);
  ~Decoder();
  /// Reads the weights of a Hugging Face folder. Throws Error on all ranks when that fails on one. Not of a
  /// model in training.
  void load_weights(const std::string& folder);
  /// What it holds: the cache, buffers and, unless they are of a model in training, weights, once.
  const Arena& arena() const { return *arena_; }

  /// Logarithms of the probabilities that the model gives to each token of a sequence but its first, by all
  /// that stand before it: [length - 1] for each. By the forward pass of training over whole sequences, each
  /// alone, so that the bits are those of Engine::log_probabilities for the same micro-batch; the logits that
  /// complete() draws from sum attention in another order and may differ in their last bits. Throws Error
  /// (usage) for a sequence that is empty or longer than `scored`.
  std::vector<std::vector<double>> log_probabilities(const std::vector<std::vector<std::int32_t>>& sequences);

  /// Continues every prompt until one of `stop_ids` (not part of the answer), `max_new` tokens, or a full
  /// cache. Throws Error for an empty prompt, one that leaves no room, or an id outside the vocabulary.
  std::vector<std::vector<std::int32_t>> complete(const std::vector<Request>& requests,
                                                  const std::vector<std::int32_t>& stop_ids,
                                                  std::int64_t max_new, const Sampling& sampling,
                                                  const OnToken& on_token = {});

 private:
  struct Sequence;
  void require_answerable(const std::vector<Request>& requests) const;
  /// Whether the ranks gather parameters together, pass by pass.
  bool walks_together() const;
  /// Runs what throws for wrong requests; where ranks walk together none goes on alone.
  void require(const std::function<void()>& checks);
  /// Whether another pass is to be made: for this rank's requests, or for those of any where ranks walk
  /// together.
  bool goes_on(bool here);
  /// The scales of activations as the model in training has them.
  void take_scales();
  void forward(const std::vector<Sequence*>& active);

  void reserve();
  Stream& compute() { return model_->compute(); }

  DecoderOptions options_;
  std::unique_ptr<runtime::Instance> own_;        ///< null: the model is in training
  std::unique_ptr<Arena> own_arena_;              ///< of a decoder of such a model
  std::unique_ptr<model::Transformer> own_core_;  ///< likewise
  runtime::Instance* model_;
  Arena* arena_;
  model::Transformer* core_ = nullptr;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<runtime::Staging> staging_;  ///< of what is scored; null: nothing is
  std::int32_t* words_ = nullptr;       ///< device: ids, slots, positions [tokens] each, rows [sequences]
  float* logits_ = nullptr;             ///< device: [sequences, vocabulary]
  std::int32_t* host_words_ = nullptr;  ///< pinned, as words_ and logits_
  float* host_logits_ = nullptr;
};

}  // namespace octet::generate
