#include "octet/generate/step_bytes.h"

#include <algorithm>
#include <cmath>

#include "octet/model/build.h"

namespace octet::generate {

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

double step_cache_bytes(const DecoderOptions& options, std::int64_t before) {
  const model::Architecture& a = options.architecture;
  std::int64_t seen = 0;
  for (std::int64_t layer = a.share.first_block(a.layers); layer < a.share.last_block(a.layers); ++layer) {
    const std::int64_t window = a.block(layer).window;
    seen += window > 0 ? std::min(window, before + 1) : before + 1;
  }
  const auto element = static_cast<std::int64_t>(size_of(options.recipe.compute));
  const std::int64_t head = options.fp8_cache ? a.heads.head_dim + 4 : a.heads.head_dim * element;
  return 2 * static_cast<double>(seen * model::heads_of_share(a).kv_heads * head);
}

}  // namespace octet::generate
