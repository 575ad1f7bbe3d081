// How the next token of an answer is chosen, as Hugging Face transformers defines it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octet/base/error.h"
#include "octet/runtime/scoring.h"

namespace octet::generate {

/// What changes the model's probabilities before a token is drawn, applied in this order: repetition_penalty,
/// temperature, top_k, top_p, min_p (the order of transformers' logits processors).
struct Sampling {
  double temperature = 0.0;  ///< divides the logits; 0 takes the most probable token
  double top_p = 1.0;        ///< keep the most probable tokens that together reach this probability
  std::int64_t top_k = 0;    ///< keep this many, and what equals the last of them; 0: all
  double min_p = 0.0;        ///< keep what is at least this probable relative to the most probable token
  double repetition_penalty =
      1.0;  ///< logits of tokens seen are divided (above 0) or multiplied (below) by it
  std::uint64_t seed = 42;
};

/// The highest temperature.
inline constexpr double kHottest = 100;

/// Throws Error (usage) for a setting that is not finite or outside its range: temperature 0 to 100, top_p
/// above 0 to 1, top_k 0 or more, min_p 0 to 1, repetition_penalty above 0 to 100.
void require_possible(const Sampling& sampling);

/// Names a random number: the same whatever is decoded beside a sequence, and on whichever rank.
struct Draw {
  std::uint64_t row = 0;       ///< the question; below 2^32
  std::uint32_t sample = 0;    ///< of several answers to one question
  std::uint64_t position = 0;  ///< in prompt and answer; below 2^32
};

/// A token that may be drawn, and how likely.
struct Candidate {
  std::int32_t id = 0;
  double probability = 0.0;
};

/// What may be drawn from logits [vocabulary] behind the tokens `seen` (prompt and answer; ids of the
/// vocabulary), by ascending id; the probabilities add up to one. At temperature 0 the most probable token
/// alone, the lower id of two.
std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& sampling,
                                  std::span<const std::int32_t> seen = {});

/// The model computes values that are not finite.
class NotFinite : public Error {
  using Error::Error;
};

/// Throws NotFinite (usage) if the largest logit of a row, or a log-probability, is not finite. A NaN counts
/// as the largest.
void require_finite(double largest);

/// One of the candidates.
std::int32_t choose(std::span<const float> logits, const Sampling& sampling, const Draw& draw,
                    std::span<const std::int32_t> seen = {});

struct TokenScore {
  std::int32_t id = 0;
  double logprob = 0.0;  ///< natural logarithm of the probability
};

/// Log-softmax of logits [vocabulary], in fp64, of which single values and the best are asked for.
class LogProbabilities {
 public:
  /// How a logarithm is rounded: value - (highest + log of the sum), or as runtime::LogSoftmax does, which
  /// scores the tokens of a training step.
  enum class Rounding { of_answers, of_training };
  /// `logits` is kept, not copied.
  explicit LogProbabilities(std::span<const float> logits, Rounding rounding = Rounding::of_answers);
  double of(std::int32_t id) const;
  /// The `count` most probable tokens, best first, the lower id of two that are alike first.
  std::vector<TokenScore> best(std::int64_t count) const;

 private:
  std::span<const float> logits_;
  runtime::LogSoftmax softmax_;
  Rounding rounding_;
};

}  // namespace octet::generate
