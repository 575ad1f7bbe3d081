#include "cpu/attention_tiles.h"

#include <cstring>

#include "cpu/attention_amx.h"
#include "cpu/simd.h"
#include "cpu/tile_gemm.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {

namespace {

template <typename T>
OCTET_SIMD void widen_rows(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t head_dim,
                           float* to, std::int64_t padded) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* in = from + row * ld;
    float* out = to + row * padded;
    for (std::int64_t i = 0; i < head_dim; ++i) out[i] = simd::load(in[i]);
    for (std::int64_t i = head_dim; i < padded; ++i) out[i] = 0.0f;
  }
}

}  // namespace

OCTET_SIMD void cap_scores(float* scores, std::int64_t from, std::int64_t to, float cap) {
  const float inverse = 1.0f / cap;
  for (std::int64_t i = from; i < to; ++i) scores[i] = cap * simd::tanh(scores[i] * inverse);
}

template <typename T>
void pack_rows(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t head_dim, float* to,
               std::int64_t padded, std::int64_t total) {
  widen_rows(from, ld, rows, head_dim, to, padded);
  std::memset(to + rows * padded, 0, static_cast<std::size_t>((total - rows) * padded) * sizeof(float));
}
template void pack_rows(const float*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t,
                        std::int64_t);
template void pack_rows(const Bf16*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t,
                        std::int64_t);

OCTET_SIMD void transpose_block(const float* from, std::int64_t padded, float factor, float* to) {
  for (std::int64_t i = 0; i < padded; ++i) {
    for (std::int64_t row = 0; row < block; ++row) to[i * block + row] = factor * from[row * padded + i];
  }
}

void block_scores(const ScoreBlock& at, const float* keys, const float* queries, std::int64_t head_dim,
                  std::int64_t padded, float* scores) {
  TileGemm tile{.a = keys,
                .a_row = padded,
                .a_col = 1,
                .b = queries,
                .ldb = block,
                .c = scores,
                .ldc = block,
                .m = block,
                .n = block,
                .k = head_dim};
  if (at.key != at.query) {
    tile_gemm(tile);
  } else {
    tile.m = 16;
    for (std::int64_t key = 0; key < block; key += 16) {
      tile.a = keys + key * padded;
      tile.b = queries + key;
      tile.c = scores + key * block + key;
      tile.n = block - key;
      tile_gemm(tile);
    }
  }
  if (at.soft_cap > 0.0f) {
    for (std::int64_t key = 0; key < block; ++key) {
      cap_scores(scores + key * block, first_query(at, key), block, at.soft_cap);
    }
  }
}

void add_weighted_rows(const ScoreBlock& at, const float* transposed, const float* rows, std::int64_t padded,
                       float* out) {
  TileGemm tile{.a = transposed,
                .a_row = 1,
                .a_col = block,
                .b = rows,
                .ldb = padded,
                .c = out,
                .ldc = padded,
                .m = block,
                .n = padded,
                .k = block,
                .accumulate = true};
  if (at.key != at.query) return tile_gemm(tile);
  tile.m = tile_rows;
  for (std::int64_t query = 0; query < block; query += tile_rows) {
    tile.a = transposed + query;
    tile.c = out + query * padded;
    tile.k = query + tile_rows;
    tile_gemm(tile);
  }
}

void add_transposed_rows(const ScoreBlock& at, const float* transposed, const float* rows,
                         std::int64_t padded, float* out) {
  TileGemm tile{.a = transposed,
                .a_row = block,
                .a_col = 1,
                .b = rows,
                .ldb = padded,
                .c = out,
                .ldc = padded,
                .m = block,
                .n = padded,
                .k = block,
                .accumulate = true};
  if (at.key != at.query) return tile_gemm(tile);
  tile.m = tile_rows;
  for (std::int64_t key = 0; key < block; key += tile_rows) {
    tile.a = transposed + key * block + key;
    tile.b = rows + key * padded;
    tile.c = out + key * padded;
    tile.k = block - key;
    tile_gemm(tile);
  }
}

void check_lengths(const Documents& documents) {
  const std::int32_t* starts = documents.cu_seqlens;
  if (documents.count == 0) return;
  check(starts[0] == 0, "attention: the first document starts at token 0");
  for (std::int64_t d = 0; d < documents.count; ++d) {
    check(starts[d] <= starts[d + 1] && starts[d + 1] - starts[d] <= documents.max_length,
          "attention: no document ends before it starts or is longer than max_length");
  }
  check(starts[documents.count] <= documents.tokens, "attention: the documents lie inside the tokens");
}

int workspace_threads(const Workspace& workspace, std::size_t each) {
  const auto room = static_cast<std::int64_t>(workspace.bytes / each);
  check(room >= 1 && workspace.data != nullptr, "attention: the workspace holds attention_workspace bytes");
  return static_cast<int>(std::min<std::int64_t>(room, octet::cpu::op_threads()));
}

namespace {
std::size_t floats(std::int64_t count) {
  return (static_cast<std::size_t>(count) * sizeof(float) + 255) / 256 * 256;
}
}  // namespace

std::size_t forward_scratch_bytes(const Heads& heads, std::int64_t max_length) {
  const std::int64_t padded = padded_head(heads),
                     keys = round_up(std::max<std::int64_t>(1, max_length), block);
  return floats(2 * keys * padded + 3 * block * padded + block * block + 4 * block);
}

std::size_t backward_scratch_bytes(const Heads& heads, std::int64_t max_length) {
  const std::int64_t padded = padded_head(heads),
                     keys = round_up(std::max<std::int64_t>(1, max_length), block);
  return floats(4 * keys * padded + 5 * block * padded + 3 * block * block + 2 * block);
}

std::size_t attention_workspace(const Heads& heads, std::int64_t max_length);
std::size_t attention_workspace(const Heads& heads, std::int64_t max_length) {
  std::size_t each =
      std::max(forward_scratch_bytes(heads, max_length), backward_scratch_bytes(heads, max_length));
  each = std::max(
      {each, amx_forward_scratch_bytes(heads, max_length), amx_backward_scratch_bytes(heads, max_length)});
  return each * static_cast<std::size_t>(octet::cpu::op_threads());
}

std::size_t cached_attention_workspace(const Heads& heads, std::int64_t capacity);
std::size_t cached_attention_workspace(const Heads& heads, std::int64_t capacity) {
  return forward_scratch_bytes(heads, capacity) * static_cast<std::size_t>(octet::cpu::op_threads());
}

}  // namespace octet::ops::cpu
