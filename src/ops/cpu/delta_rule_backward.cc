// Backward of the gated delta rule, see delta_chunk.h. A task is a document and a key head with its value
// heads. It goes through the chunks from the last to the first and keeps the gradient of a state per value
// head. One thread sums the gradients of queries and keys over value heads in order. Symbols: X, U, L
// (`between`), and S are as in delta_chunk.h, d_U etc. are gradients, D = d_V.
#include <algorithm>
#include <cstring>

#include "cpu/attention_tiles.h"
#include "cpu/delta_chunk.h"
#include "cpu/rows.h"
#include "cpu/tile_gemm.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

/// One thread's scratch memory.
struct BackwardRoom {
  BackwardRoom(void* memory, const DeltaSizes& sizes) : room(memory), keys(room, sizes), decays(room) {
    for (float** rows : {&x, &u, &d_out, &r, &d, &k_d_state}) *rows = room.take(kDeltaChunk * sizes.values);
    u_transposed = room.take(kDeltaChunk * sizes.values);
    for (float** rows : {&d_q, &d_k, &of_keys}) *rows = room.take(kDeltaChunk * sizes.keys);
    for (float** square : {&d_weights, &d_solver, &crossing}) *square = room.take(kDeltaChunk * kDeltaChunk);
    for (float** state : {&before, &transposed}) *state = room.take(sizes.keys * sizes.values);
    d_states = room.take(sizes.group * sizes.keys * sizes.values);
  }
  DeltaScratchRoom room;
  DeltaKeys keys;
  DeltaDecays decays;
  float *x, *u, *d_out, *r, *d, *k_d_state;  ///< [rows][values]
  float* u_transposed;                       ///< [values][64]
  float *d_q, *d_k, *of_keys;                ///< [rows][keys]
  float *d_weights, *d_solver, *crossing;    ///< [rows][64]
  float *before, *transposed;                ///< a state and a transpose
  float* d_states;                           ///< of each value head, [keys][values]
};

template <typename T>
OCTET_SIMD void widen_state(const T* from, const DeltaSizes& sizes, float* to) {
  for (std::int64_t i = 0; i < sizes.key_dim; ++i) {
    load(from + i * sizes.value_dim, to + i * sizes.values, sizes.value_dim);
    for (std::int64_t j = sizes.value_dim; j < sizes.values; ++j) to[i * sizes.values + j] = 0.0f;
  }
  for (std::int64_t j = sizes.key_dim * sizes.values; j < sizes.keys * sizes.values; ++j) to[j] = 0.0f;
}

template <typename T>
OCTET_SIMD void round_row(const float* from, T* to, std::int64_t count) {
  store(from, to, count);
}

OCTET_SIMD float dot(const float* a, const float* b, std::int64_t count) {
  Lanes sum;
  add_terms(
      sum, count, [&](std::int64_t i) __attribute__((always_inline)) { return a[i] * b[i]; });
  return total(sum);
}

/// From d_out·u in `d_weights` and d·u in `d_solver` (both for j <= i): d_weights = L * d_weights, d_solver =
/// -L * d_solver without the diagonal, with its transpose above, and `crossing`, the derivatives by G_i -
/// G_j.
OCTET_SIMD void pair_gradients(const BackwardRoom& s, std::int64_t rows) {
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int64_t at = i * kDeltaChunk;
    const float *between = s.decays.between + at, *qk = s.keys.qk + at, *kk = s.keys.kk + at;
    float *d_weights = s.d_weights + at, *d_solver = s.d_solver + at, *crossing = s.crossing + at;
    for (std::int32_t j = 0; j < rows; ++j) {
      const float p = between[j] * d_weights[j], m = -(between[j] * d_solver[j]);
      const float both = p * qk[j] + m * kk[j];
      d_weights[j] = j <= i ? p : 0.0f;
      d_solver[j] = j < i ? m : 0.0f;
      crossing[j] = j < i ? both : 0.0f;
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < i; ++j) s.d_solver[j * kDeltaChunk + i] = s.d_solver[i * kDeltaChunk + j];
  }
}

/// The gradient of x from the gradient d of scale * x / sqrt(|x|² + eps), with y, its value, and `scale`, the
/// value of the factor of x. `squares`: the square of the factor of the unit vector, inverted.
template <typename T>
OCTET_SIMD void unit_gradient(const float* d, const float* y, float scale, float inverse_square, T* to,
                              std::int64_t dim) {
  Lanes sum;
  add_terms(
      sum, dim, [&](std::int64_t i) __attribute__((always_inline)) { return d[i] * y[i]; });
  const float along = total(sum) * inverse_square;
  for (std::int64_t i = 0; i < dim; ++i) simd::store(to[i], scale * (d[i] - along * y[i]));
}

template <typename T>
class DeltaBackward {
 public:
  DeltaBackward(const DeltaRuleBackwardArgs& args, std::int64_t key_head, void* memory)
      : args_(args), key_head_(key_head), sizes_(args.heads), room_(memory, sizes_) {}

  void run(std::int64_t start, std::int64_t end) {
    for (std::int64_t chunk = (end - start - 1) / kDeltaChunk; chunk >= 0; --chunk) {
      tokens_.first = start + chunk * kDeltaChunk;
      tokens_.count = std::min(kDeltaChunk, end - tokens_.first);
      tokens_.rows = round_up(tokens_.count, 16);
      begins_ = chunk == 0;
      ends_ = tokens_.first + kDeltaChunk >= end;
      number_ = start / kDeltaChunk + chunk - 1;
      load_delta_keys<T>(args_.qkv, args_.heads, key_head_, tokens_, room_.keys);
      for (float* sum : {room_.d_q, room_.d_k}) std::fill(sum, sum + tokens_.rows * sizes_.keys, 0.0f);
      for (std::int64_t i = 0; i < sizes_.group; ++i) {
        d_state_ = room_.d_states + i * sizes_.keys * sizes_.values;
        run_head(key_head_ * sizes_.group + i);
      }
      store_keys();
    }
  }

 private:
  void run_head(std::int64_t head) {
    load_delta_decays(args_.log_decay, args_.beta, args_.heads, head, tokens_, room_.keys, room_.decays);
    load(head);
    if (!begins_) {
      widen_state(delta_state_at(static_cast<const T*>(args_.states), args_.heads, number_, head), sizes_,
                  room_.before);
      times_state(room_.before, room_.r);
      add_delta_rows(room_.decays.from_start, -1.0f, room_.r, tokens_.rows, sizes_.values, room_.x);
    }
    solve_delta_values(room_.decays, tokens_.rows, sizes_.values, room_.x, room_.u);
    value_gradients(head);
    through_pairs();
    double at_start[kDeltaChunk] = {}, at_end[kDeltaChunk] = {};
    double through = 0;
    if (!ends_) through_next_state(at_end);
    if (!begins_) through = through_state(at_start);
    store_decay(head, at_start, at_end, through);
  }

  void load(std::int64_t head) {
    const std::int64_t column = head * sizes_.value_dim;
    const T* v = row_of<T>(args_.qkv, tokens_.first) + 2 * args_.heads.keys() + column;
    pack_rows(v, args_.qkv.ld, tokens_.count, sizes_.value_dim, room_.x, sizes_.values, tokens_.rows);
    pack_rows(row_of<T>(args_.d_out, tokens_.first) + column, args_.d_out.ld, tokens_.count, sizes_.value_dim,
              room_.d_out, sizes_.values, tokens_.rows);
  }

  /// to [rows][values] = k · state
  void times_state(const float* state, float* to) {
    tile_gemm({.a = room_.keys.k,
               .a_row = sizes_.keys,
               .a_col = 1,
               .b = state,
               .ldb = sizes_.values,
               .c = to,
               .ldc = sizes_.values,
               .m = tokens_.rows,
               .n = sizes_.values,
               .k = sizes_.key_dim});
  }

  /// of_keys [rows][keys] = x · stateᵀ, with the transpose in room_.transposed.
  void times_transposed(const float* x) {
    tile_gemm({.a = x,
               .a_row = sizes_.values,
               .a_col = 1,
               .b = room_.transposed,
               .ldb = sizes_.keys,
               .c = room_.of_keys,
               .ldc = sizes_.keys,
               .m = tokens_.rows,
               .n = sizes_.keys,
               .k = sizes_.value_dim});
  }

  /// d_U = weightsᵀ d_out + exp(G_last - G) k · d_state; then d_X in room_.r, d_V in room_.d, and d_beta.
  void value_gradients(std::int64_t head) {
    const std::int64_t rows = tokens_.rows, values = sizes_.values;
    std::fill(room_.r, room_.r + rows * values, 0.0f);
    if (!ends_) {
      times_state(d_state_, room_.k_d_state);
      add_delta_rows(room_.decays.to_end, 1.0f, room_.k_d_state, rows, values, room_.r);
    }
    add_lower_transposed(room_.decays.weights, room_.d_out, rows, values, room_.r);
    solve_delta_gradients(room_.decays, rows, values, room_.r, room_.d);
    T* d_v = row_of<T>(args_.d_qkv, tokens_.first) + 2 * args_.heads.keys() + head * sizes_.value_dim;
    for (std::int64_t i = 0; i < tokens_.count; ++i) {
      args_.d_beta[(tokens_.first + i) * args_.heads.value_heads + head] =
          dot(room_.r + i * values, room_.x + i * values, values);
      round_row(room_.d + i * values, d_v + i * args_.d_qkv.ld, sizes_.value_dim);
    }
  }

  /// Gradients of queries and keys through q_i·k_j and k_i·k_j.
  void through_pairs() {
    const std::int64_t rows = tokens_.rows, keys = sizes_.keys;
    transpose_delta(room_.u, rows, sizes_.values, room_.u_transposed, kDeltaChunk);
    lower_dots(room_.d_out, sizes_.values, room_.u_transposed, sizes_.value_dim, rows, room_.d_weights);
    lower_dots(room_.d, sizes_.values, room_.u_transposed, sizes_.value_dim, rows, room_.d_solver);
    pair_gradients(room_, rows);
    add_lower(room_.d_weights, room_.keys.k, rows, keys, room_.d_q);
    add_lower_transposed(room_.d_weights, room_.keys.q, rows, keys, room_.d_k);
    tile_gemm({.a = room_.d_solver,
               .a_row = kDeltaChunk,
               .a_col = 1,
               .b = room_.keys.k,
               .ldb = keys,
               .c = room_.d_k,
               .ldc = keys,
               .m = rows,
               .n = keys,
               .k = rows,
               .accumulate = true});
  }

  /// Gradients of keys through the next state. at_end[j]: the derivative by G_last - G_j.
  void through_next_state(double* at_end) {
    const std::int64_t values = sizes_.values;
    transpose_delta(d_state_, sizes_.keys, values, room_.transposed, sizes_.keys);
    times_transposed(room_.u);
    add_delta_rows(room_.decays.to_end, 1.0f, room_.of_keys, tokens_.rows, sizes_.keys, room_.d_k);
    for (std::int64_t j = 0; j < tokens_.count; ++j) {
      at_end[j] = static_cast<double>(room_.decays.to_end[j]) *
                  static_cast<double>(dot(room_.k_d_state + j * values, room_.u + j * values, values));
    }
  }

  /// Gradients of queries and keys through the state before the chunk, and its gradient. at_start[i]: the
  /// derivative by G_i of outputs and values. Returns the derivative by G_last of the next state.
  double through_state(double* at_start) {
    const std::int64_t rows = tokens_.rows, values = sizes_.values, keys = sizes_.keys;
    const float* from_start = room_.decays.from_start;
    transpose_delta(room_.before, keys, values, room_.transposed, keys);
    const auto add = [&](const float* x, const float* other, float sign, float* to) {
      times_transposed(x);
      add_delta_rows(from_start, sign, room_.of_keys, rows, keys, to);
      for (std::int64_t i = 0; i < tokens_.count; ++i) {
        at_start[i] += static_cast<double>(from_start[i] * sign) *
                       static_cast<double>(dot(other + i * keys, room_.of_keys + i * keys, keys));
      }
    };
    add(room_.d_out, room_.keys.q, 1.0f, room_.d_q);
    add(room_.d, room_.keys.k, -1.0f, room_.d_k);
    double through = 0;
    for (std::int64_t r = 0; r < sizes_.key_dim; ++r) {
      float* row = d_state_ + r * values;
      if (ends_) {
        std::fill(row, row + values, 0.0f);
      } else {
        scale_delta_rows(&room_.decays.whole, 1.0f, 1, values, row);
        through += static_cast<double>(dot(room_.before + r * values, row, values));
      }
    }
    std::fill(d_state_ + sizes_.key_dim * values, d_state_ + keys * values, 0.0f);
    scale_delta_rows(from_start, 1.0f, rows, values, room_.d_out);
    scale_delta_rows(from_start, -1.0f, rows, values, room_.d);
    add_to_d_state(room_.keys.q, room_.d_out);
    add_to_d_state(room_.keys.k, room_.d);
    return through;
  }

  /// d_state += rowsᵀ · x
  void add_to_d_state(const float* rows, const float* x) {
    tile_gemm({.a = rows,
               .a_row = 1,
               .a_col = sizes_.keys,
               .b = x,
               .ldb = sizes_.values,
               .c = d_state_,
               .ldc = sizes_.values,
               .m = sizes_.keys,
               .n = sizes_.values,
               .k = tokens_.rows,
               .accumulate = true});
  }

  /// g of token i is a part of all differences G_l - G_j with j < i <= l. Only these are added, so that
  /// nothing cancels.
  void store_decay(std::int64_t head, const double* at_start, const double* at_end, double through) {
    double sums[kDeltaChunk];
    double before = through;
    for (std::int64_t i = 0; i < tokens_.count; ++i) {
      sums[i] = before;
      before += at_end[i];
    }
    double after = 0;
    for (std::int64_t i = tokens_.count - 1; i >= 0; --i) {
      after += at_start[i];
      sums[i] += after;
      const float* crossing = room_.crossing + i * kDeltaChunk;
      double earlier = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        sums[j] += earlier;
        earlier += static_cast<double>(crossing[j]);
      }
    }
    for (std::int64_t i = 0; i < tokens_.count; ++i) {
      args_.d_log_decay[(tokens_.first + i) * args_.heads.value_heads + head] = static_cast<float>(sums[i]);
    }
  }

  void store_keys() {
    const std::int64_t keys = sizes_.keys;
    T* d_q = row_of<T>(args_.d_qkv, tokens_.first) + key_head_ * sizes_.key_dim;
    T* d_k = d_q + args_.heads.keys();
    for (std::int64_t i = 0; i < tokens_.count; ++i) {
      unit_gradient(room_.d_q + i * keys, room_.keys.q + i * keys, room_.keys.q_scale[i],
                    static_cast<float>(sizes_.key_dim), d_q + i * args_.d_qkv.ld, sizes_.key_dim);
      unit_gradient(room_.d_k + i * keys, room_.keys.k + i * keys, room_.keys.k_scale[i], 1.0f,
                    d_k + i * args_.d_qkv.ld, sizes_.key_dim);
    }
  }

  const DeltaRuleBackwardArgs& args_;
  std::int64_t key_head_;
  DeltaSizes sizes_;
  BackwardRoom room_;
  // The current chunk.
  DeltaTokens tokens_;
  bool begins_ = false, ends_ = false;  ///< first or last of its document
  std::int64_t number_ = 0;             ///< of the state before
  float* d_state_ = nullptr;            ///< of the current value head
};

template <typename T>
void run_backward(const DeltaRuleBackwardArgs& args) {
  const std::int64_t key_heads = args.heads.key_heads, tasks = args.documents.count * key_heads;
  const std::size_t each = delta_backward_bytes(args.heads);
  const int threads = static_cast<int>(std::min<std::int64_t>(tasks, delta_threads(args.workspace, each)));
  auto* memory = static_cast<std::uint8_t*>(args.workspace.data);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (std::int64_t index = 0; index < tasks; ++index) {
    const std::int32_t* document = args.documents.cu_seqlens + index / key_heads;
    if (document[0] == document[1]) continue;
    DeltaBackward<T>(args, index % key_heads, memory + each * static_cast<std::size_t>(omp_get_thread_num()))
        .run(document[0], document[1]);
  }
  const std::int64_t end = end_of_documents(args.documents);
  for (std::int64_t t = end; t < args.qkv.rows; ++t) {
    std::memset(row_of<T>(args.d_qkv, t), 0, static_cast<std::size_t>(args.d_qkv.cols) * sizeof(T));
  }
  const std::int64_t value_heads = args.heads.value_heads;
  for (float* gates : {args.d_log_decay, args.d_beta}) {
    std::fill(gates + end * value_heads, gates + args.qkv.rows * value_heads, 0.0f);
  }
}

}  // namespace

std::size_t delta_backward_bytes(const DeltaHeads& heads) {
  return BackwardRoom(nullptr, DeltaSizes(heads)).room.bytes();
}

void delta_rule_backward(const DeltaRuleBackwardArgs& args) {
  check_delta_documents(args.documents);
  return args.qkv.dtype == DType::f32 ? run_backward<float>(args) : run_backward<Bf16>(args);
}

}  // namespace octet::ops::cpu
