// Shared code of forward and backward of the gated delta rule on the CPU. A chunk has up to 64 tokens of a
// document. Arrays of tokens have `rows` rows: the tokens, then zeros up to a multiple of 16.
//
// With G_i, the sum of g up to token i of the chunk, and S, the state before the chunk (Yang et al. 2025,
// arXiv:2412.06464, section 3.3):
//   x_i = v_i - exp(G_i) Sᵀk_i - Σ_{j<i} exp(G_i - G_j) (k_i·k_j) u_j;   u_i = beta_i x_i
//   o_i = exp(G_i) Sᵀq_i + Σ_{j<=i} exp(G_i - G_j) (q_i·k_j) u_j
//   next state = exp(G_last) S + Σ_j exp(G_last - G_j) k_j u_jᵀ
// No exponent is above zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/ops/delta_rule.h"

namespace octet::ops::cpu {

/// Sizes of a head, and its sizes rounded up for tile_gemm().
struct DeltaSizes {
  explicit DeltaSizes(const DeltaHeads& heads);
  std::int64_t key_dim, value_dim;
  std::int64_t keys, values;  ///< key_dim and value_dim rounded up
  std::int64_t group;         ///< value heads of a key head
};

/// Some tokens of a document.
struct DeltaTokens {
  std::int64_t first = 0;  ///< in the micro-batch
  std::int64_t count = 0;
  std::int64_t rows = 0;  ///< count, rounded up to a multiple of 16
};

/// Hands out arrays from a thread's scratch memory. Without memory, it only counts.
class DeltaScratchRoom {
 public:
  explicit DeltaScratchRoom(void* memory) : memory_(static_cast<float*>(memory)) {}
  float* take(std::int64_t count) {
    const std::int64_t at = used_;
    used_ += (count + 15) / 16 * 16;
    return memory_ != nullptr ? memory_ + at : nullptr;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(used_) * sizeof(float); }

 private:
  float* memory_;
  std::int64_t used_ = 0;
};

/// Rows of queries or keys as unit vectors, times `factor`, with zeros up to `padded` columns and tokens.rows
/// rows: to = scale * from, with scale = factor / sqrt(|from|² + kDeltaNormEps) in `scales`.
template <typename T>
void unit_delta_rows(const T* from, std::int64_t ld, float factor, const DeltaTokens& tokens,
                     std::int64_t dim, std::int64_t padded, float* to, float* scales);

/// Queries and keys of a key head in a chunk.
struct DeltaKeys {
  DeltaKeys(DeltaScratchRoom& room, const DeltaSizes& sizes);
  float *q, *k;              ///< [rows][keys] q' and k' of delta_rule()
  float* k_transposed;       ///< [keys][64]
  float *q_scale, *k_scale;  ///< [rows] q' = q_scale * q, k' = k_scale * k
  float *qk, *kk;            ///< [rows][64] q_i·k_j and k_i·k_j, written for j <= i
};

/// Loads the tokens' queries and keys of a head and computes everything in `to`.
template <typename T>
void load_delta_keys(const ConstMatrix& qkv, const DeltaHeads& heads, std::int64_t key_head,
                     const DeltaTokens& tokens, const DeltaKeys& to);

/// Decays and betas of a value head in a chunk.
struct DeltaDecays {
  explicit DeltaDecays(DeltaScratchRoom& room);
  float* beta;              ///< [rows]
  float* from_start;        ///< [rows] exp(G_i)
  float* to_end;            ///< [rows] exp(G_last - G_i)
  float* between;           ///< [rows][64] exp(G_i - G_j), zero for j > i
  float *weights, *solver;  ///< [rows][64] (j <= i) between * qk; (j < i) -between * kk; zeros elsewhere
  float whole = 0.0f;       ///< exp(G_last)
};

/// Loads the tokens' gates of a value head and computes everything in `to`.
void load_delta_decays(const float* log_decay, const float* beta, const DeltaHeads& heads,
                       std::int64_t value_head, const DeltaTokens& tokens, const DeltaKeys& keys,
                       DeltaDecays& to);

/// Solves for u and x: x_i = v_i + Σ_{j<i} solver[i][j] u_j, u_i = beta_i x_i. `x` contains v before, without
/// the share of the state. Arrays are [rows][values].
void solve_delta_values(const DeltaDecays& decays, std::int64_t rows, std::int64_t values, float* x,
                        float* u);
/// The adjoint: r_j = d_u_j + Σ_{i>j} solver[i][j] d_i, d_i = beta_i r_i. `r` contains d_u before.
void solve_delta_gradients(const DeltaDecays& decays, std::int64_t rows, std::int64_t values, float* r,
                           float* d);

/// to [rows][n] += lower · from. `lower` is [rows][64] with zeros above the diagonal.
void add_lower(const float* lower, const float* from, std::int64_t rows, std::int64_t n, float* to);
/// to [rows][n] += lowerᵀ · from
void add_lower_transposed(const float* lower, const float* from, std::int64_t rows, std::int64_t n,
                          float* to);
/// to[i][j] = a_i·b_j for j <= i. Some elements above the diagonal are written, too. a is [rows][lda], and
/// b_transposed is [dim][64].
void lower_dots(const float* a, std::int64_t lda, const float* b_transposed, std::int64_t dim,
                std::int64_t rows, float* to);

/// to[c * to_ld + r] = from[r * cols + c]; rows and cols are multiples of 16.
void transpose_delta(const float* from, std::int64_t rows, std::int64_t cols, float* to, std::int64_t to_ld);
/// Multiplies row i of x [rows][n] by factors[i] * sign.
void scale_delta_rows(const float* factors, float sign, std::int64_t rows, std::int64_t n, float* x);
/// Adds factors[i] * sign times row i of x to row i of `to`.
void add_delta_rows(const float* factors, float sign, const float* x, std::int64_t rows, std::int64_t n,
                    float* to);

/// Returns state `number` (see delta_states()) of a value head in an array of states.
template <typename T>
T* delta_state_at(T* states, const DeltaHeads& heads, std::int64_t number, std::int64_t value_head) {
  return states + (number * heads.value_heads + value_head) * heads.key_dim * heads.value_dim;
}

/// Checks that documents are in order and end inside the tokens.
void check_delta_documents(const Documents& documents);
/// Returns the first token after the last document.
std::int64_t end_of_documents(const Documents& documents);

/// Returns the number of threads with `each` bytes of scratch that the workspace has room for, at least 1.
int delta_threads(const Workspace& workspace, std::size_t each);
/// Bytes of scratch of a thread.
std::size_t delta_forward_bytes(const DeltaHeads& heads);
std::size_t delta_backward_bytes(const DeltaHeads& heads);

}  // namespace octet::ops::cpu
