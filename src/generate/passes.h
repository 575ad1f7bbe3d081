// The passes of a decoder. Answering and scoring share them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "octet/generate/decoder.h"
#include "pass_runner.h"
#include "sequences.h"
#include "token_choice.h"

namespace octet::generate {

/// The parts of a decoder. They outlive objects that use them.
struct DecoderParts {
  const DecoderOptions& options;
  Team* team;  ///< null: this rank has the whole model
  bool own;    ///< false: the model is in training
  runtime::Instance& model;
  model::Transformer& core;
  PassRunner& runner;
  TokenChoice& choice;
  Sequences& sequences;
  DecodeCounts& counts;
};

/// Whether the ranks of a model gather parameters together in each pass.
bool walks_together(runtime::Instance& model);

class Passes {
 public:
  explicit Passes(const DecoderParts& parts) : parts_(parts) {}

  /// Runs `checks`, which throws for invalid requests. If ranks gather together, a failure on one fails on
  /// all.
  void require(const std::function<void()>& checks) const;
  /// Throws Error (usage) unless `ids` are 1 to `most` ids of the vocabulary.
  void require_ids(const std::vector<std::int32_t>& ids, std::int64_t most) const;
  /// Whether another pass is needed: for this rank, or for any rank if the ranks gather together.
  bool goes_on(bool here) const;
  /// Takes part in the pass of other ranks that still have requests, if the ranks gather together.
  void pass_by() const;
  /// Copies the activation scales of the model in training.
  void take_scales() const;
  /// Adds copies of pages that precede the next planned pass.
  void add_copies(const std::vector<PageCopy>& copies);
  /// Plans a pass of these tokens, with the preceding cache changes, and sends the plan to the team.
  PassPlan planned(PassTokens tokens);
  void begin(const PassPlan& plan);
  /// Begins a pass and waits for its end.
  void run(const PassPlan& plan);

 private:
  DecoderParts parts_;
  std::vector<PageCopy> copies_;  ///< to do before the next pass
};

}  // namespace octet::generate
