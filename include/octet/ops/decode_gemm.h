// A GEMM of very few tokens, fused with the small ops before and after it into one kernel. With so few
// tokens, the bytes of the weight determine the time, and a chain of small kernels would double it.
#pragma once

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
/// if OCTETRUN_LONE_GEMM=always is set (for tests; a CPU gains nothing).
bool has_decode_gemm(const Device& device, const DecodeGemmArgs& args);

/// Enqueues the GEMM. Requires has_decode_gemm(). The bits are equal to calls of rms_norm, block_quantize,
/// gemm, rope and gated_activation one after the other if gemm has a kernel with the same sums. This is the
/// case on a CPU, and on a GPU with E4M3. With bf16, a GPU sums in another order than the library.
void decode_gemm(Stream& stream, const DecodeGemmArgs& args);

}  // namespace octet::ops
