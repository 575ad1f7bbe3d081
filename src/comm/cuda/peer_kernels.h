// Kernels of peer access: copies of small messages, and a fault for tests.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/peer_access.h"

namespace octet::comm {

/// Enqueues a kernel that ends with a fault: the GPU's context is of no use from then on.
void enqueue_fault(cudaStream_t stream);

/// Arguments of PeerAccess::move(): copies and counter writes.
struct MoveArgs {
  Piece pieces[PeerAccess::most_moved];
  CounterStep then[PeerAccess::most_moved];
  CounterStep first;  ///< without a counter: none
  int piece_count = 0, then_count = 0;
  std::uint32_t* ticket = nullptr;
};

/// Loads the kernel, which would otherwise happen at its first launch.
cudaError_t load_move();
void enqueue_move(cudaStream_t stream, const MoveArgs& args);

}  // namespace octet::comm
