#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/peer_access.h"

namespace octet::comm {

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
