// One product of cuBLASLt: its descriptors, the algorithms that may multiply it, and its run. The library is
// loaded when the first product is described, so that programs start without it.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gemm/library.h"

namespace octet::ops::cuda {

/// A handle of the library. Throws Error when the library is missing or does not start.
cublasLtHandle_t start_library();

/// Throws Error, naming the product, unless the library succeeded.
void require(cublasStatus_t status, const char* what, const LibraryProduct& p);

/// What its algorithms depend on: its version.
std::size_t library_version();

/// The number of an algorithm's tile.
std::uint32_t tile_of(const cublasLtMatmulAlgo_t& algorithm);

/// For messages: the product's shape and types, and what tells an algorithm from others.
std::string shown(const LibraryProduct& p);
std::string shown(const cublasLtMatmulAlgo_t& algorithm);

/// Algorithms of products in one order are chosen as if arrays lay on no wider boundaries, so that where an
/// array lies does not decide.
inline constexpr std::uint32_t kOrderAlignment = 16;

/// Descriptors of one product. cuBLASLt counts by columns: its D is ours transposed, its A our B.
class Call {
 public:
  explicit Call(const LibraryProduct& p);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// What the library itself proposes, its favourite first. Throws Error if there is none and the product may
  /// not be refused.
  std::vector<cublasLtMatmulAlgo_t> proposals(cublasLtHandle_t handle) const;
  /// The same of those that sum over k in one sequence and need no alignment above kOrderAlignment; none
  /// where there are none.
  std::vector<cublasLtMatmulAlgo_t> proposals_in_order(cublasLtHandle_t handle) const;
  /// Variants of a proposal that the library accepts: with the tiles that fill the multiprocessors best,
  /// which it does not propose by itself.
  std::vector<cublasLtMatmulAlgo_t> variants(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& of,
                                             int multiprocessors) const;
  /// Whether the library would multiply with it, in the workspace there is.
  bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;
  /// Enqueues the product with one of them.
  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                     cudaStream_t stream) const;

 private:
  std::vector<cublasLtMatmulAlgo_t> proposals(cublasLtHandle_t handle, std::uint32_t reductions,
                                              std::uint32_t most_alignment) const;
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value);
  void layout(cublasLtMatrixLayout_t& to, DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld);

  const LibraryProduct& p_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

/// The largest power of two up to 256 that divides an address.
std::uint32_t alignment(const void* address);

}  // namespace octet::ops::cuda
