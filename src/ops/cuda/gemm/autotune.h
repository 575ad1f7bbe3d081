// Finds the fastest cuBLASLt algorithm for a GEMM by timing.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/gemm/call.h"

namespace octet::ops::cuda {

/// Times the candidate algorithms for `p` and returns the fastest. Returns nothing if the library refuses all
/// and the GEMM may be refused. Writes D many times, each time with the whole result, and waits for the
/// stream. For large GEMMs it may take some seconds: there are more candidates, and they are timed while the
/// GPU is at its power limit, as in training.
std::optional<cublasLtMatmulAlgo_t> fastest_algorithm(const Call& call, cublasLtHandle_t handle,
                                                      cudaStream_t stream, const LibraryGemm& p,
                                                      int multiprocessors);

/// True if fastest_algorithm() takes a second or more.
bool takes_long(const LibraryGemm& p);

/// True if the library accepts an algorithm from an earlier process, and its result agrees with the result of
/// the library's first proposal. Writes all of D and waits for the stream.
bool agrees_with_favourite(const Call& call, cublasLtHandle_t handle, cudaStream_t stream,
                           const LibraryGemm& p, const cublasLtMatmulAlgo_t& algorithm);

}  // namespace octet::ops::cuda
