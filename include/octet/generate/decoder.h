// The generate module computes answers of a model, token by token, with a KV cache. It runs the transformer
// core of training on parameters that a store gathers, so answers come from exactly the trained model.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/generate/sampling.h"
#include "octet/generate/team.h"
#include "octet/model/kv_cache.h"
#include "octet/model/transformer.h"
#include "octet/runtime/instance.h"

namespace octet::generate {

class Answering;
class Passes;
class PassRunner;
class Scoring;
class Sequences;
class TensorSums;
class TokenChoice;

struct DecoderOptions {
  model::Architecture architecture;
  runtime::TrainedParameters trained;           ///< from a checkpoint; replace the weights of the folder
  std::vector<runtime::AddedAdapter> adapters;  ///< merged into the weights at loading
  precision::Recipe recipe;       ///< operand formats of GEMMs; delayed scaling only for a model in training
  bool fp8_cache = false;         ///< the KV cache stores E4M3, otherwise the compute dtype
  std::int64_t page_tokens = 64;  ///< tokens per cache page, a power of two
  std::size_t cache_bytes = 0;    ///< bytes of all cache pages; 0: full_cache_bytes()
  /// Compute a common prefix of sequences once. Models with delta rules compute it for each sequence.
  bool share_prefixes = true;
  std::int64_t sequences = 1;    ///< decoded concurrently
  std::int64_t capacity = 1024;  ///< tokens of a sequence, prompt and answer
  /// Most tokens of a pass; at least `sequences`. A pass takes one token of each sequence that is decoding,
  /// then tokens of prompts. If `prefill` is about `sequences`, little room is left for prompts.
  std::int64_t prefill = 512;
  /// Draws each token of an answer from the logits that log_probabilities() computes. The log-probabilities
  /// have the same bits in any batch, prompt piece or page. With FP8, `strict` needs block scaling and a
  /// CPU. It excludes fp8_cache and split layers. For a model in training, the value of that model is used.
  bool strict = false;
  /// Number of the largest logits of a row that come to the host, for the choice of a token. The other logits
  /// stay on the device unless the choice depends on them (DecodeCounts::whole_rows). 0: whole rows come to
  /// the host, as they always do with `strict` or a split vocabulary. Answers are equal for all values.
  std::int64_t listed = 512;
  /// Begins a pass before the host has read the results of the previous pass, if only the most probable
  /// tokens are needed. The device then passes the tokens on. Answers are the same. An answer that ends early
  /// costs one extra token. Unset: on for a GPU. Possible only if the decoder owns its
  /// model and this rank holds the whole model.
  std::optional<bool> run_ahead;
  /// Returns the experts of the tokens of each answer (Answer::experts). Turns share_prefixes and run_ahead
  /// off. Not for a model in stages, or without experts.
  bool keep_experts = false;
  std::int64_t scored = 0;      ///< longest sequence for log_probabilities(); 0: not used
  std::int64_t score_rows = 0;  ///< logit rows that score() computes at a time; 0: not used
};

/// full_cache_bytes(): bytes of the pages that hold all sequences at their capacity. least_cache_bytes():
/// bytes of the pages that hold one sequence.
std::size_t full_cache_bytes(const DecoderOptions& options);
std::size_t least_cache_bytes(const DecoderOptions& options);

/// A prompt to answer.
struct Request {
  std::vector<std::int32_t> prompt;
  std::uint64_t row = 0;     ///< seeds the random numbers of the answer, with `sample`
  std::uint32_t sample = 0;  ///< index among several answers to one prompt
};

/// Limits of an answer, and the log-probabilities to return.
struct AnswerOptions {
  Sampling sampling;
  std::vector<std::int32_t> stop_ids;  ///< each ends an answer and is not part of it
  std::int64_t max_new = 256;          ///< most tokens of an answer
  std::int64_t min_new = 0;            ///< no stop id is chosen before this many tokens
  std::int64_t logprobs = -1;  ///< -1: none; 0: of the chosen tokens; K: also of the K most probable tokens
};

enum class FinishReason {
  stop,    ///< a stop id, or OnToken returned false
  length,  ///< max_new, or the capacity of a sequence
};
const char* to_string(FinishReason reason);

struct Answer {
  std::vector<std::int32_t> ids;
  FinishReason finish = FinishReason::length;
  /// Per token, from the unmodified logits of the model: before penalties, temperature and filters.
  std::vector<double> logprobs;
  std::vector<std::vector<TokenScore>>
      top;  ///< per token, the K most probable tokens at its position, best first
  /// With keep_experts: the experts of each computed token of prompt and answer, [tokens, blocks with
  /// experts, experts per token]. The experts of a token are in descending order of their weights.
  std::vector<std::uint16_t> experts;
};

/// Called with each new token of a request; `request` is the number from submit(). Returning false ends the
/// answer after this token.
using OnToken = std::function<bool(std::size_t request, std::int32_t token)>;

/// Counts of a decoder over its lifetime.
struct DecodeCounts {
  std::int64_t prompt_tokens = 0;
  std::int64_t shared_tokens =
      0;  ///< prompt tokens that were not computed, because another prompt has the same prefix
  std::int64_t new_tokens = 0;   ///< tokens of answers
  std::int64_t passes = 0;       ///< forward passes
  std::int64_t replayed = 0;     ///< passes that the device replayed from a recording
  std::int64_t cache_pages = 0;  ///< pages of the cache; cache_pages_used: most pages held at once
  std::int64_t cache_pages_used = 0;
  std::int64_t put_back = 0;           ///< sequences that returned to the queue because the cache was full
  std::int64_t recomputed_tokens = 0;  ///< tokens computed again for these sequences
  std::int64_t whole_rows = 0;         ///< rows copied whole, because the listed logits did not suffice
};

/// A model that answers. All ranks construct it together. Each rank then completes separate requests at any
/// time, because every rank holds all parameters. At zero_stage 3, the ranks of a model in training gather
/// parameters together. Then all ranks make the same calls, each with its requests or none. A request that
/// cannot be answered is then an Error on all ranks.
///
/// If the layers of a model are split among the ranks of a team, only the leader answers. All ranks construct
/// the decoder and load its weights together. Then the leader makes the calls below, and dismiss() at the
/// end. The other ranks call follow() and compute the passes that the leader sends. A model in stages keeps
/// as many passes in flight as it has stages.
class Decoder {
 public:
  /// For a model that the decoder loads and owns. Throws Error (usage) if the cache does not hold one
  /// sequence, or if `strict` is not possible.
  Decoder(Device& device, comm::Job& job, comm::Collectives& data, const DecoderOptions& options);
  /// For this rank's share of a model that the ranks of a team hold together. Throws Error (usage) like
  /// model::require_splits.
  Decoder(Device& device, Team& team, const DecoderOptions& options);
  /// For a model in training. Reads the current weights of `model` without a copy. Work is enqueued on the
  /// stream of `model`, between its steps. `model` outlives the decoder and sets architecture and recipe of
  /// `options`. With FP8, activations are cast like in evaluations of `model`. Delayed scaling uses its
  /// current scales and records nothing.
  Decoder(runtime::Instance& model, const DecoderOptions& options);
  ~Decoder();
  /// Reads the weights of a Hugging Face folder. Throws Error on all ranks if it fails on one. Not for a
  /// model in training.
  void load_weights(const std::string& folder);
  /// Initialises weights on the device. They depend only on the seed. Not for a model in training.
  void initialise(std::uint64_t seed);
  /// The options of the constructor, adapted to the model.
  const DecoderOptions& options() const { return options_; }
  /// Parameters of the whole model.
  std::int64_t parameter_count() const;
  /// The stream of the decoder's work.
  Stream& stream() { return model_->compute(); }
  /// Memory of the cache, the buffers and, except for a model in training, the weights.
  const Arena& arena() const { return *arena_; }

  /// Returns the natural logarithm of the probability of each token, except the first, given all earlier
  /// tokens: [length - 1] per sequence. Runs the forward pass of training over each whole sequence
  /// separately. The bits equal Engine::log_probabilities for the same micro-batch. Unless `strict`, the
  /// logits of complete() are summed in other orders and may differ in the last bits. Throws Error (usage) if
  /// a sequence is empty or longer than `scored`.
  std::vector<std::vector<double>> log_probabilities(const std::vector<std::vector<std::int32_t>>& sequences);

  /// Enqueues a request and returns its number, from 0. A common prefix of sequences is computed once. If the
  /// cache is full, the youngest sequence returns to the head of the queue. It continues from its partial
  /// answer when pages are free; answers do not change. Throws Error (usage) for an empty prompt, a prompt
  /// that leaves no room, an id outside the vocabulary, or invalid sampling. After an Error, nothing was
  /// enqueued.
  std::size_t submit(const Request& request, const AnswerOptions& options);
  /// True while a request is unanswered.
  bool busy() const;
  /// Requests that the next step could start: free slots minus waiting requests.
  std::int64_t room() const;
  struct Finished {
    std::size_t request = 0;
    Answer answer;
  };
  /// Runs one forward pass: one token for each decoding sequence, and pieces of prompts. For a model in
  /// stages, completes the oldest pass in flight, which has a part of the sequences. With run_ahead, the next
  /// pass has begun when this returns. At zero_stage 3, all ranks make the same number of steps, with or
  /// without requests.
  std::vector<Finished> step(const OnToken& on_token = {});

  /// Answers all requests, in order. `on_token` gets the index of the request in the list.
  std::vector<Answer> complete(const std::vector<Request>& requests, const AnswerOptions& options,
                               const OnToken& on_token = {});

  /// Scores a text. Returns the log-probability of each token, except the first, given all earlier tokens,
  /// and the `best` most probable tokens at its position. Uses the cache, score_rows tokens at a time. Only
  /// while no request is active. Throws Error (usage) like submit(), or if the text exceeds `capacity`
  /// tokens.
  struct Score {
    std::vector<double> logprobs;              ///< [length - 1]
    std::vector<std::vector<TokenScore>> top;  ///< [length - 1]
  };
  Score score(const std::vector<std::int32_t>& ids, std::int64_t best);

  /// Returns the logits [vocabulary] of the token after a prompt, for callers that choose it. Only while no
  /// request is active. Throws Error (usage) like submit().
  std::vector<float> next_logits(const std::vector<std::int32_t>& prompt);

  const DecodeCounts& counts() const { return counts_; }

  /// For ranks of a team except the leader: takes part in passes until dismissed. Returns the leader's code.
  int follow();
  /// For the leader of a team: ends follow() on the other ranks. Only once. The destructor calls it unless an
  /// exception is active.
  void dismiss(int code);

 private:
  void reserve();
  bool runs_ahead() const;
  Stream& compute() { return model_->compute(); }

  DecoderOptions options_;
  Team* team_ = nullptr;  ///< null: this rank has the whole model
  bool dismissed_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::unique_ptr<comm::Job> own_job_;  ///< if this rank has a share of a model: a job of this rank only
  std::unique_ptr<comm::Collectives> own_data_;   ///< likewise
  std::unique_ptr<TensorSums> sums_;              ///< if the tensor group has several ranks
  std::unique_ptr<runtime::Instance> own_;        ///< null: the model is in training
  std::unique_ptr<Arena> own_arena_;              ///< of a decoder for a model in training
  std::unique_ptr<model::Transformer> own_core_;  ///< likewise
  runtime::Instance* model_;
  Arena* arena_;
  model::Transformer* core_ = nullptr;
  std::unique_ptr<PassRunner> runner_;
  std::unique_ptr<TokenChoice> choice_;
  std::unique_ptr<Sequences> sequences_;
  DecodeCounts counts_;
  std::unique_ptr<Passes> passes_;
  std::unique_ptr<Answering> answering_;
  std::unique_ptr<Scoring> scoring_;
};

/// Runs `lead` on the leader and follow() on the other ranks of a team. The leader dismisses the others at
/// the end. If `lead` throws an Error that all leaders share, the others get its code. Returns the code of
/// this rank. Rethrows exceptions of `lead`.
int lead_or_follow(Team& team, Decoder& decoder, const std::function<void()>& lead);

}  // namespace octet::generate
