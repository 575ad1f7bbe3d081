// Answers drawn with varying batches, pieces and pages, and a training forward pass of their tokens.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/random.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/generate/decoder.h"

namespace octet::generate {

using Tokens = std::vector<std::int32_t>;

/// Drawn tokens, and the differences of their log-probabilities from training.
struct Compared {
  std::int64_t tokens = 0;
  std::int64_t different = 0;  ///< with different bits
  double largest = 0;          ///< largest difference
  void add(double sampled, double trained) {
    ++tokens;
    if (std::bit_cast<std::uint64_t>(sampled) == std::bit_cast<std::uint64_t>(trained)) return;
    ++different;
    largest = std::max(largest, std::abs(sampled - trained));
  }
  void add(const Compared& more) {
    tokens += more.tokens, different += more.different;
    largest = std::max(largest, more.largest);
  }
};

/// Random numbers below `bound`, by their index.
class Drawn {
 public:
  explicit Drawn(std::uint64_t seed) : seed_(seed) {}
  std::int64_t operator()(std::int64_t bound) {
    const auto bits = philox(seed_, RandomUse::data, next_++);
    return static_cast<std::int64_t>(below(static_cast<std::uint64_t>(bound), bits[0], bits[1]));
  }
  template <typename T>
  T of(std::initializer_list<T> all) {
    return all.begin()[(*this)(static_cast<std::int64_t>(all.size()))];
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

/// Prompts of 1 to `most` tokens. Every other one shares a prefix with an earlier one.
inline std::vector<Request> drawn_requests(Drawn& drawn, std::int64_t count, std::int64_t most,
                                           std::int64_t vocabulary) {
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < count; ++i) {
    Request request{.row = static_cast<std::uint64_t>(i)};
    const std::int64_t length = 1 + drawn(most);
    if (i > 0 && drawn(2) == 0) {
      const Tokens& other = requests[static_cast<std::size_t>(drawn(i))].prompt;
      request.prompt.assign(other.begin(), other.begin() + std::min<std::int64_t>(length, std::ssize(other)));
    }
    while (std::ssize(request.prompt) < length)
      request.prompt.push_back(static_cast<std::int32_t>(drawn(vocabulary)));
    requests.push_back(std::move(request));
  }
  return requests;
}

/// Draws options that must not change results: all except the model.
inline DecoderOptions drawn_ways(Drawn& drawn, DecoderOptions options) {
  options.sequences = drawn.of<std::int64_t>({1, 2, 3, 5, 16, 33});
  options.prefill = drawn.of<std::int64_t>({1, 7, 16, 64, 100, 512});
  options.page_tokens = drawn.of<std::int64_t>({1, 4, 16, 64, 128});
  options.share_prefixes = drawn(2) == 0;
  // Some caches hold hardly more than one sequence, so other sequences are put back and restarted.
  if (drawn(3) == 0) options.cache_bytes = 2 * least_cache_bytes(options);
  return options;
}

/// Compares log-probabilities of answers with `score` of prompts and answers.
template <typename Score>
Compared compare(const std::vector<Request>& requests, const std::vector<Answer>& answers,
                 const Score& score) {
  Compared compared;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Tokens whole = requests[i].prompt;
    whole.insert(whole.end(), answers[i].ids.begin(), answers[i].ids.end());
    const std::vector<double> trained = score(whole);
    const std::size_t begin = requests[i].prompt.size() - 1;
    for (std::size_t t = 0; t < answers[i].ids.size(); ++t)
      compared.add(answers[i].logprobs.at(t), trained.at(begin + t));
  }
  return compared;
}

}  // namespace octet::generate
