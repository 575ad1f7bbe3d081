// Decoding attention in a fixed order. Visible keys and values are packed as in training. A query gets the
// block of 64 and the lane that it has in training. Training and decoding then use the same function.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/attention_rows.h"
#include "cpu/cached_rows.h"
#include "cpu/simd.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {

void find_rows(const CachedAttentionArgs& args, std::int64_t slot, std::int64_t begin, std::int64_t count,
               std::int64_t* rows) {
  const CachePages& pages = args.pages;
  if (pages.table == nullptr) {
    for (std::int64_t j = 0; j < count; ++j) rows[j] = slot * args.capacity + begin + j;
    return;
  }
  for (std::int64_t j = 0; j < count;) {
    const std::int64_t inside = (begin + j) % pages.tokens;
    const std::int64_t page = pages.table[slot * pages.pitch + (begin + j) / pages.tokens];
    const std::int64_t end = std::min(count, j + pages.tokens - inside);
    for (std::int64_t row = page * pages.tokens + inside; j < end; ++j, ++row) rows[j] = row;
  }
}

namespace {

/// Tokens [first, first + count) of a call: consecutive tokens in one block of 64 of one sequence.
struct Run {
  std::int64_t first = 0, count = 0;
  std::int64_t slot = 0, position = 0;
};

std::vector<Run> runs_of(const CachedAttentionArgs& args) {
  std::vector<Run> runs;
  for (std::int64_t t = 0; t < args.qkv.rows; ++t) {
    const std::int64_t slot = args.slots[t], position = args.positions[t];
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.slot == slot && last.position + last.count == position && position % block != 0) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({.first = t, .count = 1, .slot = slot, .position = position});
  }
  return runs;
}

/// Converts keys, or values, of a slot and a KV head to rows of f32, starting at key `begin`. Rows up to
/// `total` that no token of the run sees are set to zero: their pages may belong to other sequences.
template <typename T>
void pack_cached(const CachedAttentionArgs& args, const void* cache, const Run& run, std::int64_t kv_head,
                 std::int64_t begin, std::int64_t total, float* to, std::int64_t padded) {
  const std::int64_t head_dim = args.heads.head_dim, stride = args.heads.kv_heads * head_dim;
  const auto* from = static_cast<const T*>(cache) + kv_head * head_dim;
  const std::int64_t end = run.position + run.count;
  const std::int64_t first = args.window > 0 ? std::max(begin, run.position - args.window + 1) : begin;
  std::fill(to, to + (first - begin) * padded, 0.0f);
  std::int64_t rows[block];
  for (std::int64_t key = first; key < end; key += block) {
    const std::int64_t count = std::min(block, end - key);
    find_rows(args, run.slot, key, count, rows);
    for (std::int64_t j = 0; j < count;) {  // consecutive rows are packed together
      std::int64_t more = 1;
      while (j + more < count && rows[j + more] == rows[j] + more) ++more;
      pack_rows(from + rows[j] * stride, stride, more, head_dim, to + (key - begin + j) * padded, padded,
                more);
      j += more;
    }
  }
  std::fill(to + (end - begin) * padded, to + (total - begin) * padded, 0.0f);
}

template <typename T>
OCTET_SIMD void store_row(const float* row, float factor, T* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(to[i], row[i] * factor);
}

template <typename T>
void attend_run(const CachedAttentionArgs& args, const Run& run, std::int64_t kv_head,
                const AttendScratch& s) {
  const Heads& heads = args.heads;
  const std::int64_t head_dim = heads.head_dim, padded = padded_head(heads), ld = args.qkv.ld;
  const std::int64_t query = run.position / block * block, from = first_key_block(query, args.window);
  const std::int64_t total = query + block;
  pack_cached<T>(args, args.k_cache, run, kv_head, from, total, s.keys, padded);
  pack_cached<T>(args, args.v_cache, run, kv_head, from, total, s.values, padded);
  const std::int64_t lane = run.position - query, group = heads.q_heads / heads.kv_heads;
  std::fill(s.rows, s.rows + block * padded, 0.0f);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const T* queries = static_cast<const T*>(args.qkv.data) + run.first * ld + head * head_dim;
    pack_rows(queries, ld, run.count, head_dim, s.rows + lane * padded, padded, run.count);
    transpose_block(s.rows, padded, args.scale, s.queries);
    const QueryBlock of{.keys = s.keys,
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
                        .state = s.state};
    if (run.count > 2 * lane_group) {
      attend_rows(of);
    } else {
      for (std::int64_t at = lane / lane_group * lane_group; at < lane + run.count; at += lane_group)
        attend_lanes(of, at);
    }
    T* out = static_cast<T*>(args.out.data) + run.first * args.out.ld + head * head_dim;
    for (std::int64_t q = 0; q < run.count; ++q) {
      store_row(s.out + (lane + q) * padded, 1.0f / s.state.sum[lane + q], out + q * args.out.ld, head_dim);
      if (args.lse == nullptr) continue;
      args.lse[head * args.qkv.rows + run.first + q] =
          s.state.maximum[lane + q] + std::log(s.state.sum[lane + q]);
    }
  }
}

}  // namespace

void cached_attention_in_order(const CachedAttentionArgs& args) {
  check(args.k_scale_inv == nullptr, "cached_attention: a cache in E4M3 has no fixed order");
  const std::vector<Run> runs = runs_of(args);
  const std::int64_t tasks = std::ssize(runs) * args.heads.kv_heads;
  const std::int64_t padded = padded_head(args.heads), keys = round_up(args.capacity, block);
  const std::size_t each = forward_scratch_bytes(args.heads, args.capacity);
  const int threads =
      static_cast<int>(std::min<std::int64_t>(tasks, workspace_threads(args.workspace, each)));
  auto* memory = static_cast<std::uint8_t*>(args.workspace.data);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (std::int64_t index = 0; index < tasks; ++index) {
    const Run& run = runs[static_cast<std::size_t>(index / args.heads.kv_heads)];
    const AttendScratch scratch =
        attend_scratch(memory + each * static_cast<std::size_t>(omp_get_thread_num()), padded, keys);
    args.qkv.dtype == DType::f32 ? attend_run<float>(args, run, index % args.heads.kv_heads, scratch)
                                 : attend_run<Bf16>(args, run, index % args.heads.kv_heads, scratch);
  }
}

}  // namespace octet::ops::cpu
