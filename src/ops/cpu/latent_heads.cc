#include "octet/ops/latent_heads.h"

#include <cstring>

#include "cpu/row_quantizer.h"
#include "cpu/rows.h"

namespace octet::ops::cpu {

void join_latent_heads(const JoinLatentHeadsArgs& args);
void split_latent_heads(const SplitLatentHeadsArgs& args);
void cut_head_values(const CutHeadValuesArgs& args);
void pad_head_values(const PadHeadValuesArgs& args);

namespace {

template <typename T>
void copy_elements(const T* from, T* to, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}

template <typename T>
void clear_elements(T* to, std::int64_t count) {
  std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(count) * sizeof(T));
}

template <typename T>
void join_row(const JoinLatentHeadsArgs& a, std::int64_t row) {
  const LatentHeads& h = a.heads;
  const std::int64_t dim = h.key_dim();
  const T *query = row_of<T>(a.queries, row), *expanded = row_of<T>(a.expanded, row);
  T *q = row_of<T>(a.qkv, row), *k = q + h.keys(), *v = k + h.keys();
  for (std::int64_t head = 0; head < h.heads; ++head) {
    copy_elements(query + h.nope_dim, q, h.rope_dim);
    copy_elements(query, q + h.rope_dim, h.nope_dim);
    copy_elements(row_of<T>(a.rope_key, row), k, h.rope_dim);
    copy_elements(expanded, k + h.rope_dim, h.nope_dim);
    copy_elements(expanded + h.nope_dim, v, h.value_dim);
    clear_elements(v + h.value_dim, dim - h.value_dim);
    query += dim;
    expanded += h.nope_dim + h.value_dim;
    q += dim;
    k += dim;
    v += dim;
  }
}

template <typename T>
OCTET_SIMD void sum_rope_keys(const SplitLatentHeadsArgs& a, std::int64_t row) {
  const LatentHeads& h = a.heads;
  const T* const keys = row_of<T>(a.d_qkv, row) + h.keys();
  for (std::int64_t c = 0; c < h.rope_dim; c += kChunk) {
    const std::int64_t n = chunk_length(c, h.rope_dim);
    float sum[kChunk];
    load(keys + c, sum, n);
    for (std::int64_t head = 1; head < h.heads; ++head) {
      const T* const key = keys + head * h.key_dim() + c;
      for (std::int64_t i = 0; i < n; ++i) sum[i] += simd::load(key[i]);
    }
    store(sum, row_of<T>(a.d_rope_key, row) + c, n);
  }
}

template <typename T>
void split_row(const SplitLatentHeadsArgs& a, std::int64_t row) {
  const LatentHeads& h = a.heads;
  const std::int64_t dim = h.key_dim();
  const T *q = row_of<T>(a.d_qkv, row), *k = q + h.keys(), *v = k + h.keys();
  T *query = row_of<T>(a.d_queries, row), *expanded = row_of<T>(a.d_expanded, row);
  for (std::int64_t head = 0; head < h.heads; ++head) {
    copy_elements(q, query + h.nope_dim, h.rope_dim);
    copy_elements(q + h.rope_dim, query, h.nope_dim);
    copy_elements(k + h.rope_dim, expanded, h.nope_dim);
    copy_elements(v, expanded + h.nope_dim, h.value_dim);
    query += dim;
    expanded += h.nope_dim + h.value_dim;
    q += dim;
    k += dim;
    v += dim;
  }
}

template <typename T>
OCTET_SIMD void cut_row(const CutHeadValuesArgs& a, RowQuantizer& quantizer, std::int64_t row) {
  const LatentHeads& h = a.heads;
  for (std::int64_t head = 0; head < h.heads; ++head) {
    const T* const from = row_of<T>(a.padded, row) + head * h.key_dim();
    for (std::int64_t c = 0; c < h.value_dim; c += kChunk) {
      const std::int64_t n = chunk_length(c, h.value_dim);
      float y[kChunk];
      load(from + c, y, n);
      if (a.out.data) store(y, row_of<T>(a.out, row) + head * h.value_dim + c, n);
      quantizer.take(y, row, head * h.value_dim + c, n);
    }
  }
  quantizer.finish_row();
}

}  // namespace

void join_latent_heads(const JoinLatentHeadsArgs& a) {
  with_type(a.qkv.dtype, [&](auto type) {
    simd::parallel_rows(a.qkv.rows, a.qkv.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) join_row<decltype(type)>(a, r);
    });
  });
}

void split_latent_heads(const SplitLatentHeadsArgs& a) {
  with_type(a.d_qkv.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.d_qkv.rows, a.d_qkv.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        split_row<T>(a, r);
        sum_rope_keys<T>(a, r);
      }
    });
  });
}

void cut_head_values(const CutHeadValuesArgs& a) {
  with_type(a.padded.dtype, [&](auto type) {
    simd::parallel_rows(a.padded.rows, 2 * a.padded.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(a.quantize, a.padded.rows, a.heads.values());
      for (std::int64_t r = begin; r < end; ++r) cut_row<decltype(type)>(a, quantizer, r);
    });
  });
}

void pad_head_values(const PadHeadValuesArgs& a) {
  const LatentHeads& h = a.heads;
  with_type(a.d_out.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.d_padded.rows, a.d_padded.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* from = row_of<T>(a.d_out, r);
        T* to = row_of<T>(a.d_padded, r);
        for (std::int64_t head = 0; head < h.heads; ++head) {
          copy_elements(from + head * h.value_dim, to, h.value_dim);
          clear_elements(to + h.value_dim, h.key_dim() - h.value_dim);
          to += h.key_dim();
        }
      }
    });
  });
}

}  // namespace octet::ops::cpu
