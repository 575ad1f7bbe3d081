// How a decoder comes to the next token of each sequence: which logits a pass has to tell, and what is taken
// by them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octet/generate/decoder.h"
#include "pass_plan.h"
#include "pass_runner.h"
#include "sequence.h"

namespace octet::generate {

class TokenChoice {
 public:
  /// Both outlive this.
  TokenChoice(const DecoderOptions& options, PassRunner& runner) : options_(options), runner_(runner) {}

  /// What a pass is to tell of its logits, so that a token can be chosen for each of its rows.
  Wanted wanted_of(const PassTokens& pass) const;

  struct Choice {
    std::int32_t token = 0;
    double logprob = 0;            ///< where any is wanted
    std::vector<TokenScore> best;  ///< as many as are wanted
  };
  /// The next token of a sequence, by its row of the last pass. Throws Error where the largest of its logits
  /// is no finite number.
  Choice choose_for(const Sequence& s, std::size_t row);
  /// Of a row of the last pass whose logits came to the host.
  LogProbabilities log_softmax(std::size_t row) const;
  /// Rows that came to the host whole since what was listed of them did not suffice.
  std::int64_t whole_rows() const { return whole_rows_; }

 private:
  /// Whether the most probable token is all that a sequence wants of its next logits. Strict
  /// log-probabilities are made on the host, where those of training are.
  bool takes_the_best(const Sequence& s) const;
  /// What a row of a sequence is listed for.
  ListingWish wish_of(const Sequence& s) const;
  std::optional<Choice> choose_listed(const Sequence& s, std::size_t row) const;
  Choice choose_whole(const Sequence& s, std::size_t row) const;

  const DecoderOptions& options_;
  PassRunner& runner_;
  std::int64_t whole_rows_ = 0;
};

}  // namespace octet::generate
