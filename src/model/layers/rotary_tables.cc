#include "layers/rotary_tables.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "layers/buffers.h"
#include "octet/base/error.h"
#include "octet/ops/rope.h"

namespace octet::model {
namespace {

/// Whether a block has norms of single heads that are not fused with a rotation.
bool norms_without_rope(const Architecture& a) {
  return a.qk_norm && !a.qk_norm_of_all_heads &&
         (a.qk_norm_last ||
          std::ranges::any_of(a.blocks, [](const BlockShape& block) { return block.rope == kNoRope; }));
}

void require_positions(const Rope& rope, std::int64_t positions) {
  if (rope.kind != RopeKind::dynamic || positions <= rope.original_max_positions) return;
  throw Error(
      {.what = "documents are too long for the rotary embedding 'dynamic': its frequencies would depend on "
               "the length of each document",
       .expected = "at most " + std::to_string(rope.original_max_positions) +
                   " tokens, max_position_embeddings of the model",
       .found = std::to_string(positions),
       .fix = "lower cutoff_len (--max-length for answers)",
       .code = ExitCode::usage});
}

/// Makes the tables of one rotary embedding.
class TableMaker {
 public:
  TableMaker(Arena& arena, Stream& stream, std::int64_t positions)
      : arena_(arena), stream_(stream), positions_(positions) {}

  RotaryTable make(const Rope& rope, std::int64_t rotated) {
    rotated_ = rotated;
    require_positions(rope, positions_);
    const Writable plain = angles(rope, false);
    RotaryTable table{.cosine = plain.cosine, .sine = plain.sine};
    const std::int64_t original = rope.original_max_positions;
    if (positions_ <= original) return table;
    if (rope.query_beta > 0) table.queries = scaled(rope);
    if (rope.kind != RopeKind::longrope) return table;
    const Writable others = angles(rope, true);
    table.long_documents = {others.cosine, others.sine};
    table.longest_short = original;
    return table;
  }

 private:
  struct Writable {
    const float* frequencies;
    float *cosine, *sine;
  };

  void fill(const Writable& to, double factor, std::int64_t positions) {
    ops::rope_table(stream_, {.inv_freq = to.frequencies,
                              .factor = static_cast<float>(factor),
                              .positions = positions,
                              .half_dim = rotated_ / 2,
                              .cosine = to.cosine,
                              .sine = to.sine});
    stream_.synchronize();
  }

  Writable reserve(const Rope& rope, bool long_documents) {
    const std::vector<float> host = inverse_frequencies(rope, rotated_, long_documents);
    const std::size_t bytes = bytes_of(positions_, rotated_ / 2, DType::f32);
    auto* frequencies = arena_.reserve_as<float>("rotary tables", host.size());
    auto* cosine = static_cast<float*>(arena_.reserve("rotary tables", bytes));
    auto* sine = static_cast<float*>(arena_.reserve("rotary tables", bytes));
    arena_.device().copy_to_device(stream_, frequencies, host.data(), host.size() * sizeof(float));
    stream_.synchronize();
    return {frequencies, cosine, sine};
  }

  Writable angles(const Rope& rope, bool long_documents) {
    const Writable made = reserve(rope, long_documents);
    fill(made, rope.attention_factor, positions_);
    return made;
  }

  /// Fills runs of original_max_positions positions, which share a factor. Later runs first, because a run is
  /// filled with all positions before it.
  RotaryTable::Angles scaled(const Rope& rope) {
    constexpr std::int64_t kMostRuns = 4096;
    const std::int64_t original = rope.original_max_positions, runs = (positions_ + original - 1) / original;
    if (runs > kMostRuns) {
      throw Error({.what = "llama_4_scaling_beta has too many steps",
                   .expected = "at most " + std::to_string(kMostRuns) +
                               " times original_max_position_embeddings, " + std::to_string(original),
                   .found = std::to_string(positions_) + " positions",
                   .fix = "correct original_max_position_embeddings in config.json, or lower cutoff_len",
                   .code = ExitCode::usage});
    }
    const Writable made = reserve(rope, false);
    for (std::int64_t run = runs; run > 0; --run) {
      const double factor = 1.0 + rope.query_beta * std::log(static_cast<double>(run));
      fill(made, rope.attention_factor * factor, std::min(run * original, positions_));
    }
    return {made.cosine, made.sine};
  }

  Arena& arena_;
  Stream& stream_;
  std::int64_t positions_, rotated_ = 0;
};

/// Returns the dimensions that rotate in the blocks with this rotary embedding.
std::int64_t rotated_with(const Architecture& a, std::size_t rope) {
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const BlockShape block = a.block(layer);
    if (block.head_dim > 0 && block.rope == static_cast<int>(rope)) return block.head_dim;
  }
  return a.rotated();
}

}  // namespace

std::vector<RotaryTable> make_rotary_tables(Arena& arena, const Architecture& architecture,
                                            std::int64_t positions) {
  const std::unique_ptr<Stream> stream = arena.device().make_stream({.name = "rotary tables"});
  TableMaker maker(arena, *stream, positions);
  std::vector<RotaryTable> tables;
  std::vector<Rope> ropes = architecture.ropes;
  if (norms_without_rope(architecture)) ropes.push_back({.kind = RopeKind::none});
  for (std::size_t i = 0; i < ropes.size(); ++i)
    tables.push_back(maker.make(ropes[i], rotated_with(architecture, i)));
  return tables;
}

}  // namespace octet::model
