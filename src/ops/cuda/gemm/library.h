// cuBLASLt as gemm uses it: loaded when the first product is enqueued, so that programs start without it; one
// algorithm per kind of product, found once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gemm_autotune_cache.h"
#include "octet/base/dtype.h"
#include "octet/device/device.h"
#include "octet/ops/types.h"

namespace octet::ops::cuda {

/// D [m, n] = A · Bᵀ with rows in memory one behind the other: A is [m, k] (or [k, m] when not `a_inner`), B
/// is [n, k] (or [k, n] when not `b_inner`). FP8 is multiplied only with both inner.
struct LibraryProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  std::int64_t a_ld = 0, b_ld = 0, d_ld = 0;
  bool a_inner = true, b_inner = true;
  DType a_type = DType::f32, b_type = DType::f32, d_type = DType::f32;
  bool accumulate = false;
  float factor = 1.0f;           ///< the product is multiplied by it; not with `factors`
  const void* addend = nullptr;  ///< added to the product: as D, elsewhere; not with `accumulate`
  bool sums_tokens = false;      ///< k counts tokens (weight gradients), else m does
  /// FP8: partial sums keep fewer bits (Hopper's tensor cores sum in about 14).
  bool fast_accumulation = false;
  const float* a_scale = nullptr;  ///< FP8: device scalar on a 16-byte boundary, or those of blocks
  const float* b_scale = nullptr;
  Scaling a_scaling = Scaling::tensor, b_scaling = Scaling::tensor;
  /// The algorithm may be one that was chosen by timing; else it is the library's first for the exact shape.
  bool timed = true;
  /// A row of D is summed in one order, whatever m is: one algorithm for all m, which does not split k.
  bool one_order = false;
  /// The caller has another way for what the library does not multiply.
  bool may_be_refused = false;
  const float* factors =
      nullptr;                 ///< device: what the product and what D is multiplied by; null: 1, accumulate
  const void* bias = nullptr;  ///< [n] bf16, added to each row of a bf16 D
  void* workspace = nullptr;   ///< kLibraryWorkspace bytes
};

/// Enqueues the product. Throws Error when the library is missing or has no algorithm; false, and nothing is
/// enqueued, where it has none and may be refused.
bool multiply(cudaStream_t stream, int device, const LibraryProduct& product);

/// Whether the stream's work is recorded: nothing runs then, so that nothing can be timed or tried.
bool capturing(cudaStream_t stream);

// --- for a faster way of products in one order (in_order.h) ---

/// Enqueues the product with the algorithm that `like`, a product in one order, is multiplied with; false
/// where the library refuses that.
bool multiply_in_order_of(cudaStream_t stream, int device, const LibraryProduct& like,
                          const LibraryProduct& product);
/// What the library proposes for a product in one order, of just this number of rows.
std::vector<AlgorithmBits> proposals_in_order(int device, const LibraryProduct& product);
/// Enqueues the product with one of them; false where the library refuses that.
bool multiply_by(cudaStream_t stream, int device, const LibraryProduct& product,
                 const AlgorithmBits& algorithm);

// Contracts in octet/ops/gemm.h.
std::string gemm_machine(const Device& device);
std::string autotuned_gemms(const Device& device);
void learn_autotuned_gemms(const Device& device, const std::string& text);

}  // namespace octet::ops::cuda
