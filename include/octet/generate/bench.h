// Speed of decoding on synthetic data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/device/step_profile.h"
#include "octet/generate/decoder.h"

namespace octet::generate {

struct BenchOptions {
  std::int64_t sequences = 1;  ///< answered side by side
  std::int64_t context = 512;  ///< tokens of each in the cache before the first step
  std::int64_t steps = 10;     ///< timed
  std::int64_t warmup = 3;     ///< steps before them
  std::uint64_t seed = 42;     ///< of weights and tokens
  bool fp8_cache = false;      ///< DecoderOptions::fp8_cache
  bool strict = false;         ///< DecoderOptions::strict
  bool profile = false;        ///< where the time goes; the marks around each op cost a little of it
};

struct BenchResult {
  std::int64_t parameters = 0;
  double setup_seconds = 0;                                        ///< memory and weights
  double prompt_tokens_per_second = 0;                             ///< of the passes that filled the cache
  double median_seconds = 0, least_seconds = 0, most_seconds = 0;  ///< of a step
  double tokens_per_second = 0;                                    ///< of all sequences, in the median step
  /// What a step cannot do without reading: the weights of its GEMMs once, and the keys and values that
  /// tokens see, on average over the timed steps.
  double weight_bytes = 0, cache_bytes = 0;
  double bytes_per_second = 0;  ///< both over the median
  std::int64_t replayed = 0;    ///< steps that the device replayed, warm-up included
  std::size_t reserved_bytes = 0;
  std::vector<StepProfileRow> profile;  ///< with `profile`: longest first, and "waiting and gaps"
};

/// What a decoder is made for that is to be measured: room for the context and all steps.
DecoderOptions bench_decoder(const BenchOptions& options, const model::Architecture& architecture,
                             const precision::Recipe& recipe);

/// Fills the cache with prompts of random tokens and times steps of the decoder, the choice of the most
/// probable token included. `decoder` was made from bench_decoder and has weights; it answers nothing else.
/// Throws Error when its logits are not finite.
BenchResult bench(Decoder& decoder, const BenchOptions& options);

}  // namespace octet::generate
