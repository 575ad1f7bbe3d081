// The fastest algorithm for a product of cuBLASLt, found by timing.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/gemm/call.h"

namespace octet::ops::cuda {

/// Times the algorithms that may multiply `p` and returns the fastest; nothing where the library refuses all
/// and the product may be refused. Writes D many times, each time with the whole product, and waits for the
/// stream. A product of many operations is worth some seconds: its candidates are more, and they are timed on
/// a card that is at its power limit, as it is in training.
std::optional<cublasLtMatmulAlgo_t> fastest_algorithm(const Call& call, cublasLtHandle_t handle,
                                                      cudaStream_t stream, const LibraryProduct& p,
                                                      int multiprocessors);

/// Whether that takes a second or more.
bool takes_long(const LibraryProduct& p);

/// Whether the library accepts an algorithm that was chosen another day, and its product is that of the
/// library's favourite. Writes D, whole, and waits for the stream.
bool agrees_with_favourite(const Call& call, cublasLtHandle_t handle, cudaStream_t stream,
                           const LibraryProduct& p, const cublasLtMatmulAlgo_t& algorithm);

}  // namespace octet::ops::cuda
