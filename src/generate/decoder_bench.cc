#include "octet/generate/decoder_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "octet/base/error.h"
#include "octet/base/random.h"
#include "octet/base/timing.h"
#include "octet/model/layout.h"

namespace octet::generate {
namespace {

/// Tokens that a sequence may be ahead of others, if a pass takes only a part of the sequences.
std::int64_t ahead_of(const model::Architecture& architecture) {
  return architecture.share.stages > 1 ? 3 : 0;
}

/// Returns prompts of the context's length plus one token, which the first step takes. All begin differently.
std::vector<Request> random_prompts(const BenchOptions& options, std::int64_t vocabulary) {
  std::vector<Request> prompts(static_cast<std::size_t>(options.sequences));
  std::uint64_t index = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].row = i;
    for (std::int64_t t = 0; t < options.context; ++t) {
      const auto bits = philox(options.seed, RandomUse::data, index++);
      prompts[i].prompt.push_back(
          static_cast<std::int32_t>(below(static_cast<std::uint64_t>(vocabulary), bits[0], bits[1])));
    }
  }
  return prompts;
}

void take_steps(Decoder& decoder, const BenchOptions& options, BenchResult& result) {
  std::optional<StepProfile> profile;
  if (options.profile) profile.emplace(decoder.stream());
  std::vector<double> seconds;
  std::int64_t tokens = decoder.counts().new_tokens;
  for (std::int64_t step = 0; step < options.warmup + options.steps; ++step) {
    tokens += options.sequences;
    const auto begin = Clock::now();
    // With several stages, a pass takes only a part of the sequences.
    while (decoder.counts().new_tokens < tokens) decoder.step();
    const double passed = seconds_since(begin);
    if (step >= options.warmup) seconds.push_back(passed);
    if (profile) profile->step(step >= options.warmup, passed);
  }
  if (profile) result.profile = profile->rows();
  result.median_seconds = median(seconds);
  result.least_seconds = std::ranges::min(seconds);
  result.most_seconds = std::ranges::max(seconds);
}

}  // namespace

DecoderOptions bench_decoder(const BenchOptions& options, const model::Architecture& architecture,
                             const precision::Recipe& recipe) {
  // After the context: the token that follows the prompt, one token per step, and one token that is never
  // taken.
  return {.architecture = architecture,
          .recipe = recipe,
          .fp8_cache = options.fp8_cache,
          .sequences = options.sequences,
          .capacity = options.context + options.warmup + options.steps + 2 + ahead_of(architecture),
          // Prompts that are too short to share their pages are computed again, all in one pass.
          .prefill = std::max<std::int64_t>(512, 16 * options.sequences),
          .strict = options.strict};
}

BenchResult bench(Decoder& decoder, const BenchOptions& options) {
  check(options.sequences >= 1 && options.context >= 1 && options.steps >= 1 && options.warmup >= 0,
        "decoding is measured with sequences, a context and steps");
  const std::vector<Request> prompts = random_prompts(options, decoder.options().architecture.vocabulary);
  BenchResult result;
  // One token each, so that all sequences have the same length when the steps begin. The steps reuse the
  // cached prompts.
  auto begin = Clock::now();
  decoder.complete(prompts, {.max_new = 1});
  result.prompt_tokens_per_second =
      static_cast<double>(options.sequences * options.context) / seconds_since(begin);
  const std::int64_t steps = options.warmup + options.steps;
  for (const Request& prompt : prompts)
    decoder.submit(prompt, {.max_new = steps + 2 + ahead_of(decoder.options().architecture)});
  while (decoder.counts().new_tokens < 2 * options.sequences) decoder.step();
  const std::int64_t before = decoder.counts().replayed;
  take_steps(decoder, options, result);
  result.replayed = decoder.counts().replayed - before;
  // With several stages, a pass ends with a part of the sequences, which may be one token ahead.
  const std::int64_t made = decoder.counts().new_tokens - (steps + 2) * options.sequences;
  const std::int64_t ahead = decoder.options().architecture.share.stages > 1 ? 2 * options.sequences : 1;
  check(made >= 0 && made < ahead, "every step makes a token of each sequence");
  result.parameters = decoder.parameter_count();
  result.tokens_per_second = static_cast<double>(options.sequences) / result.median_seconds;
  result.weight_bytes = step_weight_bytes(decoder, options.sequences);
  for (std::int64_t step = options.warmup; step < steps; ++step) {
    result.cache_bytes += static_cast<double>(options.sequences) *
                          step_cache_bytes(decoder.options(), options.context + step) /
                          static_cast<double>(options.steps);
  }
  result.bytes_per_second = (result.weight_bytes + result.cache_bytes) / result.median_seconds;
  result.reserved_bytes = decoder.arena().bytes();
  return result;
}

namespace {

/// Blocks of the share that have experts.
double mixing_blocks(const model::Architecture& a) {
  double blocks = 0;
  for (std::int64_t layer = a.share.first_block(a.layers); layer < a.share.last_block(a.layers); ++layer)
    blocks += a.block(layer).mixes_experts ? 1 : 0;
  return blocks;
}

/// Intermediate width of an expert in the share.
std::int64_t width_of_expert(const model::Architecture& a) {
  return model::piece_of(model::kEven, a.experts.width, a.share).count;
}

/// Parameters of one expert, in all blocks of the share that have experts.
double parameters_of_expert(const model::Architecture& a) {
  return 3 * mixing_blocks(a) * static_cast<double>(a.hidden * width_of_expert(a));
}

/// Bytes of one expert. FP8 has one byte per value and one scale per output.
double bytes_of_expert(const model::Architecture& a, const precision::Recipe& recipe) {
  if (!recipe.rows()) return parameters_of_expert(a) * static_cast<double>(size_of(recipe.compute));
  const std::int64_t outputs = 2 * width_of_expert(a) + a.hidden;
  return parameters_of_expert(a) + mixing_blocks(a) * static_cast<double>(outputs) * sizeof(float);
}

/// Parameters of the share's embedding table if no GEMM reads it. A tied table is read as the head.
double table_of(const model::Architecture& a) {
  const bool unread = a.share.first() && !(a.tied && a.share.last());
  return unread ? static_cast<double>(model::vocabulary_of_share(a).count * a.hidden) : 0;
}

}  // namespace

double step_weight_bytes(const Decoder& decoder, std::int64_t tokens) {
  const model::Architecture& a = decoder.options().architecture;
  std::size_t bytes = 0;
  for (const Reservation& r : decoder.arena().reservations()) {
    if (r.kind == MemoryKind::device && r.name.starts_with("parameters/")) bytes += r.bytes;
  }
  const precision::Recipe& recipe = decoder.options().recipe;
  double unread = table_of(a) * static_cast<double>(size_of(recipe.compute));
  if (a.experts.count > 0) {
    const double missed = 1 - static_cast<double>(a.experts.taken) / static_cast<double>(a.experts.count);
    unread += bytes_of_expert(a, recipe) * static_cast<double>(a.experts.count) *
              std::pow(missed, static_cast<double>(tokens));
  }
  return static_cast<double>(bytes) - unread;
}

double parameters_of_token(const Decoder& decoder) {
  const model::Architecture& a = decoder.options().architecture;
  return static_cast<double>(model::build_layout(a).parameter_count()) - table_of(a) -
         parameters_of_expert(a) * static_cast<double>(a.experts.count - a.experts.taken);
}

namespace {

/// The states of delta rules, which each step of a sequence reads and writes.
double step_state_bytes(const model::Architecture& a) {
  std::int64_t blocks = 0;
  for (std::int64_t layer = a.share.first_block(a.layers); layer < a.share.last_block(a.layers); ++layer)
    blocks += a.block(layer).delta_rule ? 1 : 0;
  return 2.0 * static_cast<double>(blocks * a.delta.heads.values() * a.delta.heads.key_dim) * sizeof(float);
}

}  // namespace

double step_cache_bytes(const DecoderOptions& options, std::int64_t before) {
  const model::Architecture& a = options.architecture;
  const auto element = static_cast<std::int64_t>(size_of(options.recipe.compute));
  std::int64_t bytes = 0;
  for (std::int64_t layer = a.share.first_block(a.layers); layer < a.share.last_block(a.layers); ++layer) {
    if (a.block(layer).delta_rule) continue;
    const std::int64_t window = a.block(layer).window;
    const std::int64_t seen = window > 0 ? std::min(window, before + 1) : before + 1;
    const ops::Heads heads = model::heads_of_share(a, layer);
    bytes += seen * heads.kv_heads * (options.fp8_cache ? heads.head_dim + 4 : heads.head_dim * element);
  }
  return 2 * static_cast<double>(bytes) + step_state_bytes(a);
}

}  // namespace octet::generate
