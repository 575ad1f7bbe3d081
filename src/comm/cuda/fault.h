#pragma once

#include <cuda_runtime_api.h>

namespace octet::comm {

/// Enqueues a kernel that ends with a fault: the GPU's context is of no use from then on.
void enqueue_fault(cudaStream_t stream);

}  // namespace octet::comm
