// Shared parts of comm_bench.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"

namespace octet::bench {

/// Ranks on CPUs that call collectives in step, over any transport.
struct Ranks {
  int rank = 0;
  int size = 1;
  std::function<void()> barrier;
};

/// Elements of a slice.
inline constexpr std::int64_t kSlices[] = {1 << 10, 1 << 16, 1 << 21};
/// Short calls are repeated more often.
inline int rounds_of(std::int64_t slice) {
  return slice <= 1 << 10 ? 200 : 10;
}
/// Integers and doubles that ranks sum at the end of a step.
inline constexpr std::int64_t kEndOfStepIntegers = 200, kEndOfStepDoubles = 2;

/// A row, on rank 0: what `once` takes, the median of 5 means over `rounds` / 5. `bytes`: that a rank sends
/// in it.
void report(const Ranks& ranks, const char* name, double bytes, int rounds,
            const std::function<void()>& once);

/// comm_bench mpi: the sums and gathers of MPI itself. Initialises MPI, so there is no job.
int measure_mpi();

/// comm_bench gpu: makes the device and the collectives of this rank. `carrier`: auto, peer, nccl or host.
int measure_gpus(const std::string& carrier);
/// Its rows. `arena` is the device's and outlives the collectives; `largest`: bytes of the largest slice.
void measure_on_device(comm::Collectives& world, Arena& arena, std::size_t largest);

}  // namespace octet::bench
