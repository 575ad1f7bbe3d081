#include "cache_size.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::generate {
namespace {

CacheShape cache_shape(const DecoderOptions& options, const model::KvLayout& layout) {
  return {.windows = layout.windows(),
          .page_tokens = layout.page_tokens(),
          .piece = piece_of(options),
          .shared = options.share_prefixes};
}

std::size_t bytes_for(const DecoderOptions& options, std::int64_t sequences) {
  const model::KvLayout layout = cache_layout(options);
  std::int64_t pages = 0;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(pages_of_sequence(cache_shape(options, layout), options.capacity), sequences,
                             &pages) ||
      __builtin_mul_overflow(static_cast<std::size_t>(pages), layout.page_bytes(), &bytes)) {
    throw Error(
        {.what = "a KV cache of this size is impossible",
         .found = std::to_string(sequences) + " sequences of " + std::to_string(options.capacity) + " tokens",
         .fix = "ask for fewer sequences, or shorter ones",
         .code = ExitCode::usage});
  }
  return bytes;
}

}  // namespace

std::int64_t piece_of(const DecoderOptions& options) {
  const auto has_window = [](const model::BlockShape& block) { return block.window > 0; };
  const bool windows = std::ranges::any_of(options.architecture.blocks, has_window);
  const std::int64_t most = windows ? std::min(options.prefill, kWindowedPiece) : options.prefill;
  return std::max<std::int64_t>({1, most, options.score_rows});
}

model::KvLayout cache_layout(const DecoderOptions& options) {
  return {options.architecture, options.fp8_cache ? DType::e4m3 : options.recipe.compute,
          options.page_tokens};
}

CacheShape asked_cache(const DecoderOptions& options, const model::KvLayout& layout) {
  CacheShape shape = cache_shape(options, layout);
  const std::size_t bytes = options.cache_bytes > 0 ? options.cache_bytes : full_cache_bytes(options);
  shape.pages = static_cast<std::int64_t>(bytes / layout.page_bytes());
  const std::int64_t least = pages_of_sequence(shape, options.capacity);
  if (shape.pages >= least) return shape;
  const auto text = [&](std::size_t all, std::int64_t pages) {
    return with_commas(static_cast<std::int64_t>(all)) + " bytes (" + with_commas(pages) + " pages of " +
           std::to_string(options.page_tokens) + " tokens)";
  };
  throw Error(
      {.what = "the KV cache does not hold one sequence of " + with_commas(options.capacity) + " tokens",
       .expected = "at least " + text(least_cache_bytes(options), least),
       .found = text(bytes, shape.pages),
       .fix = "raise --kv-cache-bytes or --gpu-memory-utilization, or lower --max-length",
       .code = ExitCode::usage});
}

std::size_t full_cache_bytes(const DecoderOptions& options) {
  return bytes_for(options, options.sequences);
}

std::size_t least_cache_bytes(const DecoderOptions& options) {
  return bytes_for(options, 1);
}

}  // namespace octet::generate
