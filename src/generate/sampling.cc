#include <algorithm>
#include <cmath>
#include <numeric>

#include "octet/base/random.h"
#include "octet/generate/decoder.h"

namespace octet::generate {

std::int32_t choose(const float* logits, std::int64_t vocabulary, const Sampling& sampling,
                    std::uint64_t sequence, std::uint64_t position) {
  const auto best = static_cast<std::int32_t>(std::max_element(logits, logits + vocabulary) - logits);
  if (sampling.temperature <= 0.0) return best;
  std::vector<std::int32_t> order(static_cast<std::size_t>(vocabulary));
  std::iota(order.begin(), order.end(), 0);
  // Ties by id, so that the order does not depend on the library's sort.
  const auto before = [logits](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::size_t kept = order.size();
  if (sampling.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(sampling.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), before);
  std::vector<double> weights(kept);
  for (std::size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp((static_cast<double>(logits[order[i]]) - logits[best]) / sampling.temperature);
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double nucleus = 0;
  std::size_t count = 0;
  while (count < kept && (count == 0 || nucleus < sampling.top_p * all)) nucleus += weights[count++];
  double left =
      uniform(philox(sampling.seed, RandomUse::sampling, position, static_cast<std::uint32_t>(sequence))[0]) *
      nucleus;
  for (std::size_t i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace octet::generate
