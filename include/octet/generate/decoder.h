// The generate room: answers from a model, token by token, with a KV cache. It runs the transformer core of
// training on parameters that a store gathers, so that what is heard here is what was trained.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
#include "octet/runtime/staging.h"

namespace octet::generate {

class PassRunner;
class Sequences;
class TensorSums;
class TokenChoice;
struct PassPlan;
struct PassTokens;
struct Sequence;

struct DecoderOptions {
  model::Architecture architecture;
  runtime::TrainedParameters trained;           ///< of a checkpoint, in place of the folder's weights
  std::vector<runtime::AddedAdapter> adapters;  ///< added to the weights when they are loaded
  precision::Recipe recipe;       ///< how GEMMs read operands; delayed scaling only of a model in training
  bool fp8_cache = false;         ///< keys and values lie in E4M3, else in the compute dtype
  std::int64_t page_tokens = 64;  ///< of a page of the cache, a power of two
  std::size_t cache_bytes = 0;    ///< of its pages; 0: as many as all sequences fill (full_cache_bytes)
  bool share_prefixes = true;     ///< what sequences begin with alike is computed once
  std::int64_t sequences = 1;     ///< decoded side by side
  std::int64_t capacity = 1024;   ///< tokens of a sequence, prompt and answer
  /// Tokens of a pass at most, `sequences` where that is more: first one of every sequence that is being
  /// answered, then those of prompts, for which a pass with room for no more than the sequences has little.
  std::int64_t prefill = 512;
  /// A token of an answer is drawn from the logits that log_probabilities() sees, and its log-probability has
  /// the bits of that function's, whatever batch, piece or page it was made in. With FP8 only in blocks and
  /// on a CPU; not with fp8_cache. Of a model in training: as that is.
  bool strict = false;
  /// Logits of a row, the largest ones, that tokens are chosen from: the others stay where they were made,
  /// unless they matter (DecodeCounts::whole_rows). 0: whole rows come to the host, as those of strict
  /// answers and of a vocabulary in pieces do. Answers are the same.
  std::int64_t listed = 512;
  /// Begins a pass before the host has seen what the one in front of it made, where the most probable tokens
  /// are all that is taken: the device hands them on itself. Answers are the same; one that ends before its
  /// length costs a token more. Unset: on a GPU. Only of a model of its own, whole on this rank.
  std::optional<bool> run_ahead;
  std::int64_t scored = 0;      ///< most tokens of a sequence for log_probabilities(); 0: it is not asked for
  std::int64_t score_rows = 0;  ///< tokens whose logits score() takes at a time; 0: it is not asked for
};

/// Bytes of the pages of a cache that holds all sequences at their capacity, and of the least one, which
/// holds one sequence.
std::size_t full_cache_bytes(const DecoderOptions& options);
std::size_t least_cache_bytes(const DecoderOptions& options);

/// What is asked.
struct Request {
  std::vector<std::int32_t> prompt;
  std::uint64_t row = 0;     ///< names the random numbers of its answer, with `sample`
  std::uint32_t sample = 0;  ///< of several answers to one prompt
};

/// What an answer may be, and what is told of it.
struct AnswerOptions {
  Sampling sampling;
  std::vector<std::int32_t> stop_ids;  ///< any of them ends an answer and is no part of it
  std::int64_t max_new = 256;          ///< tokens of an answer at most
  std::int64_t min_new = 0;            ///< no stop id is chosen before
  std::int64_t logprobs = -1;  ///< -1: none; 0: of the tokens taken; K: of the K most probable as well
};

enum class FinishReason {
  stop,    ///< a stop id, or whoever was told of a token asked for the end
  length,  ///< max_new, or the room of a sequence
};
const char* to_string(FinishReason reason);

struct Answer {
  std::vector<std::int32_t> ids;
  FinishReason finish = FinishReason::length;
  /// Of each token, by the model's own logits: before penalties, temperature and what is left out.
  std::vector<double> logprobs;
  std::vector<std::vector<TokenScore>> top;  ///< of each token the K most probable in its place, best first
};

/// Called with each new token of a request (its number, as submit() gave it). False ends the answer with this
/// token.
using OnToken = std::function<bool(std::size_t request, std::int32_t token)>;

/// What a decoder has done since it was made.
struct DecodeCounts {
  std::int64_t prompt_tokens = 0;
  std::int64_t shared_tokens = 0;  ///< of these, not computed: another prompt began with them
  std::int64_t new_tokens = 0;     ///< of answers
  std::int64_t passes = 0;         ///< forward passes
  std::int64_t replayed = 0;       ///< of these, recorded before and replayed by the device
  std::int64_t cache_pages = 0;    ///< pages of the cache, and how many were held at once at most
  std::int64_t cache_pages_used = 0;
  std::int64_t put_back = 0;           ///< sequences that went back into the queue, since the cache was full
  std::int64_t recomputed_tokens = 0;  ///< tokens that were computed once more for that
  std::int64_t whole_rows = 0;         ///< rows of logits of which those that are listed did not suffice
};

/// A model that answers. All ranks construct it together; each then completes requests of its own, when it
/// wants to, because every rank holds all parameters. Only with those of a model in training at zero_stage 3
/// the ranks gather them together: then all make the same calls, each with requests of its own or none, and a
/// request that cannot be answered is an Error on all.
///
/// A model whose layers are split among the ranks of a team is answered from by its leader alone: all ranks
/// construct the decoder and load its weights together, then the leader makes the calls below and at the end
/// dismiss(), and the others follow(), in which they compute what it tells them. Of a model in stages as many
/// passes are on their way at once as there are stages.
class Decoder {
 public:
  /// A model of its own, whose weights are read. Throws Error (usage) for a cache that does not hold one
  /// sequence, and where `strict` cannot be.
  Decoder(Device& device, comm::Job& job, comm::Collectives& data, const DecoderOptions& options);
  /// The rank's share of a model that the ranks of a team hold together. Throws Error (usage) as
  /// model::require_splits does.
  Decoder(Device& device, Team& team, const DecoderOptions& options);
  /// The weights of a model in training, as they are when it is asked: nothing of them is copied. What is
  /// decoded is enqueued on that model's stream, between its steps. Of `options`, architecture and recipe are
  /// those of `model`, which outlives the decoder. With FP8 activations are cast as the model's evaluations
  /// cast them: with delayed scaling by its scales as they are, and nothing is recorded.
  Decoder(runtime::Instance& model, const DecoderOptions& options);
  ~Decoder();
  /// Reads the weights of a Hugging Face folder. Throws Error on all ranks when that fails on one. Not of a
  /// model in training.
  void load_weights(const std::string& folder);
  /// Fresh weights that depend on the seed alone, made on the device. Not of a model in training.
  void initialise(std::uint64_t seed);
  /// What it was made for.
  const DecoderOptions& options() const { return options_; }
  /// Of the whole model.
  std::int64_t parameter_count() const;
  /// Where its work is enqueued.
  Stream& stream() { return model_->compute(); }
  /// What it holds: the cache, buffers and, unless they are of a model in training, weights, once.
  const Arena& arena() const { return *arena_; }

  /// Logarithms of the probabilities that the model gives to each token of a sequence but its first, by all
  /// that stand before it: [length - 1] for each. By the forward pass of training over whole sequences, each
  /// alone, so that the bits are those of Engine::log_probabilities for the same micro-batch. Unless
  /// `strict`, the logits that complete() draws from sum in other orders and may differ in their last bits.
  /// Throws Error (usage) for a sequence that is empty or longer than `scored`.
  std::vector<std::vector<double>> log_probabilities(const std::vector<std::vector<std::int32_t>>& sequences);

  /// Takes a request into the queue; its number counts from 0. Sequences that begin with the same tokens
  /// compute these once. Where the cache is full, the youngest sequence goes back to the head of the queue,
  /// and goes on from its answer so far when there is room: the answers are the same. Throws Error (usage)
  /// for an empty prompt, one that leaves no room, an id outside the vocabulary, and impossible sampling:
  /// then nothing was taken.
  std::size_t submit(const Request& request, const AnswerOptions& options);
  /// True while requests are not answered.
  bool busy() const;
  /// Requests that a step would take up at once: free places less those who wait for one.
  std::int64_t room() const;
  struct Finished {
    std::size_t request = 0;
    Answer answer;
  };
  /// One forward pass: a token for every sequence that is being answered, and pieces of prompts beside them.
  /// Of a model in stages the oldest pass that is on its way, for a part of the sequences. Where passes run
  /// ahead the next one has begun when this returns.
  /// At zero_stage 3 all ranks make the same number of steps, those with nothing to answer as well.
  std::vector<Finished> step(const OnToken& on_token = {});

  /// Answers all requests, in their order. `on_token` names them by their place in the list.
  std::vector<Answer> complete(const std::vector<Request>& requests, const AnswerOptions& options,
                               const OnToken& on_token = {});

  /// Of a text: the log-probability of each token but the first by all that stand before it, and the `best`
  /// most probable tokens in its place. Through the cache, score_rows tokens at a time. Only when nothing is
  /// being answered. Throws Error (usage) as submit() does, and for a text of more than `capacity` tokens.
  struct Score {
    std::vector<double> logprobs;              ///< [length - 1]
    std::vector<std::vector<TokenScore>> top;  ///< likewise
  };
  Score score(const std::vector<std::int32_t>& ids, std::int64_t best);

  /// Logits [vocabulary] of the token behind a prompt, for those who choose it themselves. Only when nothing
  /// is being answered. Throws Error (usage) as submit() does.
  std::vector<float> next_logits(const std::vector<std::int32_t>& prompt);

  const DecodeCounts& counts() const { return counts_; }

  /// Of a team's other ranks: takes part in passes until the leader dismisses them. Returns its code.
  int follow();
  /// Of a team's leader: the others go. Once; by itself at the end of a decoder that no error ends.
  void dismiss(int code);

 private:
  /// Whether the ranks gather parameters together, pass by pass.
  bool walks_together() const;
  /// Runs what throws for wrong requests; where ranks walk together none goes on alone.
  void require(const std::function<void()>& checks);
  /// Whether another pass is to be made: for this rank's requests, or for those of any where ranks walk
  /// together.
  bool goes_on(bool here);
  /// The scales of activations as the model in training has them.
  void take_scales();
  void reserve();
  void require_ids(const std::vector<std::int32_t>& ids, std::int64_t most) const;
  /// A pass of these tokens, with what of the cache changes before it; the team's other ranks are told of it.
  PassPlan planned(PassTokens tokens);
  /// Plans passes until as many are on their way as there are stages, or nothing is left to compute.
  void plan_ahead();
  /// The tokens of the next pass, for which sequences are taken up.
  PassTokens next_tokens(bool behind);
  /// Begins the oldest pass that is on its way, and one behind it where the host need not see it first.
  void begin_passes();
  bool runs_ahead() const;
  void begin(const PassPlan& plan);
  void run(const PassPlan& plan);
  void take_text(const std::vector<std::int32_t>& ids, std::int64_t piece,
                 const std::function<void(std::int64_t begin, std::int64_t end)>& see);
  void count();
  bool extend(Sequence& s, std::size_t row, const OnToken& on_token);
  Stream& compute() { return model_->compute(); }

  /// Passes that are on their way, and what the next one finds done.
  struct Ahead;

  DecoderOptions options_;
  Team* team_ = nullptr;  ///< null: this rank has the whole model
  bool dismissed_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::unique_ptr<comm::Job> own_job_;            ///< of a share, which is nobody else's
  std::unique_ptr<comm::Collectives> own_data_;   ///< likewise
  std::unique_ptr<TensorSums> sums_;              ///< of a tensor group of several ranks
  std::unique_ptr<runtime::Instance> own_;        ///< null: the model is in training
  std::unique_ptr<Arena> own_arena_;              ///< of a decoder of such a model
  std::unique_ptr<model::Transformer> own_core_;  ///< likewise
  runtime::Instance* model_;
  Arena* arena_;
  model::Transformer* core_ = nullptr;
  std::unique_ptr<PassRunner> runner_;
  std::unique_ptr<TokenChoice> choice_;
  std::unique_ptr<Sequences> sequences_;
  std::unique_ptr<Ahead> ahead_;
  std::size_t submitted_ = 0;
  DecodeCounts counts_;
  std::unique_ptr<runtime::Staging> staging_;  ///< of what is scored; null: nothing is
};

/// What all ranks of a team do with their decoder: the leader does `lead` and dismisses the others, also
/// where an Error ends it that all leaders know of, with that one's code; the others follow. Returns the code
/// of this rank. Rethrows what `lead` throws.
int lead_or_follow(Team& team, Decoder& decoder, const std::function<void()>& lead);

}  // namespace octet::generate
