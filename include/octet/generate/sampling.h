// Chooses the next token of an answer, as defined by Hugging Face transformers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octet/base/error.h"
#include "octet/runtime/log_softmax.h"

namespace octet::generate {

/// Modifies the probabilities of the model before a token is drawn. Order, as in the logits processors of
/// transformers: repetition_penalty, temperature, top_k, top_p, min_p.
struct Sampling {
  double temperature = 0.0;  ///< divides the logits; 0 takes the most probable token
  double top_p = 1.0;        ///< keep the most probable tokens that together reach this probability
  std::int64_t top_k = 0;    ///< keep this many tokens, and all that equal the last of them; 0: all
  double min_p = 0.0;  ///< keep tokens of at least this probability, relative to the most probable token
  double repetition_penalty =
      1.0;  ///< logits of tokens seen are divided (above 0) or multiplied (below) by it
  std::uint64_t seed = 42;
};

/// The highest temperature.
inline constexpr double kHottest = 100;

/// Throws Error (usage) if a setting is not finite or outside its range: temperature [0, 100], top_p (0, 1],
/// top_k >= 0, min_p [0, 1], repetition_penalty (0, 100].
void require_possible(const Sampling& sampling);

/// Identifies a random number. It depends neither on other sequences in the batch nor on the rank.
struct Draw {
  std::uint64_t row = 0;       ///< the prompt; below 2^32
  std::uint32_t sample = 0;    ///< index among several answers to one prompt
  std::uint64_t position = 0;  ///< in prompt and answer; below 2^32
};

/// A token that may be drawn, and its probability.
struct Candidate {
  std::int32_t id = 0;
  double probability = 0.0;
};

/// Returns the tokens that may be drawn from logits [vocabulary], by ascending id. Their probabilities sum to
/// 1. `seen`: earlier tokens of prompt and answer, ids of the vocabulary. At temperature 0, only the most
/// probable token; the lower id of equals.
std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& sampling,
                                  std::span<const std::int32_t> seen = {});

/// Thrown if the model computes values that are not finite.
class NotFinite : public Error {
  using Error::Error;
};

/// Throws NotFinite (usage) if the largest logit of a row, or a log-probability, is not finite. A NaN counts
/// as the largest.
void require_finite(double largest);

/// Draws one of the candidates.
std::int32_t choose(std::span<const float> logits, const Sampling& sampling, const Draw& draw,
                    std::span<const std::int32_t> seen = {});

struct TokenScore {
  std::int32_t id = 0;
  double logprob = 0.0;  ///< natural logarithm of the probability
};

/// Log-softmax of logits [vocabulary], in fp64, evaluated on demand.
class LogProbabilities {
 public:
  /// Rounding of a logarithm. of_answers: value - (highest + log of the sum). of_training: as
  /// runtime::LogSoftmax, which scores the tokens of a training step.
  enum class Rounding { of_answers, of_training };
  /// `logits` is not copied and must outlive this object.
  explicit LogProbabilities(std::span<const float> logits, Rounding rounding = Rounding::of_answers);
  double of(std::int32_t id) const;
  /// The `count` most probable tokens, best first; of equals, the lower id first.
  std::vector<TokenScore> best(std::int64_t count) const;

 private:
  std::span<const float> logits_;
  runtime::LogSoftmax softmax_;
  Rounding rounding_;
};

}  // namespace octet::generate
