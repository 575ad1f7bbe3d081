// Forward attention: one pass over the key blocks of a query block with a running maximum and sum (Dao et al.
// 2022, arXiv:2205.14135). A task is up to 512 queries of one document, for all heads that share a KV head.
// Keys and values are thus converted once for these heads. Tasks are independent, so their order does not
// matter.
#include "octet/ops/attention.h"

#include <cmath>
#include <cstring>

#include "cpu/attention_amx.h"
#include "cpu/attention_rows.h"
#include "cpu/attention_tiles.h"
#include "cpu/simd.h"

namespace octet::ops::cpu {

void attention(const AttentionArgs& args);

namespace {

constexpr std::int64_t chunk = 512;  ///< queries of a task

template <typename T>
OCTET_SIMD void store_row(const float* row, float factor, T* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(to[i], row[i] * factor);
}

/// Computes queries [first, last) of the document that starts at token `start`, for the heads of one KV head.
template <typename T>
void run_task(const AttentionArgs& args, std::int64_t start, std::int64_t first, std::int64_t last,
              std::int64_t kv_head, const AttendScratch& s) {
  const Heads& heads = args.heads;
  const std::int64_t head_dim = heads.head_dim, padded = padded_head(heads), ld = args.qkv.ld;
  const T* tokens = static_cast<const T*>(args.qkv.data) + start * ld;
  const T* k = tokens + (heads.q_heads + kv_head) * head_dim;
  const T* v = k + heads.kv_heads * head_dim;
  const std::int64_t from = first_key_block(first, args.window);
  const std::int64_t rows = last - from, total = round_up(last, block) - from;
  pack_rows(k + from * ld, ld, rows, head_dim, s.keys, padded, total);
  pack_rows(v + from * ld, ld, rows, head_dim, s.values, padded, total);
  const std::int64_t group = heads.q_heads / heads.kv_heads;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t query = first; query < last; query += block) {
      const std::int64_t count = std::min(block, last - query);
      pack_rows(tokens + query * ld + head * head_dim, ld, count, head_dim, s.rows, padded, block);
      transpose_block(s.rows, padded, args.scale, s.queries);
      attend_rows({.keys = s.keys,
                   .values = s.values,
                   .from = from,
                   .query = query,
                   .window = args.window,
                   .soft_cap = args.soft_cap,
                   .head_dim = head_dim,
                   .padded = padded,
                   .queries = s.queries,
                   .scores = s.scores,
                   .out = s.out,
                   .state = s.state});
      T* out = static_cast<T*>(args.out.data) + (start + query) * args.out.ld + head * head_dim;
      for (std::int64_t q = 0; q < count; ++q) {
        store_row(s.out + q * padded, 1.0f / s.state.sum[q], out + q * args.out.ld, head_dim);
        if (args.lse != nullptr) {
          args.lse[head * args.qkv.rows + start + query + q] = s.state.maximum[q] + std::log(s.state.sum[q]);
        }
      }
    }
  }
}

template <typename T>
void run(const AttentionArgs& args) {
  const Documents& documents = args.documents;
  const bool amx = sizeof(T) == sizeof(Bf16) && !args.fixed_order && has_amx_bf16();
  const std::size_t each = amx ? amx_forward_scratch_bytes(args.heads, documents.max_length)
                               : forward_scratch_bytes(args.heads, documents.max_length);
  const std::int64_t padded = padded_head(args.heads), keys = round_up(documents.max_length, block);
  const std::int64_t chunks = (documents.max_length + chunk - 1) / chunk;
  const std::int64_t tasks = documents.count * args.heads.kv_heads * chunks;
  const auto task = [&](std::int64_t index, void* memory) {
    // Late chunks take longest, so they start first.
    const std::int64_t part = chunks - 1 - index / (documents.count * args.heads.kv_heads);
    const std::int64_t kv_head = index % args.heads.kv_heads;
    const std::int64_t document = index / args.heads.kv_heads % documents.count;
    const std::int64_t start = documents.cu_seqlens[document];
    const std::int64_t length = documents.cu_seqlens[document + 1] - start;
    if (part * chunk >= length) return;
    const std::int64_t last = std::min(length, (part + 1) * chunk);
    if (amx) {
      amx_forward(
          args, {.start = start, .first = part * chunk, .last = last, .kv_head = kv_head, .scratch = memory});
    } else {
      run_task<T>(args, start, part * chunk, last, kv_head, attend_scratch(memory, padded, keys));
    }
  };
  if (tasks > 0) {
    const int threads =
        static_cast<int>(std::min<std::int64_t>(tasks, workspace_threads(args.workspace, each)));
    auto* memory = static_cast<std::uint8_t*>(args.workspace.data);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (std::int64_t index = 0; index < tasks; ++index) {
      task(index, memory + each * static_cast<std::size_t>(omp_get_thread_num()));
    }
  }
  // Tokens outside of all documents.
  for (std::int64_t t = documents.count > 0 ? documents.cu_seqlens[documents.count] : 0; t < args.qkv.rows;
       ++t) {
    std::memset(static_cast<T*>(args.out.data) + t * args.out.ld, 0,
                static_cast<std::size_t>(args.out.cols) * sizeof(T));
    for (std::int64_t h = 0; args.lse != nullptr && h < args.heads.q_heads; ++h) {
      args.lse[h * args.qkv.rows + t] = 0.0f;
    }
  }
}

}  // namespace

void attention(const AttentionArgs& args) {
  check_lengths(args.documents);
  return args.qkv.dtype == DType::f32 ? run<float>(args) : run<Bf16>(args);
}

}  // namespace octet::ops::cpu
