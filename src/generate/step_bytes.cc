#include "octet/generate/step_bytes.h"

#include <algorithm>
#include <cmath>

#include "octet/model/build.h"

namespace octet::generate {

namespace {

/// Parameters of one expert, in all blocks of the share that mix experts.
double parameters_of_expert(const model::Architecture& a) {
  double blocks = 0;
  for (std::int64_t layer = a.share.first_block(a.layers); layer < a.share.last_block(a.layers); ++layer)
    blocks += a.block(layer).mixes_experts ? 1 : 0;
  const std::int64_t width = model::piece_of(model::kEven, a.experts.width, a.share).count;
  return 3 * blocks * static_cast<double>(a.hidden * width);
}

/// The share's rows of a table that no GEMM reads. A tied one is read where the head is.
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
  double unread = table_of(a);
  if (a.experts.count > 0) {
    const double missed = 1 - static_cast<double>(a.experts.taken) / static_cast<double>(a.experts.count);
    unread += parameters_of_expert(a) * static_cast<double>(a.experts.count) *
              std::pow(missed, static_cast<double>(tokens));
  }
  return static_cast<double>(bytes) - unread * static_cast<double>(size_of(decoder.options().recipe.compute));
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
