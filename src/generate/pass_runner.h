// Passes of a decoder: their plan, their repetition, and their run on the device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "listed_choice.h"
#include "octet/device/device.h"
#include "octet/generate/decoder.h"
#include "octet/generate/team.h"
#include "octet/model/parameter_source.h"
#include "paged_cache.h"
#include "sequences.h"
#include "team_messages.h"
#include "vocabulary_pieces.h"

namespace octet::generate {

// Parameters that stay in place from one pass to the next.

/// Acquires each group of a source once, so that a pass contains only its compute work and waits for no
/// parameters. Only for a source that holds all groups at once and changes nothing by itself.
class StandingParameters final : public model::ParameterSource {
 public:
  explicit StandingParameters(model::ParameterSource& source);
  /// Acquires all groups again at their next use. Must be called after their contents changed.
  void forget(Stream& compute);

  const model::ParameterLayout& layout() const override { return source_.layout(); }
  const model::GroupParameters& acquire(int group, model::Pass pass, Stream& compute) override;
  void release(int, model::Pass, Stream&) override {}
  bool keeps() const override { return true; }
  void blocks_done(Stream&) override {}
  /// Always fails: nothing is trained.
  const model::GroupGradients& gradients(int group, Stream& compute) override;
  void give_back(int group, Stream& compute) override;

 private:
  model::ParameterSource& source_;
  std::vector<const model::GroupParameters*> groups_;
};

// The plan of one forward pass. All ranks that hold one model together execute the same plan.

/// The results that a pass needs from a listed row (ops::listed_logits).
struct WantedOfRow {
  double temperature = 0;  ///< for the sum of probabilities of the row; 0: no sum
  double draw = -1;  ///< in [0, 1): the random number that draws a token from the whole row; below 0: no draw
};

/// The results that a pass needs from its logits.
struct Wanted {
  bool best = false;  ///< the most probable tokens, found on the device
  bool normalizers =
      false;  ///< also the normalizers for log-probabilities of these tokens and of listed rows
  /// [rows], or empty if no row is listed. The largest logits of a listed row are copied to the host. Only on
  /// a rank with the whole vocabulary.
  std::vector<std::optional<WantedOfRow>> listed;
  std::vector<bool> logits;  ///< [rows] true: the whole row is copied to the host

  /// Whether the most probable token of each row is the only result, so that it can stay on the device.
  bool best_alone() const { return listed.empty() && std::ranges::find(logits, true) == logits.end(); }
};

/// One pass. Its page copies and page changes are made before its tokens are computed.
struct PassPlan {
  std::vector<PageCopy> copies;
  std::vector<PageChange> changes;
  PassTokens tokens;
  Wanted wanted;
  std::string told;  ///< result of packed(), for ranks that do not have the plan
};

/// Serializes a plan without the sequences and the listings of its rows, which only the leader uses.
std::string packed(const PassPlan& plan);
/// Throws Error if `bytes` is not from packed().
PassPlan unpacked(const std::string& bytes);

// Records passes of one size, and replays them with other tokens.

/// The work of a pass with one token per sequence depends only on the number of tokens. If the device can
/// record (CUDA graphs), the first pass of a number is enqueued, the second is recorded, and later passes are
/// replayed. Numbers are rounded up to keep few recordings.
class RepeatedPasses {
 public:
  /// Repeats passes of at most `most` tokens. A null stream disables repetition.
  RepeatedPasses(Stream* stream, std::int64_t most) : stream_(stream), most_(most) {}
  /// Whether passes of this many tokens are repeated.
  bool repeats(std::int64_t tokens) const {
    return stream_ != nullptr && most_ > 0 && tokens <= most_ && can_record(*stream_);
  }
  /// Returns the padded number of tokens of a pass of `tokens` tokens.
  std::int64_t rounded(std::int64_t tokens) const;
  /// Runs a pass that `enqueue` puts on the stream. `tokens` is a rounded number. Passes of
  /// another `kind` have separate recordings. Returns true if the pass was replayed.
  bool make(std::int64_t tokens, int kind, const std::function<void()>& enqueue);

 private:
  struct Known {
    std::unique_ptr<Recording> recording;
    bool refused = false;
  };
  Stream* stream_;
  std::int64_t most_;
  std::map<std::pair<std::int64_t, int>, Known> passes_;
};

/// most_tokens(): most tokens of a pass. logit_rows(): most rows of logits of a pass.
std::int64_t most_tokens(const DecoderOptions& options);
std::int64_t logit_rows(const DecoderOptions& options);

/// References that a runner uses. They outlive it.
struct RunnerParts {
  runtime::Instance& model;
  model::Transformer& core;
  Arena& arena;
  bool own = true;  ///< the decoder owns the model, so parameters stay in place
  bool ahead =
      false;  ///< a pass may begin before the previous pass ends; its tokens are the result of that pass
  Team* team = nullptr;        ///< null: this rank has the whole model
  TensorSums* sums = nullptr;  ///< for a team with several ranks per tensor group
};

class PassRunner {
 public:
  /// Reserves a cache of `pages` pages, and all buffers.
  PassRunner(const RunnerParts& parts, const DecoderOptions& options, const model::KvLayout& layout,
             std::int64_t pages);

  /// Call it after the parameters of the model have changed.
  void forget_parameters();
  /// Begins a pass. At most two passes are in flight. Keys and values are written to the cache. The wanted
  /// results are copied to the host, on the leader if there is a team. All ranks of a team run the same
  /// plans. A second pass may begin only if the first one needs nothing except the most probable tokens.
  void begin(const PassPlan& plan);
  /// Waits for the oldest pass in flight, which then becomes the last pass.
  void finish();
  /// Results of a row of the last pass, if the plan wanted them: the most probable token, and the logits
  /// [vocabulary].
  ops::BestToken best(std::size_t row) const;
  std::span<const float> logits(std::size_t row) const;
  /// Most logits that can be listed per row; 0: listing is not possible.
  std::int64_t most_listed() const { return most_listed_; }
  /// has_listed(): whether a row of the last pass was listed. listed(): its list, valid until the next pass.
  bool has_listed(std::size_t row) const { return row < last_.listed.size() && last_.listed[row]; }
  ListedRow listed(std::size_t row) const;
  /// Copies the logits of a row of the last pass to the memory that logits() returns. Only if rows can be
  /// listed. Blocks.
  void fetch_row(std::size_t row);
  /// Returns the experts of a token of the last pass in a block with experts, counted from 0. Only with
  /// DecoderOptions::keep_experts.
  std::span<const std::int32_t> experts(std::size_t block, std::size_t token) const;
  /// Passes that the device replayed from a recording.
  std::int64_t replayed() const { return replayed_; }

 private:
  /// A pass that has begun, and the place of its results.
  struct Made {
    std::size_t side = 0;
    std::int64_t tokens = 0;  ///< with padding
    std::int64_t rows = 0;
    bool normalizers = false;
    std::vector<bool> listed;  ///< whether each row was listed
  };
  /// Buffers by which the host and the device exchange data in a pass.
  struct Side {
    std::int32_t* words = nullptr;    ///< pinned, layout of words_
    ops::BestToken* best = nullptr;   ///< pinned: best_ of each rank of the tensor group, in rank order
    std::unique_ptr<Event> finished;  ///< the pass has ended
  };

  bool leads() const { return parts_.team == nullptr || parts_.team->leads(); }
  bool has_head() const { return options_.architecture.share.last(); }
  void reserve();
  /// Copies the tokens of a pass to the device. A repeated pass is padded with copies of its first token.
  model::DecodeBatch batch_of(const PassTokens& tokens, bool repeated);
  void reserve_listings();
  /// Writes the listing settings of the rows for the device. Padding rows list nothing. Returns which rows
  /// are listed.
  std::vector<bool> lay_out_listing(const Wanted& wanted, std::int64_t rows);
  /// Enqueues a pass on side_, the choice of the most probable tokens, and the listing of rows.
  void enqueue(const model::DecodeBatch& batch, const Wanted& wanted);
  void choose_best(const ops::Matrix& logits, bool normalizers);
  void list_logits(const ops::Matrix& logits, bool normalizers);
  void fetch_logits(const Wanted& wanted);
  /// Experts of a token in all blocks.
  std::int64_t experts_of_token() const;
  Device& device() { return parts_.model.device(); }
  Stream& compute() { return parts_.model.compute(); }

  RunnerParts parts_;
  const DecoderOptions& options_;
  model::KvCache cache_;
  std::unique_ptr<StandingParameters> standing_;  ///< if the decoder owns the model
  RepeatedPasses repeated_;
  std::unique_ptr<StageEdges> edges_;         ///< if the model has stages
  std::unique_ptr<VocabularyPieces> pieces_;  ///< if a tensor group splits the head
  std::deque<Made> on_the_way_;               ///< passes in flight, oldest first
  Made last_;
  std::size_t side_ = 0;  ///< index in sides_ of the pass that began last
  std::int64_t replayed_ = 0;
  std::int32_t* words_ = nullptr;         ///< device: ids, slots, positions [tokens] each, rows [sequences]
  std::int32_t* experts_ = nullptr;       ///< device: DecodeBatch::experts; null: not kept
  std::int32_t* host_experts_ = nullptr;  ///< pinned, layout of experts_
  float* logits_ = nullptr;               ///< device: [sequences, vocabulary of the share]
  void* narrow_logits_ = nullptr;         ///< likewise in the compute dtype, converted to logits_; null: none
  std::array<Side, 2> sides_;             ///< used in turn, because two passes may be in flight
  float* host_logits_ = nullptr;          ///< pinned: [sequences, vocabulary]
  std::int64_t most_listed_ = 0;          ///< logits that can be listed per row; 0: listing is not possible
  double* listing_ = nullptr;             ///< device: temperatures [rows], then draws [rows]
  double* host_listing_ = nullptr;        ///< pinned, layout of listing_
  ops::RowOfLogits* summaries_ = nullptr;       ///< device: [sequences]
  ops::RowOfLogits* host_summaries_ = nullptr;  ///< pinned, layout of summaries_
  ops::ListedLogit* largest_ = nullptr;         ///< device: [sequences, most_listed]
  ops::ListedLogit* host_largest_ = nullptr;    ///< pinned, layout of largest_
  ops::BestToken* best_ = nullptr;              ///< device: the most probable token of each row
};

}  // namespace octet::generate
