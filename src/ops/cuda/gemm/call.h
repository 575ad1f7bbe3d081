// One cuBLASLt GEMM: its descriptors, its candidate algorithms, and its execution. The library is loaded when
// the first GEMM is described, so that programs start without it.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gemm/library.h"

namespace octet::ops::cuda {

/// Creates a handle of the library. Throws Error if the library is missing or does not start.
cublasLtHandle_t start_library();

/// Throws Error with a description of the GEMM unless the library call succeeded.
void require(cublasStatus_t status, const char* what, const LibraryGemm& p);

/// Returns the version of the library, which determines its algorithms.
std::size_t library_version();

/// Returns the tile id of an algorithm.
std::uint32_t tile_of(const cublasLtMatmulAlgo_t& algorithm);

/// Returns texts for messages: shape and types of a GEMM, and the distinguishing settings of an algorithm.
std::string shown(const LibraryGemm& p);
std::string shown(const cublasLtMatmulAlgo_t& algorithm);

/// Maximum assumed alignment of arrays for GEMMs with a fixed summation order. The choice of an algorithm
/// then does not depend on addresses.
inline constexpr std::uint32_t kOrderAlignment = 16;

/// Descriptors of one GEMM. cuBLASLt is column-major: its D is our D transposed, and its A is our B.
class Call {
 public:
  explicit Call(const LibraryGemm& p);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Returns the proposals of the library, the best first. Throws Error if there are none and the GEMM may
  /// not be refused.
  std::vector<cublasLtMatmulAlgo_t> proposals(cublasLtHandle_t handle) const;
  /// Returns the proposals that sum over k in one sequence and need at most kOrderAlignment. May be empty.
  std::vector<cublasLtMatmulAlgo_t> proposals_in_order(cublasLtHandle_t handle) const;
  /// Returns variants of a proposal that the library accepts but does not propose. They use the tiles that
  /// fill the multiprocessors best.
  std::vector<cublasLtMatmulAlgo_t> variants(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& of,
                                             int multiprocessors) const;
  /// True if the library accepts the algorithm with the available workspace.
  bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;
  /// Enqueues the GEMM with an algorithm.
  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                     cudaStream_t stream) const;

 private:
  std::vector<cublasLtMatmulAlgo_t> proposals(cublasLtHandle_t handle, std::uint32_t reductions,
                                              std::uint32_t most_alignment) const;
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value);
  void layout(cublasLtMatrixLayout_t& to, DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld);

  const LibraryGemm& p_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

/// Returns the largest power of two up to 256 that divides an address.
std::uint32_t alignment(const void* address);

}  // namespace octet::ops::cuda
