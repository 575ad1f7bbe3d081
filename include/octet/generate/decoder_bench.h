// Measures decoding speed on synthetic data, and the bytes that a decoding step must read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/device/profile.h"
#include "octet/generate/decoder.h"

namespace octet::generate {

struct BenchOptions {
  std::int64_t sequences = 1;  ///< decoded concurrently
  std::int64_t context = 512;  ///< cached tokens per sequence before the first step
  std::int64_t steps = 10;     ///< timed steps
  std::int64_t warmup = 3;     ///< untimed steps before the timed steps
  std::uint64_t seed = 42;     ///< seed of weights and tokens
  bool fp8_cache = false;      ///< DecoderOptions::fp8_cache
  bool strict = false;         ///< DecoderOptions::strict
  bool profile = false;        ///< measure the time of each op; the marks around the ops cost a little time
};

struct BenchResult {
  std::int64_t parameters = 0;
  double setup_seconds = 0;                                        ///< allocation and weights
  double prompt_tokens_per_second = 0;                             ///< of the passes that fill the cache
  double median_seconds = 0, least_seconds = 0, most_seconds = 0;  ///< of a timed step
  double tokens_per_second = 0;                                    ///< all sequences, in the median step
  /// Bytes that a step must read: the weights of its GEMMs once, and the visible keys and values. Both are
  /// averages over the timed steps.
  double weight_bytes = 0, cache_bytes = 0;
  double bytes_per_second = 0;  ///< (weight_bytes + cache_bytes) / median_seconds
  std::int64_t replayed = 0;    ///< steps that the device replayed, including warm-up
  std::size_t reserved_bytes = 0;
  std::vector<StepProfileRow> profile;  ///< with `profile`: longest first, and "waiting and gaps"
};

/// Returns the options of a decoder to measure, with room for the context and all steps.
DecoderOptions bench_decoder(const BenchOptions& options, const model::Architecture& architecture,
                             const precision::Recipe& recipe);

/// Fills the cache with prompts of random tokens, then times decoding steps, including the choice of the most
/// probable token. `decoder` is built with the options of bench_decoder(), has weights and answers no other
/// requests. Throws Error if its logits are not finite.
BenchResult bench(Decoder& decoder, const BenchOptions& options);

// Bytes that a decoding step must read.

/// Bytes of all weights that a step reads. An embedding table that is not also the head is excluded: a step
/// reads one row of it per token. For a mixture of experts, the expected number of experts is counted, if
/// each of `tokens` tokens chooses its experts uniformly.
double step_weight_bytes(const Decoder& decoder, std::int64_t tokens);
/// Parameters that multiply a token: all except that embedding table and the experts that are not chosen.
double parameters_of_token(const Decoder& decoder);
/// Bytes of the cache that a token moves after `before` earlier tokens: keys and values that it reads, and
/// the states of delta rules that it reads and writes.
double step_cache_bytes(const DecoderOptions& options, std::int64_t before);

}  // namespace octet::generate
