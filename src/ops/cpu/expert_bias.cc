#include "octet/ops/expert_bias.h"

#include <algorithm>

#include "cpu/rows.h"
#include "kernels.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t kColumns = 64;  ///< columns of a task of a sum over rows

/// Calls act(row, expert) for the rows [from, to) that belong to an expert.
template <typename Act>
void each_row(const std::int32_t* begins, std::int64_t count, std::int64_t from, std::int64_t to, Act act) {
  std::int64_t expert = std::upper_bound(begins, begins + count + 1, from) - begins - 1;
  for (std::int64_t r = from; r < std::min<std::int64_t>(to, begins[count]); ++r) {
    while (r >= begins[expert + 1]) ++expert;
    act(r, expert);
  }
}

void check_begins(const std::int32_t* begins, std::int64_t count, std::int64_t rows) {
  check(begins[0] == 0 && begins[count] <= rows && std::is_sorted(begins, begins + count + 1),
        "expert_bias: the rows of experts follow each other");
}

template <typename T>
OCTET_SIMD void add_row(T* x, const float* bias, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(x[i], simd::load(x[i]) + bias[i]);
}

/// Adds the sums of up to kColumns columns over rows of d_y.
template <typename T>
OCTET_SIMD void add_sums(const T* d_y, std::int64_t ld, std::int64_t rows, std::int64_t columns,
                         float* d_bias) {
  float sums[kColumns] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < columns; ++i) sums[i] += simd::load(d_y[r * ld + i]);
  }
  for (std::int64_t i = 0; i < columns; ++i) d_bias[i] += sums[i];
}

template <typename T>
OCTET_SIMD float dot(const float* bias, const T* d, std::int64_t count) {
  Lanes sum;
  add_terms(sum, count, [&](std::int64_t i) { return bias[i] * simd::load(d[i]); });
  return total(sum);
}

}  // namespace

void expert_bias(const ExpertBiasArgs& a) {
  check_begins(a.begins, a.count, a.x.rows);
  with_type(a.x.dtype, [&](auto type) {
    simd::parallel_rows(a.x.rows, a.x.cols, [&](std::int64_t begin, std::int64_t end) {
      each_row(a.begins, a.count, begin, end, [&](std::int64_t r, std::int64_t expert) {
        add_row(row_of<decltype(type)>(a.x, r), a.bias + expert * a.x.cols, a.x.cols);
      });
    });
  });
}

void expert_bias_backward(const ExpertBiasBackwardArgs& a) {
  check_begins(a.begins, a.count, a.d_y.rows);
  const std::int64_t cols = a.d_y.cols, blocks = (cols + kColumns - 1) / kColumns;
  const std::int64_t rows_each = std::max<std::int64_t>(1, a.d_y.rows / a.count);
  with_type(a.d_y.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.count * blocks, rows_each * kColumns, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t task = first; task < last; ++task) {
        const std::int64_t expert = task / blocks, begin = task % blocks * kColumns;
        const std::int64_t row = a.begins[expert];
        add_sums(row_of<T>(a.d_y, row) + begin, a.d_y.ld, a.begins[expert + 1] - row,
                 std::min(kColumns, cols - begin), a.d_bias + expert * cols + begin);
      }
    });
  });
}

void expert_bias_weights(const ExpertBiasWeightsArgs& a) {
  check_begins(a.begins, a.count, a.rows);
  const std::int64_t cols = a.d_tokens.cols;
  with_type(a.d_tokens.dtype, [&](auto type) {
    simd::parallel_rows(a.rows, 2 * cols, [&](std::int64_t begin, std::int64_t end) {
      each_row(a.begins, a.count, begin, end, [&](std::int64_t r, std::int64_t expert) {
        const std::int64_t token = a.row_tokens[r];
        check(token >= 0 && token < a.d_tokens.rows, "expert_bias_weights: every row has a token");
        a.d_weights[r] += dot(a.bias + expert * cols, row_of<decltype(type)>(a.d_tokens, token), cols);
      });
    });
  });
}

}  // namespace octet::ops::cpu
