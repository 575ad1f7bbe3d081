#pragma once

#include <string>

#include "octet/ops/types.h"

namespace octet::ops {

/// The three products of a linear layer with weight W [out, in]:
///   forward  D[a.rows, b.rows] = A · Bᵀ   (Y = X · Wᵀ)
///   dgrad    D[a.rows, b.cols] = A · B    (dX = dY · W)
///   wgrad    D[a.cols, b.cols] = Aᵀ · B   (dW = dYᵀ · X)
enum class Product { forward, dgrad, wgrad };

struct GemmArgs {
  Product product = Product::forward;
  Operand a;
  Operand b;
  Matrix d;                 ///< f32 or bf16
  bool accumulate = false;  ///< D += instead of D =
  float factor = 1.0f;      ///< the product is multiplied by it before anything is added; not of FP8 operands
  /// Elements from one row of A, and of B, to the next, where it is a run of columns of a wider matrix; 0:
  /// dense. Not of FP8.
  std::int64_t a_ld = 0;
  std::int64_t b_ld = 0;
  /// Added to the product: of D's shape, dtype and ld, apart from D; not with `accumulate`. No data: nothing
  /// is added. The CPU rounds the product to D's dtype before, so that D has the bits of a sum made
  /// afterwards; a GPU may round once.
  ConstMatrix addend;
  const float* bias = nullptr;  ///< [d.cols] f32, added to each row; forward only
  /// Forward: B is a weight that no work enqueued before still writes, as in decoding. A GPU may then read it
  /// before what is in front of this product has ended.
  bool b_stands = false;
  /// The bits of D depend on shapes and values alone, on a CPU not on the number of threads. Forward, each
  /// row of D is summed in an order that its own length and that of D's rows decide: whatever rows stand
  /// beside it, and however many (on a GPU with f32 and bf16 operands; FP8 there takes any order). On a CPU D
  /// is made in pieces, each by one thread; costs more than leaving it to the library.
  bool fixed_order = false;
  /// FP8 with scales of whole tensors, multiplied as FP8 on a GPU: partial sums keep about 14 bits and do not
  /// go to fp32, which is faster. Without effect elsewhere: the CPU sums in fp32, and of scales of blocks the
  /// library decides.
  bool fast_accumulation = false;
  Workspace workspace;  ///< at least gemm_workspace(args) bytes
};

/// How the operands of a product were multiplied.
enum class GemmWay : std::uint8_t {
  none,      ///< not at all: D or the inner dimension is empty, or the device is dry
  f32,       ///< fp32 operands
  bf16,      ///< bf16 operands
  fp8,       ///< FP8 operands as they lie, by the GPU's units for FP8
  filled,    ///< the same units, from copies: zeros fill up the inner dimension, or they lie on a boundary
  decoded,   ///< FP8 operands of a GPU, decoded into bf16 (exact) and multiplied as bf16, more slowly
  emulated,  ///< FP8 operands on a CPU, which multiplies their values exactly as bf16 or fp32
};

/// What kept FP8 operands of a GPU from being multiplied as they lie; the first of several.
enum class GemmReason : std::uint8_t {
  none,
  no_transposed_copy,  ///< the copy whose rows hold the inner dimension is missing
  rows,                ///< with scales of blocks: the rows of D are no multiple of 4
  columns,             ///< the columns of D are no multiple of 16
  inner,               ///< the inner dimension is no multiple of 16
  leading_dimension,   ///< the rows of D are not 16 bytes, or a multiple of that, apart
  boundary,            ///< an operand or D does not begin on a 16-byte boundary
  scale_boundary,      ///< with scales of blocks: they do not begin on a 16-byte boundary
  refused,             ///< the library has nothing that multiplies these shapes and scales
};

/// What became of a product. The host knows it when the product is enqueued.
struct GemmOutcome {
  GemmWay way = GemmWay::none;
  GemmReason reason = GemmReason::none;
  DType a = DType::f32, b = DType::f32;  ///< of the values that were multiplied: bf16 where FP8 was decoded
  std::int64_t calls = 0;                ///< products of the library; several where copies are made in pieces
  bool operator==(const GemmOutcome&) const = default;
};

/// FP8 operands that were multiplied as FP8, or on a CPU by their exact values.
constexpr bool multiplies_fp8(GemmWay way) {
  return way == GemmWay::fp8 || way == GemmWay::filled || way == GemmWay::emulated;
}
/// "fp8", "decoded", ...
const char* name_of(GemmWay way);
/// "the columns of the result are no multiple of 16"; empty for none.
const char* text_of(GemmReason reason);

/// Enqueues a product and says what becomes of it. Operands are both f32, both bf16, or both FP8 (at most one
/// E5M2); sums in fp32 (see fast_accumulation); FP8 values are multiplied exactly and the sum is scaled by
/// both scale_inv. With scales of blocks (A by rows, B by squares; in wgrad both by rows) each term is scaled
/// by those of its values, and wgrad reads the transposed copies; on a GPU dgrad reads that of B. With scales
/// of whole rows, E4M3 of both and forward alone, the sum is scaled by those of its row of A and its row of
/// B; nothing is accumulated. An inner dimension of zero gives zeros (or leaves D when accumulating). On a
/// GPU f32 operands give an f32 D, and a bf16 D may be rounded twice where something is added to it: the
/// product first, then the sum.
GemmOutcome gemm(Stream& stream, const GemmArgs& args);

/// Bytes of scratch that gemm needs for these shapes and dtypes on the stream's device.
std::size_t gemm_workspace(const Device& device, const GemmArgs& args);

/// True when FP8 products of this device need the transposed copies of operands.
bool gemm_needs_transposed_fp8(const Device& device);

/// What gemm would say, but for a refusal by the library, on this device or on the one that a dry device
/// stands for; nothing is enqueued. An operand without any data counts as having all copies, and it, D and
/// scales without data as lying on boundaries: shapes alone decide, as in a plan.
GemmOutcome gemm_outcome(const Device& device, const GemmArgs& args);

/// Why this device multiplies no FP8 operands; empty where it does, as every CPU, by decoding them. Without a
/// full stop.
std::string why_no_fp8_gemm(const Device& device);

/// What the number of tokens of a micro-batch should be a multiple of: where it is not, FP8 products that sum
/// over tokens copy their operands first. On a GPU 16, or 128 with scales of blocks; 1 where any number is as
/// good.
std::int64_t fp8_token_unit(const Device& device, Scaling scaling);

/// What decides which algorithms are fastest on a GPU, in words: its name, its multiprocessors, the version
/// of the library. Loads the library. Empty on devices where nothing is chosen.
std::string gemm_machine(const Device& device);
/// The algorithms that this process has chosen for the device, or checked, so far: text for
/// learn_autotuned_gemms() of another process whose gemm_machine() says the same. Empty where nothing is
/// chosen.
std::string autotuned_gemms(const Device& device);
/// From now on products of the device use these as if they had been chosen here. Throws Error for other text.
void learn_autotuned_gemms(const Device& device, const std::string& text);
/// Whether algorithms are timed for products that none is known for, as at first. Otherwise they are
/// multiplied as the most similar number of tokens was found to be fastest, else as the library prefers:
/// choosing takes up to seconds, in which other ranks would wait. Without effect where nothing is chosen.
void set_gemm_choosing(const Device& device, bool choosing);

}  // namespace octet::ops
