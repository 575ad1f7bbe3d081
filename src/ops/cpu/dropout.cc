#include "octet/ops/dropout.h"

#include "cpu/rows.h"
#include "dropout_rule.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

/// Factors of elements [begin, begin + n) of a token's row; `begin` is a multiple of four.
OCTET_SIMD void make_factors(const DropoutRule& rule, std::uint64_t name, std::int64_t begin, std::int64_t n,
                             float* factors) {
  std::uint32_t bits[kChunk + 3];
  for (std::int64_t i = 0; i < n; i += 4) {
    const auto four = rule.numbers(name, static_cast<std::uint32_t>((begin + i) / 4));
    for (int j = 0; j < 4; ++j) bits[i + j] = four[static_cast<std::size_t>(j)];
  }
  for (std::int64_t i = 0; i < n; ++i) factors[i] = rule.factor(bits[i]);
}

template <typename T>
OCTET_SIMD void drop_row(const DropoutArgs& a, const DropoutRule& rule, std::int64_t row) {
  float factors[kChunk], x[kChunk];
  const T* from = row_of<T>(a.x, row);
  T* to = row_of<T>(a.out, row);
  for (std::int64_t c = 0; c < a.x.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, a.x.cols);
    make_factors(rule, a.names[row], c, n, factors);
    load(from + c, x, n);
    for (std::int64_t i = 0; i < n; ++i) x[i] *= factors[i];
    if (a.accumulate) {
      for (std::int64_t i = 0; i < n; ++i) x[i] += simd::load(to[c + i]);
    }
    store(x, to + c, n);
  }
}

}  // namespace

void dropout(const DropoutArgs& a) {
  const DropoutRule rule(a.key, a.rate);
  with_type(a.x.dtype, [&](auto type) {
    simd::parallel_rows(a.x.rows, 8 * a.x.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) drop_row<decltype(type)>(a, rule, r);
    });
  });
}

}  // namespace octet::ops::cpu
