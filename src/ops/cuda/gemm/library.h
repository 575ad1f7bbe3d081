// The cuBLASLt interface of gemm. The library is loaded when the first GEMM is enqueued, so that programs
// start without it. One algorithm per kind of GEMM is selected once.
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

/// D [m, n] = A · Bᵀ, row-major. A is [m, k] (or [k, m] if not `a_inner`), B is [n, k] (or [k, n] if not
/// `b_inner`). FP8 requires a_inner and b_inner.
struct LibraryGemm {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  std::int64_t a_ld = 0, b_ld = 0, d_ld = 0;
  bool a_inner = true, b_inner = true;
  DType a_type = DType::f32, b_type = DType::f32, d_type = DType::f32;
  bool accumulate = false;
  float factor = 1.0f;           ///< multiplies the product; not with `factors`
  const void* addend = nullptr;  ///< added to the product: layout of D, no overlap; not with `accumulate`
  bool sums_tokens = false;      ///< k counts tokens (weight gradients), otherwise m does
  /// FP8: partial sums keep fewer bits (about 14 on Hopper's tensor cores).
  bool fast_accumulation = false;
  const float* a_scale = nullptr;  ///< FP8: device scalar with 16-byte alignment, or block scales
  const float* b_scale = nullptr;
  Scaling a_scaling = Scaling::tensor, b_scaling = Scaling::tensor;
  /// The algorithm may be chosen by timing. If false, it is the first proposal of the library for the exact
  /// shape.
  bool timed = true;
  /// The summation order of a row of D does not depend on m: one algorithm for all m, which does not split k.
  bool one_order = false;
  /// The caller has a fallback if the library refuses the GEMM.
  bool may_be_refused = false;
  const float* factors = nullptr;  ///< device: factors of the product and of D; null: 1 and accumulate
  const void* bias = nullptr;      ///< [n] bf16, added to each row of a bf16 D
  void* workspace = nullptr;       ///< kLibraryWorkspace bytes
};

/// Enqueues the GEMM. Throws Error if the library is missing, or if it has no algorithm. If the GEMM may be
/// refused and there is no algorithm, returns false and enqueues nothing.
bool multiply(cudaStream_t stream, int device, const LibraryGemm& library_gemm);

/// True if the stream is being captured. Nothing runs then, so nothing can be timed or tried.
bool capturing(cudaStream_t stream);

// --- for faster methods of GEMMs with a fixed summation order (in_order.h) ---

/// Enqueues the GEMM with the algorithm of `like`, a GEMM with a fixed summation order. Returns false if the
/// library refuses it.
bool multiply_in_order_of(cudaStream_t stream, int device, const LibraryGemm& like,
                          const LibraryGemm& library_gemm);
/// Returns the proposals of the library for a GEMM with a fixed summation order and exactly this number of
/// rows.
std::vector<AlgorithmBits> proposals_in_order(int device, const LibraryGemm& library_gemm);
/// Enqueues the GEMM with a given algorithm. Returns false if the library refuses it.
bool multiply_by(cudaStream_t stream, int device, const LibraryGemm& library_gemm,
                 const AlgorithmBits& algorithm);

// Contracts in octet/ops/gemm.h.
std::string gemm_machine(const Device& device);
std::string autotuned_gemms(const Device& device);
void learn_autotuned_gemms(const Device& device, const std::string& text);

}  // namespace octet::ops::cuda
