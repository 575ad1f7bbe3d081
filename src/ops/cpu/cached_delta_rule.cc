// The delta rule for decoding: the plain recurrence, token by token. A task is a sequence and a value head.
// The columns of a state are independent, so slabs of them stay in the first-level cache for several tokens.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/cached_runs.h"
#include "cpu/delta_chunk.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t kSlab = 32;  ///< columns of a state

/// One thread's scratch memory, for up to kDeltaChunk tokens.
struct StepRoom {
  std::vector<float> q, k, scales;
  std::vector<float> along;  ///< q·k
};

/// One step of some columns of a state: state = decay * state + k uᵀ with u = beta (v - decay * stateᵀ k),
/// and out = stateᵀ q of the new state.
struct Step {
  const float *q, *k;
  float decay, beta, along;
};

template <typename T>
OCTET_INLINE void step_columns(const Step& s, std::int64_t key_dim, const T* __restrict v, T* __restrict out,
                               float* __restrict state, std::int64_t ld, std::int64_t n) {
  const float decay = s.decay, beta = s.beta, along = s.along;
  const float* __restrict q = s.q, * __restrict k = s.k;
  float of_k[kSlab] = {}, of_q[kSlab] = {};
  for (std::int64_t r = 0; r < key_dim; ++r) {
    const float* row = state + r * ld;
    const float key = k[r], query = q[r];
    for (std::int64_t i = 0; i < n; ++i) of_k[i] = simd::fmadd(key, row[i], of_k[i]);
    for (std::int64_t i = 0; i < n; ++i) of_q[i] = simd::fmadd(query, row[i], of_q[i]);
  }
  float u[kSlab];
  for (std::int64_t i = 0; i < n; ++i) u[i] = beta * simd::fmadd(-decay, of_k[i], simd::load(v[i]));
  for (std::int64_t i = 0; i < n; ++i) simd::store(out[i], simd::fmadd(along, u[i], decay * of_q[i]));
  for (std::int64_t r = 0; r < key_dim; ++r) {
    float* row = state + r * ld;
    const float key = k[r];
    for (std::int64_t i = 0; i < n; ++i) row[i] = simd::fmadd(key, u[i], decay * row[i]);
  }
}

/// Whole slabs have a constant number of columns, so that the compiler keeps sums in registers.
template <typename T>
OCTET_SIMD void step_slab(const Step& s, std::int64_t key_dim, const T* v, T* out, float* state,
                          std::int64_t ld, std::int64_t n) {
  if (n == kSlab) return step_columns(s, key_dim, v, out, state, ld, kSlab);
  step_columns(s, key_dim, v, out, state, ld, n);
}

OCTET_SIMD float step_dot(const float* a, const float* b, std::int64_t count) {
  Lanes sum;
  add_terms(
      sum, count, [&](std::int64_t i) __attribute__((always_inline)) { return a[i] * b[i]; });
  return total(sum);
}
OCTET_SIMD float step_decay(float g) {
  return simd::exp(g);
}

/// Processes some tokens of a sequence for a value head.
template <typename T>
void step_tokens(const CachedDeltaRuleArgs& args, const DeltaTokens& tokens, std::int64_t head, float* state,
                 StepRoom& room) {
  const DeltaHeads& heads = args.heads;
  const std::int64_t dim = heads.key_dim, key_head = head / (heads.value_heads / heads.key_heads);
  const T* q = row_of<T>(args.qkv, tokens.first) + key_head * dim;
  const float factor = 1.0f / std::sqrt(static_cast<float>(dim));
  room.q.resize(static_cast<std::size_t>(kDeltaChunk * dim));
  room.k.resize(static_cast<std::size_t>(kDeltaChunk * dim));
  room.scales.resize(kDeltaChunk);
  room.along.resize(kDeltaChunk);
  unit_delta_rows(q, args.qkv.ld, factor, tokens, dim, dim, room.q.data(), room.scales.data());
  unit_delta_rows(q + heads.keys(), args.qkv.ld, 1.0f, tokens, dim, dim, room.k.data(), room.scales.data());
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    room.along[static_cast<std::size_t>(i)] = step_dot(room.q.data() + i * dim, room.k.data() + i * dim, dim);
  }
  for (std::int64_t column = 0; column < heads.value_dim; column += kSlab) {
    const std::int64_t n = std::min(kSlab, heads.value_dim - column), at = head * heads.value_dim + column;
    for (std::int64_t i = 0; i < tokens.count; ++i) {
      const std::int64_t t = tokens.first + i, gate = t * heads.value_heads + head;
      const Step step{.q = room.q.data() + i * dim,
                      .k = room.k.data() + i * dim,
                      .decay = step_decay(args.log_decay[gate]),
                      .beta = args.beta[gate],
                      .along = room.along[static_cast<std::size_t>(i)]};
      step_slab(step, dim, row_of<T>(args.qkv, t) + 2 * heads.keys() + at, row_of<T>(args.out, t) + at,
                state + column, heads.value_dim, n);
    }
  }
}

template <typename T>
void run_cached(const CachedDeltaRuleArgs& args) {
  const DeltaHeads& heads = args.heads;
  const TokenRuns tokens = token_runs(args.slots, args.positions, args.qkv.rows);
  const std::int64_t size = heads.key_dim * heads.value_dim, sequences = std::ssize(tokens.runs);
  const std::int64_t work = 4 * size * args.qkv.rows / sequences;
  simd::parallel_pieces(sequences * heads.value_heads, work, [&](std::int64_t piece) {
    thread_local StepRoom room;
    const TokenRun& run = tokens.runs[static_cast<std::size_t>(piece / heads.value_heads)];
    const std::int64_t head = piece % heads.value_heads;
    float* state = args.states + (args.slots[run.first] * heads.value_heads + head) * size;
    if (args.positions[run.first] == 0) std::fill(state, state + size, 0.0f);
    for (std::int64_t i = 0; i < run.count; i += kDeltaChunk) {
      const std::int64_t count = std::min(kDeltaChunk, run.count - i);
      step_tokens<T>(args, {.first = run.first + i, .count = count, .rows = count}, head, state, room);
    }
  });
  for (const std::int64_t copy : tokens.copies) {
    std::memcpy(row_of<T>(args.out, copy), row_of<T>(args.out, 0),
                static_cast<std::size_t>(args.out.cols) * sizeof(T));
  }
}

}  // namespace

void cached_delta_rule(const CachedDeltaRuleArgs& args) {
  return args.qkv.dtype == DType::f32 ? run_cached<float>(args) : run_cached<Bf16>(args);
}

}  // namespace octet::ops::cpu
