// A GEMM of very few tokens together with the small ops in front of it and behind it, as one kernel. With so
// few tokens the weight's bytes are all that counts, and a chain of small kernels would cost as much again.
#pragma once

#include "octet/ops/gated_activation.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// The most tokens of such a GEMM.
inline constexpr std::int64_t kLoneTokens = 4;

/// y = f(norm(x) · Wᵀ + bias), then what `end` says.
struct LoneGemmArgs {
  /// [out, in], dense: bf16, or E4M3 with scales of whole rows; then x becomes E4M3 as well, with a scale for
  /// each token.
  Operand weight;
  ConstMatrix x;  ///< [tokens, in] bf16
  /// In front: the root-mean-square norm of RmsNormArgs, whose result is rounded to bf16. No weight: none.
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
  Activation activation = Activation::silu;  ///< gated
  Heads heads;                               ///< rotated, with what RopeArgs has of the same names
  const std::int32_t* positions = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  ConstMatrix addend;  ///< plain: [tokens, out] bf16 that is added to the rounded product; no data: none
  Matrix y;            ///< [tokens, out], or of gated [tokens, out / 2], bf16; apart from x and the addend
};

/// Whether lone_gemm takes this: a GPU and shapes that its kernel is made for. A CPU does only where the
/// environment says OCTETRUN_LONE_GEMM=always (tests: it has no gain of it).
bool has_lone_gemm(const Device& device, const LoneGemmArgs& args);

/// Enqueues what has_lone_gemm() has said yes to. The bits are those of rms_norm, block_quantize, gemm, rope,
/// gated_activation one after the other where gemm has a kernel of the same sums: on a CPU, and on a GPU with
/// E4M3; with bf16 a GPU sums in another order than the library.
void lone_gemm(Stream& stream, const LoneGemmArgs& args);

}  // namespace octet::ops
