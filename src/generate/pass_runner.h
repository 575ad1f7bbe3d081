// A rank's part of forward passes: the cache, the core, and what comes of the logits.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "listed_choice.h"
#include "octet/generate/decoder.h"
#include "octet/generate/team.h"
#include "pass_plan.h"
#include "repeated_passes.h"
#include "stage_edges.h"
#include "standing_parameters.h"
#include "tensor_sums.h"
#include "vocabulary_pieces.h"

namespace octet::generate {

/// The most tokens of a pass, and the most of them whose logits are wanted.
std::int64_t most_tokens(const DecoderOptions& options);
std::int64_t logit_rows(const DecoderOptions& options);

/// What a runner works with, which outlives it.
struct RunnerParts {
  runtime::Instance& model;
  model::Transformer& core;
  Arena& arena;
  bool own = true;             ///< the model is the decoder's: its parameters stay where they are
  bool ahead = false;          ///< passes are begun behind others, whose most probable tokens they take
  Team* team = nullptr;        ///< null: this rank has the whole model
  TensorSums* sums = nullptr;  ///< of a team whose tensor groups have several ranks
};

class PassRunner {
 public:
  /// Reserves the cache, of `pages` pages, and all buffers.
  PassRunner(const RunnerParts& parts, const DecoderOptions& options, const model::KvLayout& layout,
             std::int64_t pages);

  /// The model's parameters have changed.
  void forget_parameters();
  /// Begins a pass; at most two are on their way. Keys and values go into the cache; of its rows what is
  /// wanted comes to the host, of the leader where there is a team, whose ranks all run the same plans.
  /// Behind a pass that is on its way only where of that one the most probable tokens are all that is wanted.
  void begin(const PassPlan& plan);
  /// Waits for the oldest pass that is on its way, which is the last one from then on.
  void finish();
  /// Of a row of the last pass: the most probable token, where some were wanted, and its logits [vocabulary],
  /// where they were.
  ops::BestToken best(std::size_t row) const;
  std::span<const float> logits(std::size_t row) const;
  /// Logits of a row that can be listed at most; 0: no row can.
  std::int64_t most_listed() const { return most_listed_; }
  /// Whether a row of the last pass was listed, and what is listed of it until the next pass.
  bool has_listed(std::size_t row) const { return row < last_.listed.size() && last_.listed[row]; }
  ListedRow listed(std::size_t row) const;
  /// Brings the logits of a row of the last pass, which can be listed, to where logits() finds them. Waits.
  void fetch_row(std::size_t row);
  /// Passes that the device replayed.
  std::int64_t replayed() const { return replayed_; }

 private:
  /// What a pass leaves to be read.
  struct Made {
    std::size_t side = 0;
    std::int64_t rows = 0;
    bool normalizers = false;
    std::vector<bool> listed;  ///< the rows that were listed
  };
  /// Where the host and the device meet in a pass.
  struct Side {
    std::int32_t* words = nullptr;    ///< pinned, as words_
    ops::BestToken* best = nullptr;   ///< pinned: best_ of each rank of the tensor group, rank by rank
    std::unique_ptr<Event> finished;  ///< the pass is over
  };

  bool leads() const { return parts_.team == nullptr || parts_.team->leads(); }
  bool has_head() const { return options_.architecture.share.last(); }
  void reserve();
  /// The tokens of a pass as the device gets them: a pass that is repeated has more, the first one again.
  model::DecodeBatch batch_of(const PassTokens& tokens, bool repeated);
  void reserve_listings();
  /// What the rows of a pass are listed for, as the device gets it: rows that were added want nothing.
  /// Returns which are listed.
  std::vector<bool> lay_out_listing(const Wanted& wanted, std::int64_t rows);
  /// Puts a pass on side_, the choice of the most probable tokens and the listing of rows on the stream.
  void enqueue(const model::DecodeBatch& batch, const Wanted& wanted);
  void choose_best(const ops::Matrix& logits, bool normalizers);
  void list_logits(const ops::Matrix& logits, bool normalizers);
  void fetch_logits(const Wanted& wanted);
  Device& device() { return parts_.model.device(); }
  Stream& compute() { return parts_.model.compute(); }

  RunnerParts parts_;
  const DecoderOptions& options_;
  model::KvCache cache_;
  std::unique_ptr<StandingParameters> standing_;  ///< of a model of its own
  RepeatedPasses repeated_;
  std::unique_ptr<StageEdges> edges_;         ///< of a model in stages
  std::unique_ptr<VocabularyPieces> pieces_;  ///< of the head of a tensor group
  std::deque<Made> on_the_way_;               ///< the oldest first
  Made last_;
  std::size_t side_ = 0;  ///< of the pass that was begun last
  std::int64_t replayed_ = 0;
  std::int32_t* words_ = nullptr;   ///< device: ids, slots, positions [tokens] each, rows [sequences]
  float* logits_ = nullptr;         ///< device: [sequences, vocabulary of the share]
  void* narrow_logits_ = nullptr;   ///< likewise in the compute dtype, from which those come; null: none
  std::array<Side, 2> sides_;       ///< in turns, since two passes may be on their way
  float* host_logits_ = nullptr;    ///< pinned: [sequences, vocabulary]
  std::int64_t most_listed_ = 0;    ///< logits of a row that there is room for; 0: rows are not listed
  double* listing_ = nullptr;       ///< device: temperatures [rows], behind them draws [rows]
  double* host_listing_ = nullptr;  ///< pinned, as listing_
  ops::RowOfLogits* summaries_ = nullptr;       ///< device: [sequences]
  ops::RowOfLogits* host_summaries_ = nullptr;  ///< pinned, as summaries_
  ops::ListedLogit* largest_ = nullptr;         ///< device: [sequences, most_listed]
  ops::ListedLogit* host_largest_ = nullptr;    ///< pinned, as largest_
  ops::BestToken* best_ = nullptr;              ///< device: of each row the most probable token
};

}  // namespace octet::generate
