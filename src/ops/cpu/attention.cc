// Forward attention: one pass over the key blocks of a query block with a running maximum and sum (Dao et al.
// 2022, arXiv:2205.14135). A task is up to 512 queries of all heads that share a KV head of one document, so
// that keys and values are widened once for them; tasks are independent, hence their order does not matter.
#include "octet/ops/attention.h"

#include <cmath>
#include <cstring>

#include "cpu/attention_amx.h"
#include "cpu/attention_tiles.h"
#include "cpu/simd.h"

namespace octet::ops::cpu {

void attention(const AttentionArgs& args);

namespace {

constexpr std::int64_t chunk = 512;  ///< queries of a task
/// Below every score, finite so that differences of two are.
constexpr float lowest = -3.0e38f;

/// Running state of 64 queries.
struct Running {
  float* maximum;
  float* sum;
  float* factor;  ///< what older results are multiplied by
};

/// scores -> exp(scores - maximum), with masked ones zero; updates the running state.
OCTET_SIMD void softmax_block(const ScoreBlock& at, float* scores, const Running& state) {
  float maximum[block];
  float sum[block];
  const bool masked = at.masked();
  const std::int64_t window = at.window > 0 ? at.window : INT32_MAX;
  // Query q sees key k of the block when 0 <= distance + q - k < window.
  const auto distance = static_cast<std::int32_t>(std::min<std::int64_t>(at.query - at.key, INT32_MAX / 2));
  const auto reach = static_cast<std::int32_t>(std::min<std::int64_t>(window, INT32_MAX));
  for (std::int64_t q = 0; q < block; ++q) maximum[q] = state.maximum[q];
  for (std::int64_t k = 0; k < block; ++k) {
    float* row = scores + k * block;
    if (!masked) {
      for (std::int64_t q = 0; q < block; ++q) maximum[q] = row[q] > maximum[q] ? row[q] : maximum[q];
      continue;
    }
    const auto key = static_cast<std::int32_t>(k);
    for (std::int32_t q = static_cast<std::int32_t>(first_query(at, k)); q < block; ++q) {
      const std::int32_t back = distance + q - key;
      const float score = (back >= 0) & (back < reach) ? row[q] : lowest;
      maximum[q] = score > maximum[q] ? score : maximum[q];
    }
  }
  for (std::int64_t q = 0; q < block; ++q) {
    const float factor = simd::exp(state.maximum[q] - maximum[q]);
    state.factor[q] = factor;
    sum[q] = state.sum[q] * factor;
    state.maximum[q] = maximum[q];
  }
  for (std::int64_t k = 0; k < block; ++k) {
    float* row = scores + k * block;
    if (!masked) {
      for (std::int64_t q = 0; q < block; ++q) {
        const float p = simd::exp(row[q] - maximum[q]);
        row[q] = p;
        sum[q] += p;
      }
      continue;
    }
    const auto key = static_cast<std::int32_t>(k);
    for (std::int32_t q = static_cast<std::int32_t>(first_query(at, k)); q < block; ++q) {
      const std::int32_t back = distance + q - key;
      const float e = simd::exp(row[q] - maximum[q]);
      const float p = (back >= 0) & (back < reach) ? e : 0.0f;
      row[q] = p;
      sum[q] += p;
    }
  }
  for (std::int64_t q = 0; q < block; ++q) state.sum[q] = sum[q];
}

OCTET_SIMD void scale_row(float* row, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] *= factor;
}

template <typename T>
OCTET_SIMD void store_row(const float* row, float factor, T* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(to[i], row[i] * factor);
}

/// One thread's scratch memory.
struct Scratch {
  float *keys, *values, *rows, *queries, *out, *scores;
  Running state;
};

Scratch scratch_at(void* memory, std::int64_t padded, std::int64_t keys) {
  Scratch s;
  auto* next = static_cast<float*>(memory);
  const auto take = [&next](std::int64_t count) {
    float* here = next;
    next += count;
    return here;
  };
  s.keys = take(keys * padded);
  s.values = take(keys * padded);
  s.rows = take(block * padded);
  s.queries = take(block * padded);
  s.out = take(block * padded);
  s.scores = take(block * block);
  s.state = {take(block), take(block), take(block)};
  return s;
}

/// Queries [first, last) of the document that starts at token `start`, for the heads of one KV head.
template <typename T>
void run_task(const AttentionArgs& args, std::int64_t start, std::int64_t first, std::int64_t last,
              std::int64_t kv_head, const Scratch& s) {
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
      std::memset(s.out, 0, static_cast<std::size_t>(block * padded) * sizeof(float));
      for (std::int64_t q = 0; q < block; ++q) {
        s.state.maximum[q] = lowest;
        s.state.sum[q] = 0.0f;
      }
      for (std::int64_t key = first_key_block(query, args.window); key <= query; key += block) {
        const ScoreBlock at{.query = query, .key = key, .window = args.window, .soft_cap = args.soft_cap};
        block_scores(at, s.keys + (key - from) * padded, s.queries, head_dim, padded, s.scores);
        softmax_block(at, s.scores, s.state);
        for (std::int64_t q = 0; q < block; ++q) {
          if (s.state.factor[q] != 1.0f) scale_row(s.out + q * padded, s.state.factor[q], padded);
        }
        add_weighted_rows(at, s.scores, s.values + (key - from) * padded, padded, s.out);
      }
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
  const bool amx = sizeof(T) == sizeof(Bf16) && has_amx_bf16();
  const std::size_t each = amx ? amx_forward_scratch_bytes(args.heads, documents.max_length)
                               : forward_scratch_bytes(args.heads, documents.max_length);
  const std::int64_t padded = padded_head(args.heads), keys = round_up(documents.max_length, block);
  const std::int64_t chunks = (documents.max_length + chunk - 1) / chunk;
  const std::int64_t tasks = documents.count * args.heads.kv_heads * chunks;
  const auto task = [&](std::int64_t index, void* memory) {
    // Late chunks are the long ones: they go first.
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
      run_task<T>(args, start, part * chunk, last, kv_head, scratch_at(memory, padded, keys));
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
  // Tokens of no document.
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
