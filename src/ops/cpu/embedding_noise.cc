#include "octet/ops/embedding_noise.h"

#include <cmath>

#include "cpu/rows.h"
#include "kernels.h"
#include "noise_rule.h"

namespace octet::ops::cpu {
namespace {

template <typename T>
OCTET_SIMD void add_noise_to_row(const EmbeddingNoiseArgs& a, std::int64_t row, float factor) {
  float x[kChunk], u[kChunk + 3];
  T* to = row_of<T>(a.x, row);
  for (std::int64_t c = 0; c < a.x.cols; c += kChunk) {
    const std::int64_t n = chunk_length(c, a.x.cols);
    for (std::int64_t i = 0; i < n; i += 4) {
      const auto four = noise_of(a.names[row], static_cast<std::uint32_t>((c + i) / 4));
      for (int j = 0; j < 4; ++j) u[i + j] = four[static_cast<std::size_t>(j)];
    }
    load(to + c, x, n);
    for (std::int64_t i = 0; i < n; ++i) x[i] = simd::fmadd(factor, u[i], x[i]);
    store(x, to + c, n);
  }
}

}  // namespace

void embedding_noise(const EmbeddingNoiseArgs& a) {
  with_type(a.x.dtype, [&](auto type) {
    simd::parallel_rows(a.x.rows, 8 * a.x.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const auto values =
            static_cast<float>(length_at(a.cu_seqlens, a.documents, r)) * static_cast<float>(a.x.cols);
        add_noise_to_row<decltype(type)>(a, r, a.alpha / std::sqrt(values));
      }
    });
  });
}

}  // namespace octet::ops::cpu
