// Backward attention. Probabilities are recomputed from lse; a block needs five GEMMs (Dao et al. 2022,
// arXiv:2205.14135, algorithm 4). A task is a whole document for the heads of one KV head, so that one thread
// sums its key and value gradients in one order.
#include <cstring>

#include "cpu/attention_amx.h"
#include "cpu/attention_tiles.h"
#include "cpu/simd.h"
#include "octet/ops/attention.h"

namespace octet::ops::cpu {

void attention_backward(const AttentionBackwardArgs& args);

namespace {

/// One thread's scratch memory.
struct Scratch {
  float *keys, *values, *d_keys, *d_values;              // [document][padded]
  float *rows, *queries, *d_out_rows, *d_out, *d_query;  // [64][padded] or its transpose
  float *scores, *weights, *d_scores;                    // [keys][queries]
  float *lse, *delta;                                    // [64]
};

Scratch scratch_at(void* memory, std::int64_t padded, std::int64_t keys) {
  Scratch s;
  auto* next = static_cast<float*>(memory);
  const auto take = [&next](std::int64_t count) {
    float* here = next;
    next += count;
    return here;
  };
  for (float** whole : {&s.keys, &s.values, &s.d_keys, &s.d_values}) *whole = take(keys * padded);
  for (float** part : {&s.rows, &s.queries, &s.d_out_rows, &s.d_out, &s.d_query})
    *part = take(block * padded);
  for (float** square : {&s.scores, &s.weights, &s.d_scores}) *square = take(block * block);
  s.lse = take(block);
  s.delta = take(block);
  return s;
}

/// weights = exp(scores - lse), zero if masked. d_scores = weights * (d_weights - delta), times the
/// derivative of the soft cap.
OCTET_SIMD void score_gradients(const ScoreBlock& at, const Scratch& s) {
  const bool masked = at.masked();
  const auto distance = static_cast<std::int32_t>(std::min<std::int64_t>(at.query - at.key, INT32_MAX / 2));
  const auto reach =
      static_cast<std::int32_t>(at.window > 0 ? std::min<std::int64_t>(at.window, INT32_MAX) : INT32_MAX);
  const float* lse = s.lse;
  const float* delta = s.delta;
  for (std::int32_t k = 0; k < block; ++k) {
    const float* scores = s.scores + k * block;
    float* weights = s.weights + k * block;
    float* d_scores = s.d_scores + k * block;
    const auto from = static_cast<std::int32_t>(first_query(at, k));
    if (masked) {
      for (std::int32_t q = from; q < block; ++q) {
        const std::int32_t back = distance + q - k;
        const float e = simd::exp(scores[q] - lse[q]);
        const float p = (back >= 0) & (back < reach) ? e : 0.0f;
        weights[q] = p;
        // Not p * x: a masked score may be infinite.
        const float d = e * (d_scores[q] - delta[q]);
        d_scores[q] = (back >= 0) & (back < reach) ? d : 0.0f;
      }
    } else {
      for (std::int32_t q = 0; q < block; ++q) {
        const float p = simd::exp(scores[q] - lse[q]);
        weights[q] = p;
        d_scores[q] = p * (d_scores[q] - delta[q]);
      }
    }
    if (at.soft_cap > 0.0f) {
      const float inverse = 1.0f / at.soft_cap;
      for (std::int32_t q = from; q < block; ++q) {
        const float t = scores[q] * inverse;
        d_scores[q] *= 1.0f - t * t;
      }
    }
  }
}

template <typename T>
OCTET_SIMD float dot(const T* out, const float* d_out, std::int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += simd::load(out[i]) * d_out[i];
  return sum;
}

template <typename T>
OCTET_SIMD void store_row(const float* row, float factor, T* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(to[i], row[i] * factor);
}

template <typename T>
void run_task(const AttentionBackwardArgs& args, std::int64_t start, std::int64_t length,
              std::int64_t kv_head, const Scratch& s) {
  const Heads& heads = args.heads;
  const std::int64_t head_dim = heads.head_dim, padded = padded_head(heads), ld = args.qkv.ld;
  const std::int64_t k_at = (heads.q_heads + kv_head) * head_dim, v_at = k_at + heads.kv_heads * head_dim;
  const T* tokens = static_cast<const T*>(args.qkv.data) + start * ld;
  T* d_tokens = static_cast<T*>(args.d_qkv.data) + start * args.d_qkv.ld;
  const std::int64_t total = round_up(length, block);
  pack_rows(tokens + k_at, ld, length, head_dim, s.keys, padded, total);
  pack_rows(tokens + v_at, ld, length, head_dim, s.values, padded, total);
  for (float* sum : {s.d_keys, s.d_values}) {
    std::memset(sum, 0, static_cast<std::size_t>(total * padded) * sizeof(float));
  }
  const std::int64_t group = heads.q_heads / heads.kv_heads;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t query = 0; query < length; query += block) {
      const std::int64_t count = std::min(block, length - query);
      pack_rows(tokens + query * ld + head * head_dim, ld, count, head_dim, s.rows, padded, block);
      transpose_block(s.rows, padded, args.scale, s.queries);
      const T* d_out = static_cast<const T*>(args.d_out.data) + (start + query) * args.d_out.ld;
      const T* out = static_cast<const T*>(args.out.data) + (start + query) * args.out.ld;
      pack_rows(d_out + head * head_dim, args.d_out.ld, count, head_dim, s.d_out_rows, padded, block);
      transpose_block(s.d_out_rows, padded, 1.0f, s.d_out);
      for (std::int64_t q = 0; q < block; ++q) {
        const bool real = q < count;
        s.delta[q] =
            real ? dot(out + q * args.out.ld + head * head_dim, s.d_out_rows + q * padded, head_dim) : 0.0f;
        s.lse[q] = real ? args.lse[head * args.qkv.rows + start + query + q] : 0.0f;
      }
      std::memset(s.d_query, 0, static_cast<std::size_t>(block * padded) * sizeof(float));
      for (std::int64_t key = first_key_block(query, args.window); key <= query; key += block) {
        ScoreBlock at{.query = query, .key = key, .window = args.window, .soft_cap = args.soft_cap};
        block_scores(at, s.keys + key * padded, s.queries, head_dim, padded, s.scores);
        at.soft_cap = 0.0f;
        block_scores(at, s.values + key * padded, s.d_out, head_dim, padded, s.d_scores);
        at.soft_cap = args.soft_cap;
        score_gradients(at, s);
        add_transposed_rows(at, s.weights, s.d_out_rows, padded, s.d_values + key * padded);
        add_transposed_rows(at, s.d_scores, s.rows, padded, s.d_keys + key * padded);
        add_weighted_rows(at, s.d_scores, s.keys + key * padded, padded, s.d_query);
      }
      for (std::int64_t q = 0; q < count; ++q) {
        store_row(s.d_query + q * padded, args.scale,
                  d_tokens + (query + q) * args.d_qkv.ld + head * head_dim, head_dim);
      }
    }
  }
  for (std::int64_t t = 0; t < length; ++t) {
    T* row = d_tokens + t * args.d_qkv.ld;
    store_row(s.d_keys + t * padded, args.scale, row + k_at, head_dim);
    store_row(s.d_values + t * padded, 1.0f, row + v_at, head_dim);
  }
}

template <typename T>
void run(const AttentionBackwardArgs& args) {
  const Documents& documents = args.documents;
  const bool amx = sizeof(T) == sizeof(Bf16) && has_amx_bf16();
  const std::size_t each = amx ? amx_backward_scratch_bytes(args.heads, documents.max_length)
                               : backward_scratch_bytes(args.heads, documents.max_length);
  const std::int64_t padded = padded_head(args.heads), keys = round_up(documents.max_length, block);
  const std::int64_t tasks = documents.count * args.heads.kv_heads;
  if (tasks > 0) {
    const int threads =
        static_cast<int>(std::min<std::int64_t>(tasks, workspace_threads(args.workspace, each)));
    auto* memory = static_cast<std::uint8_t*>(args.workspace.data);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (std::int64_t index = 0; index < tasks; ++index) {
      const std::int64_t start = documents.cu_seqlens[index / args.heads.kv_heads];
      const std::int64_t end = documents.cu_seqlens[index / args.heads.kv_heads + 1];
      const std::int64_t kv_head = index % args.heads.kv_heads;
      void* scratch = memory + each * static_cast<std::size_t>(omp_get_thread_num());
      if (start == end) continue;
      if (amx) {
        amx_backward(
            args, {.start = start, .first = 0, .last = end - start, .kv_head = kv_head, .scratch = scratch});
      } else {
        run_task<T>(args, start, end - start, kv_head, scratch_at(scratch, padded, keys));
      }
    }
  }
  // Tokens outside of all documents.
  for (std::int64_t t = documents.count > 0 ? documents.cu_seqlens[documents.count] : 0; t < args.qkv.rows;
       ++t) {
    std::memset(static_cast<T*>(args.d_qkv.data) + t * args.d_qkv.ld, 0,
                static_cast<std::size_t>(args.d_qkv.cols) * sizeof(T));
  }
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& args) {
  check_lengths(args.documents);
  return args.qkv.dtype == DType::f32 ? run<float>(args) : run<Bf16>(args);
}

}  // namespace octet::ops::cpu
