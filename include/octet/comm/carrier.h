// Carriers of the bytes of collectives, and the choice of who computes sums.
#pragma once

namespace octet::comm {

/// Moves the bytes of collectives. All carriers give bitwise equal results.
enum class Carrier {
  messages,   ///< MPI's, from and to memory of the host: ranks on CPUs
  automatic,  ///< the fastest of the following that works
  peer,       ///< copies into the memory of another rank of the same host
  nccl,       ///< NCCL's sends and receives
  host        ///< pinned memory of the host and messages from there
};

/// Computes the sums of reductions, if values are sent unconverted and no order of sums is requested.
enum class Sums {
  ordered,    ///< our kernels, in rank order: the same bits with every carrier
  automatic,  ///< NCCL, if it carries reductions of fp32 anyway; else ordered
  nccl        ///< NCCL, in its unspecified order; bf16 sums are rounded to bf16 at every rank on their way
};

/// Configures collectives between GPUs.
struct Carrying {
  Carrying(Carrier who_carries = Carrier::automatic, Sums who_sums = Sums::ordered)
      : carrier(who_carries), sums(who_sums) {}
  Carrier carrier;
  Sums sums;
};

}  // namespace octet::comm
