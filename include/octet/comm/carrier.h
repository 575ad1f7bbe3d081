// Who carries the bytes of collectives.
#pragma once

namespace octet::comm {

/// Who carries the bytes of collectives. The bits of all results are the same.
enum class Carrier {
  messages,   ///< MPI's, from and to memory of the host: ranks on CPUs
  automatic,  ///< the fastest of the following that works
  peer,       ///< copies into the memory of another rank of the same host
  nccl,       ///< NCCL's sends and receives
  host        ///< pinned memory of the host and messages from there
};

}  // namespace octet::comm
