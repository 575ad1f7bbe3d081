// Who carries the bytes of collectives, and who sums what reductions bring.
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

/// Who sums what reductions bring, where values travel as they lie and no order of sums is asked for.
enum class Sums {
  ordered,    ///< kernels of ours, in rank order: the same bits whoever carries
  automatic,  ///< NCCL, where it carries reductions of fp32 anyway; else ordered
  nccl        ///< NCCL, in an order of its own; sums of bf16 are rounded to bf16 at every rank that they pass
};

/// How collectives between GPUs are made.
struct Carrying {
  Carrying(Carrier who_carries = Carrier::automatic, Sums who_sums = Sums::ordered)
      : carrier(who_carries), sums(who_sums) {}
  Carrier carrier;
  Sums sums;
};

}  // namespace octet::comm
