// The kernels of few_rows and of decoding attention for one instruction set. The file is included several
// times, each time inside a different namespace. The includer defines OCTET_FEW_TARGET (a function
// attribute), OCTET_FEW_LANES (floats of a vector) and OCTET_FEW_TOKENS (tokens per tile: the registers hold
// their sums with four outputs and the operands). tile_kernel.h gives the reason for this scheme.

using Vector = float __attribute__((vector_size(OCTET_FEW_LANES * 4), aligned(4), may_alias));
using Words = std::uint32_t __attribute__((vector_size(OCTET_FEW_LANES * 4), aligned(2), may_alias));

using Quarter = float __attribute__((vector_size(16), aligned(4), may_alias));

/// Returns the sum of a vector's quarters.
OCTET_FEW_TARGET inline Quarter quarters_of(Vector v) {
#if OCTET_FEW_LANES == 16
  using Half = float __attribute__((vector_size(32)));
  const Half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif OCTET_FEW_LANES == 8
  const Vector h = v;
#endif
#if OCTET_FEW_LANES >= 8
  return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#else
  return v;
#endif
}

/// Returns the sum of the lanes.
OCTET_FEW_TARGET inline float lanes_of(Vector v) {
  const Quarter four = quarters_of(v);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/// Returns the sums of the lanes of four vectors.
OCTET_FEW_TARGET inline Quarter lanes_of_four(Vector a, Vector b, Vector c, Vector d) {
#if OCTET_FEW_LANES == 16
  // Pairs share a vector until one vector holds the quarters of all four.
#define OCTET_FEW_PAIR(x, y)                                                                 \
  (__builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) + \
   __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31))
  const Vector ab = OCTET_FEW_PAIR(a, b), cd = OCTET_FEW_PAIR(c, d);
#undef OCTET_FEW_PAIR
  return quarters_of(
      __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
      __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
#else
  const Quarter p = quarters_of(a), q = quarters_of(b), r = quarters_of(c), s = quarters_of(d);
  const Quarter pq = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
  const Quarter rs = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
  return __builtin_shufflevector(pq, rs, 0, 1, 4, 5) + __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
#endif
}

/// The operands of a step along the inner dimension: a vector of fp32, or two vectors of bf16 values. The two
/// bf16 vectors hold the even and the odd elements; few_pack orders the tokens' values likewise.
template <typename T>
struct Step;
template <>
struct Step<float> {
  static constexpr int vectors = 1;
  OCTET_FEW_TARGET static inline Vector load(const float* from, int) {
    return *reinterpret_cast<const Vector*>(from);
  }
};
template <>
struct Step<Bf16> {
  static constexpr int vectors = 2;
  OCTET_FEW_TARGET static inline Vector load(const Bf16* from, int odd) {
    const Words both = *reinterpret_cast<const Words*>(from);
    return reinterpret_cast<Vector>(odd != 0 ? both & 0xFFFF0000u : both << 16);
  }
};

/// Sums of `tokens` tokens with `outputs` outputs over elements [from, to) of the inner dimension. They are
/// added to `y` unless `from` is 0. Each step prefetches `lines` cache lines, starting at `next`.
template <typename T, int tokens, int outputs, int lines>
OCTET_FEW_TARGET inline void few_tile(const FewRows& f, std::int64_t output, std::int64_t token,
                                      std::int64_t from, std::int64_t to, const char* next) {
  constexpr int vectors = Step<T>::vectors, wide = vectors * OCTET_FEW_LANES;
  const T* w = static_cast<const T*>(f.weight) + (output - f.first) * f.weight_ld;
  const float* x = f.x + token * f.x_ld;
  Vector sum[outputs][tokens] = {};
  for (std::int64_t k = from; k < to; k += wide) {
    for (int l = 0; l < lines; ++l) __builtin_prefetch(next + l * 64, 0, 2);
    next += lines * 64;
    for (int v = 0; v < vectors; ++v) {
      // The row is loaded again for the odd elements: there are not enough registers for both.
      const T* row = w + k;
      asm volatile("" : "+r"(row));
      Vector weight[outputs];
      for (int o = 0; o < outputs; ++o) weight[o] = Step<T>::load(row + o * f.weight_ld, v);
      for (int t = 0; t < tokens; ++t) {
        const Vector value = *reinterpret_cast<const Vector*>(x + t * f.x_ld + k + v * OCTET_FEW_LANES);
        for (int o = 0; o < outputs; ++o) sum[o][t] += weight[o] * value;
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    float* y = f.y + (token + t) * f.y_ld + output - f.first;
    if constexpr (outputs == 4) {
      const Quarter sums = lanes_of_four(sum[0][t], sum[1][t], sum[2][t], sum[3][t]);
      auto* four = reinterpret_cast<Quarter*>(y);
      *four = from > 0 ? *four + sums : sums;
    } else {
      for (int o = 0; o < outputs; ++o) y[o] = from > 0 ? y[o] + lanes_of(sum[o][t]) : lanes_of(sum[o][t]);
    }
  }
}

/// Calls few_tile with a compile-time token count.
template <typename T, int outputs, int lines>
OCTET_FEW_TARGET inline void few_outputs(const FewRows& f, std::int64_t output, std::int64_t token,
                                         int tokens, std::int64_t from, std::int64_t to, const char* next) {
  switch (tokens) {
    case 1:
      return few_tile<T, 1, outputs, lines>(f, output, token, from, to, next);
#if OCTET_FEW_TOKENS > 2
    case 2:
      return few_tile<T, 2, outputs, lines>(f, output, token, from, to, next);
    case 3:
      return few_tile<T, 3, outputs, lines>(f, output, token, from, to, next);
    case 4:
      return few_tile<T, 4, outputs, lines>(f, output, token, from, to, next);
    case 5:
      return few_tile<T, 5, outputs, lines>(f, output, token, from, to, next);
#endif
    default:
      return few_tile<T, OCTET_FEW_TOKENS, outputs, lines>(f, output, token, from, to, next);
  }
}

/// Computes outputs [first, last) of all tokens. While groups of tokens pass over the panel, the kernel
/// prefetches lines of the next panel. A panel that was not prefetched is prefetched during the first group.
template <typename T>
OCTET_FEW_TARGET inline void few_panel(const FewRows& f) {
  const std::int64_t groups = (f.tokens + OCTET_FEW_TOKENS - 1) / OCTET_FEW_TOKENS;
  const char* next = static_cast<const char*>(f.next);
  for (std::int64_t from = 0; from < f.inner; from += kFewInner) {
    const std::int64_t to = std::min(f.inner, from + kFewInner);
    const std::int64_t steps = (to - from) / (Step<T>::vectors * OCTET_FEW_LANES);
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t token = f.tokens * group / groups;
      const int tokens = static_cast<int>(f.tokens * (group + 1) / groups - token);
      std::int64_t output = f.first;
      for (; output + 4 <= f.last; output += 4) {
        if (group == 0 && (f.cold || groups == 1)) {
          // Prefetches the panel itself, four outputs ahead. The last prefetches reach into the next panel.
          const T* ahead = static_cast<const T*>(f.weight) + (output + 4 - f.first) * f.weight_ld + from;
          few_outputs<T, 4, 4>(f, output, token, tokens, from, to, reinterpret_cast<const char*>(ahead));
        } else {
          few_outputs<T, 4, 1>(f, output, token, tokens, from, to, next);
          next += steps * 64;
        }
      }
      for (; output < f.last; ++output) few_outputs<T, 1, 1>(f, output, token, tokens, from, to, next);
    }
  }
}

OCTET_FEW_TARGET void few_run(const FewRows& f, bool bf16) {
  bf16 ? few_panel<Bf16>(f) : few_panel<float>(f);
}

/// Copies elements into the order in which Step<Bf16> returns a weight's elements.
OCTET_FEW_TARGET void few_pack(const Bf16* from, std::int64_t count, float* to) {
  for (std::int64_t k = 0; k < count; k += 2 * OCTET_FEW_LANES) {
    for (int v = 0; v < 2; ++v) {
      *reinterpret_cast<Vector*>(to + k + v * OCTET_FEW_LANES) = Step<Bf16>::load(from + k, v);
    }
  }
}

/// scores[head][key] = query · key for a piece of keys. Each row is read once, heads in memory order.
template <typename T>
OCTET_FEW_TARGET inline void few_scores(const CachedPiece& p) {
  constexpr int vectors = Step<T>::vectors, wide = vectors * OCTET_FEW_LANES;
  for (std::int64_t j = 0; j < p.count; ++j) {
    const T* row = static_cast<const T*>(p.data) + p.rows[j] * p.stride;
    const T* ahead = static_cast<const T*>(p.data) + p.rows[j + 4 < p.count ? j + 4 : j] * p.stride;
    for (std::int64_t kv = 0; kv < p.kv_heads; ++kv) {
      const T* key = row + kv * p.head_dim;
      for (std::int64_t i = 0; i < p.head_dim; i += 64 / static_cast<std::int64_t>(sizeof(T))) {
        __builtin_prefetch(ahead + kv * p.head_dim + i, 0, 2);
      }
      for (std::int64_t g = 0; g < p.group; ++g) {
        const float* query = p.queries + (kv * p.group + g) * p.head_dim;
        Vector sum{};
        for (std::int64_t i = 0; i < p.head_dim; i += wide) {
          for (int v = 0; v < vectors; ++v) {
            sum +=
                Step<T>::load(key + i, v) * *reinterpret_cast<const Vector*>(query + i + v * OCTET_FEW_LANES);
          }
        }
        p.scores[(kv * p.group + g) * kCachedPiece + j] = lanes_of(sum);
      }
    }
  }
}

/// sums[head] += scores[head][key] * value[key] for `keys` keys, starting at key j.
template <typename T, int keys>
OCTET_FEW_TARGET inline void few_weighted(const CachedPiece& p, std::int64_t j) {
  constexpr int vectors = Step<T>::vectors, wide = vectors * OCTET_FEW_LANES;
  const T *row[keys], *ahead[keys];
  for (int n = 0; n < keys; ++n) {
    row[n] = static_cast<const T*>(p.data) + p.rows[j + n] * p.stride;
    ahead[n] = static_cast<const T*>(p.data) + p.rows[j + n + keys < p.count ? j + n + keys : j] * p.stride;
  }
  for (std::int64_t kv = 0; kv < p.kv_heads; ++kv) {
    for (std::int64_t i = 0; i < p.head_dim; i += wide) {
      const std::int64_t at = kv * p.head_dim + i;
      Vector value[keys][vectors];
      for (int n = 0; n < keys; ++n) {
        for (int v = 0; v < vectors; ++v) value[n][v] = Step<T>::load(row[n] + at, v);
        __builtin_prefetch(ahead[n] + at, 0, 2);
      }
      for (std::int64_t g = 0; g < p.group; ++g) {
        const std::int64_t head = kv * p.group + g;
        for (int v = 0; v < vectors; ++v) {
          auto* to = reinterpret_cast<Vector*>(p.sums + head * p.head_dim + i + v * OCTET_FEW_LANES);
          Vector sum = *to;
          for (int n = 0; n < keys; ++n) sum += p.scores[head * kCachedPiece + j + n] * value[n][v];
          *to = sum;
        }
      }
    }
  }
}

template <typename T>
OCTET_FEW_TARGET inline void few_values(const CachedPiece& p) {
  std::int64_t j = 0;
  for (; j + 4 <= p.count; j += 4) few_weighted<T, 4>(p, j);
  for (; j < p.count; ++j) few_weighted<T, 1>(p, j);
}

OCTET_FEW_TARGET void few_keys(const CachedPiece& p, bool bf16) {
  bf16 ? few_scores<Bf16>(p) : few_scores<float>(p);
}

OCTET_FEW_TARGET void few_sums(const CachedPiece& p, bool bf16) {
  bf16 ? few_values<Bf16>(p) : few_values<float>(p);
}

/// Undoes the order of few_pack.
OCTET_FEW_TARGET void few_unpack(const float* from, std::int64_t count, float* to) {
  for (std::int64_t k = 0; k < count; k += 2 * OCTET_FEW_LANES) {
    for (std::int64_t i = 0; i < OCTET_FEW_LANES; ++i) {
      to[k + 2 * i] = from[k + i];
      to[k + 2 * i + 1] = from[k + OCTET_FEW_LANES + i];
    }
  }
}
