// Chooses the next token of each sequence, and the results that a pass must return for the choice.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octet/generate/decoder.h"
#include "paged_cache.h"
#include "pass_runner.h"

namespace octet::generate {

class TokenChoice {
 public:
  /// `options` and `runner` outlive this object.
  TokenChoice(const DecoderOptions& options, PassRunner& runner) : options_(options), runner_(runner) {}

  /// Returns the results that a pass needs to choose a token for each of its rows.
  Wanted wanted_of(const PassTokens& pass) const;

  struct Choice {
    std::int32_t token = 0;
    double logprob = 0;            ///< if log-probabilities are wanted
    std::vector<TokenScore> best;  ///< as many as wanted
  };
  /// Chooses the next token of a sequence from its row of the last pass. Throws Error if the largest logit is
  /// not finite.
  Choice choose_for(const Sequence& s, std::size_t row);
  /// For a row of the last pass with logits on the host.
  LogProbabilities log_softmax(std::size_t row) const;
  /// Rows copied to the host whole because their listed logits did not suffice.
  std::int64_t whole_rows() const { return whole_rows_; }

 private:
  /// Whether a sequence needs only the most probable token. Strict log-probabilities are computed on the
  /// host, like in training.
  bool takes_the_best(const Sequence& s) const;
  /// The listing that the next row of a sequence needs.
  ListingWish wish_of(const Sequence& s) const;
  std::optional<Choice> choose_listed(const Sequence& s, std::size_t row) const;
  Choice choose_whole(const Sequence& s, std::size_t row) const;

  const DecoderOptions& options_;
  PassRunner& runner_;
  std::int64_t whole_rows_ = 0;
};

}  // namespace octet::generate
