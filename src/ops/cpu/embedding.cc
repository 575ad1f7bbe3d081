#include <cstring>

#include "cpu/rows.h"
#include "kernels.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {
namespace {

// Columns per piece of work of a column-wise sum. One thread sums each element of the result in a fixed
// order, for any number of threads.
constexpr std::int64_t kColumns = 64;

std::int64_t column_blocks(std::int64_t cols) {
  return (cols + kColumns - 1) / kColumns;
}

template <typename T>
OCTET_SIMD void scale_row(const T* __restrict from, float scale, T* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) simd::store(to[i], scale * simd::load(from[i]));
}

// Adds `scale` times the sum of one id's token rows to d_table, for the `n` columns starting at `begin`.
// `first` is the id's first token. `next` links each token to the id's next token (-1: end).
template <typename T, typename To>
OCTET_SIMD void add_token_chain(const EmbeddingBackwardArgs& a, std::int64_t first, const std::int32_t* next,
                                std::int64_t begin, std::int64_t n) {
  float sum[kColumns];
  load(row_of<T>(a.d_out, first) + begin, sum, n);
  for (std::int64_t t = next[first]; t >= 0; t = next[t]) {
    const T* d = row_of<T>(a.d_out, t) + begin;
    for (std::int64_t i = 0; i < n; ++i) sum[i] += simd::load(d[i]);
  }
  To* __restrict to = row_of<To>(a.d_table, a.ids[first]) + begin;
  for (std::int64_t i = 0; i < n; ++i) simd::store(to[i], simd::load(to[i]) + a.scale * sum[i]);
}

// Rows are summed in blocks of 64, so that rounding errors grow less with the length of a column.
template <typename T>
OCTET_SIMD void add_column_sums(const ConstMatrix& dy, std::int64_t begin, std::int64_t n,
                                float* __restrict d_bias) {
  constexpr std::int64_t block = 64;
  float all[kColumns] = {};
  for (std::int64_t r0 = 0; r0 < dy.rows; r0 += block) {
    float sum[kColumns] = {};
    const std::int64_t end = r0 + block < dy.rows ? r0 + block : dy.rows;
    for (std::int64_t r = r0; r < end; ++r) {
      const T* d = row_of<T>(dy, r) + begin;
      for (std::int64_t i = 0; i < n; ++i) sum[i] += simd::load(d[i]);
    }
    for (std::int64_t i = 0; i < n; ++i) all[i] += sum[i];
  }
  for (std::int64_t i = 0; i < n; ++i) d_bias[begin + i] += all[i];
}

const std::byte* byte_row(const ConstMatrix& m, std::int64_t r) {
  return static_cast<const std::byte*>(m.data) + static_cast<std::size_t>(r * m.ld) * size_of(m.dtype);
}
std::byte* byte_row(const Matrix& m, std::int64_t r) {
  return static_cast<std::byte*>(m.data) + static_cast<std::size_t>(r * m.ld) * size_of(m.dtype);
}

void check_rows(const std::int32_t* rows, std::int64_t count, std::int64_t limit, const char* what) {
  for (std::int64_t i = 0; i < count; ++i) check(rows[i] >= 0 && rows[i] < limit, what);
}

}  // namespace

void embedding(const EmbeddingArgs& a) {
  const std::size_t bytes = static_cast<std::size_t>(a.out.cols) * size_of(a.out.dtype);
  with_type(a.table.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.out.rows, a.out.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t id = a.ids[t];
        if (id < 0 || id >= a.table.rows) {
          std::memset(row_of<T>(a.out, t), 0, bytes);
        } else if (a.scale == 1.0f) {
          std::memcpy(row_of<T>(a.out, t), row_of<T>(a.table, id), bytes);
        } else {
          scale_row(row_of<T>(a.table, id), a.scale, row_of<T>(a.out, t), a.out.cols);
        }
      }
    });
  });
}

void embedding_backward(const EmbeddingBackwardArgs& a) {
  const std::int64_t tokens = a.d_out.rows, vocabulary = a.d_table.rows;
  // The tokens of an id form a chain in token order. Only the heads of occurring ids are accessed, so the
  // work does not grow with the vocabulary.
  auto* head = static_cast<std::int32_t*>(a.workspace.data);
  std::int32_t* next = head + vocabulary;
  const auto valid = [&](std::int32_t id) { return id >= 0 && id < vocabulary && id != a.padding_id; };
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (valid(a.ids[t])) head[a.ids[t]] = -1;
  }
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    if (!valid(a.ids[t])) continue;
    next[t] = head[a.ids[t]];
    head[a.ids[t]] = static_cast<std::int32_t>(t);
  }
  const std::int64_t hidden = a.d_table.cols;
  with_type(a.d_out.dtype, [&](auto type) {
    with_type(a.d_table.dtype, [&](auto to) {
      const auto add_columns = [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          if (!valid(a.ids[t]) || head[a.ids[t]] != t) continue;
          for (std::int64_t b = first; b < last; ++b) {
            const std::int64_t begin = b * kColumns;
            add_token_chain<decltype(type), decltype(to)>(a, t, next, begin,
                                                          std::min(kColumns, hidden - begin));
          }
        }
      };
      simd::parallel_rows(column_blocks(hidden), tokens * kColumns, add_columns);
    });
  });
}

void gather_rows(const GatherRowsArgs& a) {
  check_rows(a.rows, a.out.rows, a.x.rows, "gather_rows: a row lies outside x");
  const std::size_t bytes = static_cast<std::size_t>(a.out.cols) * size_of(a.out.dtype);
  simd::parallel_rows(a.out.rows, a.out.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(byte_row(a.out, i), byte_row(a.x, a.rows[i]), bytes);
    }
  });
}

void scatter_rows(const ScatterRowsArgs& a) {
  for (std::int64_t i = 0; i < a.in.rows; ++i)
    check(a.rows[i] < a.x.rows, "scatter_rows: a row lies outside x");
  const std::size_t bytes = static_cast<std::size_t>(a.in.cols) * size_of(a.in.dtype);
  simd::parallel_rows(a.x.rows, a.x.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) std::memset(byte_row(a.x, r), 0, bytes);
  });
  simd::parallel_rows(a.in.rows, a.in.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (a.rows[i] >= 0) std::memcpy(byte_row(a.x, a.rows[i]), byte_row(a.in, i), bytes);
    }
  });
}

void bias_backward(const BiasBackwardArgs& a) {
  with_type(a.dy.dtype, [&](auto type) {
    simd::parallel_rows(
        column_blocks(a.dy.cols), a.dy.rows * kColumns, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t b = first; b < last; ++b) {
            const std::int64_t begin = b * kColumns;
            add_column_sums<decltype(type)>(a.dy, begin, std::min(kColumns, a.dy.cols - begin), a.d_bias);
          }
        });
  });
}

}  // namespace octet::ops::cpu
