#pragma once

#include <string>

#include "octet/ops/types.h"

namespace octet::ops {

/// The three GEMMs of a linear layer with weight W [out, in]:
///   forward  D[a.rows, b.rows] = A · Bᵀ   (Y = X · Wᵀ)
///   dgrad    D[a.rows, b.cols] = A · B    (dX = dY · W)
///   wgrad    D[a.cols, b.cols] = Aᵀ · B   (dW = dYᵀ · X)
enum class GemmKind { forward, dgrad, wgrad };

struct GemmArgs {
  GemmKind gemm_kind = GemmKind::forward;
  Operand a;
  Operand b;
  Matrix d;                 ///< f32 or bf16
  bool accumulate = false;  ///< D += instead of D =
  float factor = 1.0f;      ///< multiplies the product before anything is added; must be 1 for FP8 operands
  /// Elements between the starts of two rows of A, and of B, if the operand is a range of columns of a wider
  /// matrix. 0: dense. FP8 operands are always dense.
  std::int64_t a_ld = 0;
  std::int64_t b_ld = 0;
  /// Added to the product. It has the shape, dtype and ld of D, and must not overlap D. Not allowed with
  /// `accumulate`. Null data: nothing is added. The CPU first rounds the product to the dtype of D, so D has
  /// the bits of a separate addition. A GPU may round once.
  ConstMatrix addend;
  const float* bias = nullptr;  ///< [d.cols] f32, added to each row; forward only
  /// Forward: B is a weight, and no work enqueued earlier still writes it, as in decoding. A GPU may then
  /// read B before earlier work on the stream has ended.
  bool b_stands = false;
  /// The bits of D depend only on shapes and values, on a CPU not on the number of threads. In forward, the
  /// summation order of a row of D depends only on the row lengths of A and D. It does not depend on the
  /// other rows or on their number. On a GPU this holds for f32 and bf16 operands; FP8 operands may use any
  /// order. On a CPU, D is computed in pieces, each by one thread, which is slower than the library.
  bool fixed_order = false;
  /// FP8 with one scale per tensor, multiplied as FP8 on a GPU: partial sums keep about 14 bits and are not
  /// promoted to fp32, which is faster. Ignored otherwise: the CPU sums in fp32, and with block scales the
  /// library decides.
  bool fast_accumulation = false;
  Workspace workspace;  ///< at least gemm_workspace(args) bytes
};

/// How the operands of a GEMM were multiplied.
enum class GemmWay : std::uint8_t {
  none,      ///< no multiplication: D or the inner dimension is empty, or the device is dry
  f32,       ///< fp32 operands
  bf16,      ///< bf16 operands
  fp8,       ///< FP8 operands, read in place by the FP8 units of the GPU
  filled,    ///< FP8 units, reading copies that pad the inner dimension with zeros or align the data
  decoded,   ///< FP8 operands of a GPU, decoded to bf16 (exact) and multiplied as bf16, which is slower
  emulated,  ///< FP8 operands on a CPU, multiplied exactly as bf16 or fp32 values
};

/// The first reason why a GPU did not multiply FP8 operands in place.
enum class GemmReason : std::uint8_t {
  none,
  no_transposed_copy,  ///< the copy with the inner dimension along its rows is missing
  rows,                ///< with block scales: the number of rows of D is no multiple of 4
  columns,             ///< the number of columns of D is no multiple of 16
  inner,               ///< the inner dimension is no multiple of 16
  leading_dimension,   ///< the row pitch of D is no multiple of 16 bytes
  boundary,            ///< an operand or D is not aligned to 16 bytes
  scale_boundary,      ///< with block scales: the scales are not aligned to 16 bytes
  refused,             ///< the library has no kernel for these shapes and scales
};

/// The outcome of a GEMM. The host gets it when the GEMM is enqueued.
struct GemmOutcome {
  GemmWay way = GemmWay::none;
  GemmReason reason = GemmReason::none;
  DType a = DType::f32, b = DType::f32;  ///< dtypes of the multiplied values: bf16 if FP8 was decoded
  std::int64_t calls = 0;                ///< library calls; more than one if copies are made in pieces
  bool operator==(const GemmOutcome&) const = default;
};

/// True if FP8 operands were multiplied as FP8, or on a CPU by their exact values.
constexpr bool multiplies_fp8(GemmWay way) {
  return way == GemmWay::fp8 || way == GemmWay::filled || way == GemmWay::emulated;
}
/// Returns a name such as "fp8" or "decoded".
const char* name_of(GemmWay way);
/// Returns a text such as "the columns of the result are no multiple of 16"; empty for GemmReason::none.
const char* text_of(GemmReason reason);

/// Enqueues a GEMM and returns its outcome. Operands are both f32, both bf16, or both FP8 (at most one E5M2).
/// Sums are in fp32 (see fast_accumulation).
///
/// FP8 values are multiplied exactly, and the sum is multiplied by both scale_inv. With block scales (A by
/// rows, B by squares; in wgrad both by rows) each term is multiplied by the scales of its two values. wgrad
/// then reads the transposed copies, and on a GPU dgrad reads the transposed copy of B. With scales of whole
/// rows, both operands are E4M3, only forward is allowed, and nothing is accumulated. The sum is then
/// multiplied by the scale of its row of A and the scale of its row of B.
///
/// An inner dimension of zero gives zeros, or leaves D unchanged when accumulating. On a GPU, f32 operands
/// require an f32 D. A bf16 D with an addition may be rounded twice on a GPU: first the product, then the
/// sum.
GemmOutcome gemm(Stream& stream, const GemmArgs& args);

/// Returns the bytes of scratch that gemm needs for these shapes and dtypes on this device.
std::size_t gemm_workspace(const Device& device, const GemmArgs& args);

/// True if FP8 GEMMs of this device need the transposed copies of operands.
bool gemm_needs_transposed_fp8(const Device& device);

/// Returns the outcome that gemm would return, except for a refusal by the library, and enqueues nothing. A
/// dry device answers for the device that it represents. An operand without data counts as having all copies.
/// Operands, D and scales without data count as aligned. So shapes alone decide, as in a plan.
GemmOutcome gemm_outcome(const Device& device, const GemmArgs& args);

/// Returns the reason why this device has no FP8 GEMM, without a full stop. Empty if it has one. Every CPU
/// has one, because it decodes FP8.
std::string why_no_fp8_gemm(const Device& device);

/// Returns the preferred divisor of the number of tokens of a micro-batch. For other numbers, FP8 GEMMs that
/// sum over tokens first copy their operands. On a GPU it is 16, or 128 with block scales. It is 1 if any
/// number is equally good.
std::int64_t fp8_token_unit(const Device& device, Scaling scaling);

/// Returns a text that identifies everything that determines the fastest algorithms on a GPU: its name, its
/// number of multiprocessors, and the library version. Loads the library. Empty on devices without a choice
/// of algorithms.
std::string gemm_machine(const Device& device);
/// Returns the algorithms that this process has chosen or checked for the device. The text is input for
/// learn_autotuned_gemms() in another process with the same gemm_machine(). Empty if nothing is chosen.
std::string autotuned_gemms(const Device& device);
/// Makes later GEMMs of the device use these algorithms as if this process had chosen them. Throws Error if
/// the text is invalid.
void learn_autotuned_gemms(const Device& device, const std::string& text);
/// Sets whether algorithms are timed for GEMMs without a known choice (the default). If not, a GEMM uses the
/// algorithm of the most similar number of tokens, or else the preference of the library. Timing takes up to
/// seconds, in which other ranks wait. No effect on devices without a choice of algorithms.
void set_gemm_choosing(const Device& device, bool choosing);

}  // namespace octet::ops
