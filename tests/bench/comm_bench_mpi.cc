// MPI's collectives under the names and sizes of ours. Their order of sums and messages may differ.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "comm_bench.h"

namespace octet::bench {

int measure_mpi() {
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  Ranks ranks{.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); }};
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks.size);
  const auto finish = [](MPI_Request& request) { MPI_Wait(&request, MPI_STATUS_IGNORE); };
  const std::int64_t size = ranks.size;
  for (const std::int64_t count : kSlices) {
    std::vector<float> values(static_cast<std::size_t>(size * count));
    std::vector<float> own(static_cast<std::size_t>(count));
    const double bytes = 4.0 * static_cast<double>(count * (size - 1));
    const int slice = static_cast<int>(count), rounds = rounds_of(count);
    MPI_Request request = MPI_REQUEST_NULL;
    if (ranks.rank == 0) std::printf("slices of %ld elements, by MPI\n", static_cast<long>(count));
    const auto reduce_scatter = [&] {
      MPI_Ireduce_scatter_block(values.data(), own.data(), slice, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                                &request);
      finish(request);
    };
    const auto all_gather = [&] {
      MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), slice, MPI_FLOAT, MPI_COMM_WORLD,
                     &request);
      finish(request);
    };
    const auto all_reduce = [&] {
      MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(size * count), MPI_FLOAT, MPI_SUM,
                     MPI_COMM_WORLD, &request);
      finish(request);
    };
    report(ranks, "reduce_scatter f32", bytes, rounds, reduce_scatter);
    report(ranks, "all_gather", bytes, rounds, all_gather);
    report(ranks, "all_reduce f32", 2 * bytes, rounds, all_reduce);
  }
  std::vector<std::int64_t> integers(kEndOfStepIntegers);
  std::vector<double> doubles(kEndOfStepDoubles);
  const auto end_of_step = [&] {
    std::array<MPI_Request, 2> both{};
    MPI_Iallreduce(MPI_IN_PLACE, integers.data(), static_cast<int>(integers.size()), MPI_INT64_T, MPI_SUM,
                   MPI_COMM_WORLD, &both[0]);
    MPI_Iallreduce(MPI_IN_PLACE, doubles.data(), static_cast<int>(doubles.size()), MPI_DOUBLE, MPI_SUM,
                   MPI_COMM_WORLD, &both[1]);
    MPI_Waitall(2, both.data(), MPI_STATUSES_IGNORE);
  };
  report(ranks, "end of a step", 0, 200, end_of_step);
  report(ranks, "barrier", 0, 200, ranks.barrier);
  MPI_Finalize();
  return 0;
}

}  // namespace octet::bench
