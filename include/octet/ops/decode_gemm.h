// GEMMs of very few tokens, fused with the small ops around them into one kernel, alone or as a chain.
#pragma once

#include <span>

#include "octet/ops/gated_activation.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// The maximum number of tokens of decode_gemm.
inline constexpr std::int64_t kDecodeTokens = 4;

/// y = f(norm(x) · Wᵀ + bias), with f selected by `end`.
struct DecodeGemmArgs {
  /// [out, in], dense: bf16, or E4M3 with scales of whole rows. With E4M3, x is also converted to E4M3, with
  /// one scale per token.
  Operand weight;
  ConstMatrix x;  ///< [tokens, in] bf16
  /// Optional norm of x before the GEMM: the root-mean-square norm of RmsNormArgs, rounded to bf16. Null: no
  /// norm.
  const float* norm_weight = nullptr;  ///< [in] f32
  float eps = 0.0f;
  bool one_plus_weight = false;
  const float* bias = nullptr;  ///< [out] f32, or null
  enum class End {
    plain,
    gated,   ///< gate and up (GatedActivationArgs): y has half as many columns
    rotated  ///< queries, keys and values (RopeArgs)
  };
  End end = End::plain;
  Activation activation = Activation::silu;  ///< for `gated`
  Heads heads;  ///< for `rotated`; this field and the next three are like in RopeArgs
  const std::int32_t* positions = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  ConstMatrix addend;  ///< for `plain`: [tokens, out] bf16, added to the rounded product; no data: none
  Matrix y;            ///< [tokens, out], for `gated` [tokens, out / 2], bf16; overlaps neither x nor addend
};

/// True if decode_gemm supports these arguments: on a GPU, if its kernel supports the shapes. On a CPU, only
/// if OCTETRUN_LONE_GEMM=always is set (for tests; a CPU gains nothing). Not for Activation::clamped.
bool has_decode_gemm(const Device& device, const DecodeGemmArgs& args);

/// Enqueues the GEMM. Requires has_decode_gemm(). The bits are equal to calls of rms_norm, block_quantize,
/// gemm, rope and gated_activation one after the other if gemm has a kernel with the same sums. This is the
/// case on a CPU, and on a GPU with E4M3. With bf16, a GPU sums in another order than the library.
void decode_gemm(Stream& stream, const DecodeGemmArgs& args);

// Several GEMMs of one token as one kernel. Each GEMM reads the output of the previous GEMM. Between separate
// kernels, GPU memory is idle while the last blocks of one kernel end and the blocks of the next wait for
// their token. A kernel of all GEMMs loads the next weights in this time.

/// The maximum number of GEMMs of a chain: attention output, gate and up, down, and the queries, keys and
/// values of the next block.
inline constexpr std::size_t kDecodeChain = 4;

/// True if decode_chain supports these GEMMs. It needs at least two GEMMs, each supported by
/// has_decode_gemm(), and each reads as x the y of the previous one. A GPU must be of the Hopper generation,
/// with weights in E4M3, one token, and shapes that are multiples of its tiles. Only the last GEMM may be
/// `rotated`. A CPU supports a chain if it has GEMMs of few tokens.
bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms);

/// Enqueues the chain. Requires has_decode_chain(). Each GEMM may overwrite inputs of earlier GEMMs. On a
/// CPU, the bits are equal to consecutive calls of decode_gemm(). On a GPU, the order of sums differs. Tensor
/// cores keep about 14 bits of a sum of 32 products; sums of these are in full fp32.
void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms);

}  // namespace octet::ops
