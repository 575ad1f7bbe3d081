// Measures collectives between the ranks of an mpirun: seconds per call, bytes per second and rank, the
// latency of a barrier, and the share of a core that an idle rank uses. Run: launch/mpirun -np 4 comm_bench
// `comm_bench allreduce MIB...`: all-reduce of MIB MiB of fp32 in each wire format, also hierarchically if
// several nodes have several ranks; medians of 5.
// `comm_bench mpi`: the same rows with MPI's collectives, if MPI has them.
// `comm_bench gpu [auto|peer|nccl|host]`: between GPUs; medians of 5 rounds of many calls, timed with device
// events. If a call is shorter than its enqueueing, the time is that of the enqueueing. If the stream was
// full, the host waited for the device.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm_bench.h"
#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cpu.h"

namespace octet::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

using comm::Collectives;
using comm::Wire;

// One sum on all ranks, as stage 0 makes it.
double all_reduce_seconds(Collectives& world, std::vector<float>& values, Wire wire, bool hierarchical) {
  const std::int64_t count = static_cast<std::int64_t>(values.size()) / world.size();
  Stream& stream = world.reduce_stream();
  std::vector<double> seconds;
  for (int round = 0; round < 6; ++round) {
    world.channel().barrier();
    const auto start = Clock::now();
    world.reduce_scatter(stream, {.name = "bench",
                                  .from = values.data(),
                                  .to = values.data() + world.rank() * count,
                                  .count = count,
                                  .wire = wire,
                                  .hierarchical = hierarchical});
    world.all_gather_values(stream, {.name = "bench",
                                     .buffer = values.data(),
                                     .count = count,
                                     .wire = wire,
                                     .hierarchical = hierarchical});
    stream.synchronize();
    world.channel().barrier();
    if (round > 0) seconds.push_back(seconds_since(start));
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

void measure_all_reduce(Collectives& world, std::int64_t mib) {
  const std::int64_t slice = (mib << 18) / world.size() / 128 * 128;
  std::vector<float> values(static_cast<std::size_t>(slice * world.size()));
  const auto& place = world.place();
  double of_bf16 = 0;
  for (const bool hierarchical : {false, true}) {
    if (hierarchical && (place.nodes == 1 || place.nodes == place.size)) break;
    for (const auto& [name, wire] : {std::pair{"f32", Wire::f32}, std::pair{"bf16", Wire::bf16},
                                     std::pair{"fp8", Wire::fp8}, std::pair{"int8", Wire::int8}}) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i % 1009) * 1e-3f;
      world.take_traffic();
      const double seconds = all_reduce_seconds(world, values, wire, hierarchical);
      double bytes = 0, between = 0;
      for (const auto& kind : world.take_traffic()) {
        if (kind.kind == "control") continue;
        bytes += static_cast<double>(kind.bytes_sent) / 6,
            between += static_cast<double>(kind.bytes_between_nodes) / 6;
      }
      if (wire == Wire::bf16 && !hierarchical) of_bf16 = seconds;
      if (world.rank() != 0) continue;
      std::printf("%4ld MiB %-5s %-8s %8.3f s  %8.1f MB sent, %8.1f between nodes  %5.2f x bf16\n",
                  static_cast<long>(mib), name, hierarchical ? "by nodes" : "", seconds, bytes * 1e-6,
                  between * 1e-6, of_bf16 > 0 ? of_bf16 / seconds : 0.0);
      std::fflush(stdout);
    }
  }
}

int measure_cpus(const std::vector<std::string>& arguments) {
  const auto device = make_cpu_device({.threads = 1});
  const auto job = comm::make_job();
  const auto all =
      job->collectives(comm::Mesh(job->size()).group("data", job->rank()), *device, comm::Carrier::automatic);
  auto& world = *all;
  if (arguments.size() > 1 && arguments[0] == "allreduce") {
    for (std::size_t i = 1; i < arguments.size(); ++i) measure_all_reduce(world, std::stol(arguments[i]));
    return 0;
  }
  const Ranks ranks{
      .rank = world.rank(), .size = world.size(), .barrier = [&] { world.channel().barrier(); }};
  const std::int64_t size = world.size();
  for (const std::int64_t count : kSlices) {
    const int rounds = rounds_of(count);
    std::vector<float> from(static_cast<std::size_t>(size * count), 1.0f);
    float* own = from.data() + world.rank() * count;
    if (world.rank() == 0) std::printf("slices of %ld elements\n", static_cast<long>(count));
    for (const auto& [name, wire, bytes] : {std::tuple{"reduce_scatter f32", Wire::f32, 4.0},
                                            std::tuple{"reduce_scatter bf16", Wire::bf16, 2.0},
                                            std::tuple{"reduce_scatter fp8", Wire::fp8, 1.03},
                                            std::tuple{"reduce_scatter int8", Wire::int8, 1.03}}) {
      report(ranks, name, bytes * static_cast<double>(count * (size - 1)), rounds, [&] {
        world.reduce_scatter(world.reduce_stream(),
                             {.from = from.data(), .to = own, .count = count, .wire = wire});
        world.reduce_stream().synchronize();
      });
    }
    const double bytes = 4.0 * static_cast<double>(count * (size - 1));
    report(ranks, "all_gather", bytes, rounds, [&] {
      world.all_gather(world.gather_stream(), {.buffer = from.data(), .bytes = 4 * count});
      world.gather_stream().synchronize();
    });
    std::ranges::fill(from, 0.0f);  // sums of sums would not stay finite
    const auto all_reduce = [&](bool hierarchical) {
      Stream& stream = world.reduce_stream();
      world.reduce_scatter(stream,
                           {.from = from.data(), .to = own, .count = count, .hierarchical = hierarchical});
      world.all_gather(stream, {.buffer = from.data(), .bytes = 4 * count, .hierarchical = hierarchical});
      stream.synchronize();
    };
    report(ranks, "all_reduce f32", 2 * bytes, rounds, [&] { all_reduce(false); });
    const auto& place = world.place();
    if (place.nodes == 1 || place.nodes == place.size) continue;
    report(ranks, "reduce_scatter by nodes", bytes, rounds, [&] {
      world.reduce_scatter(world.reduce_stream(),
                           {.from = from.data(), .to = own, .count = count, .hierarchical = true});
      world.reduce_stream().synchronize();
    });
    report(ranks, "all_gather by nodes", bytes, rounds, [&] {
      world.all_gather(world.gather_stream(),
                       {.buffer = from.data(), .bytes = 4 * count, .hierarchical = true});
      world.gather_stream().synchronize();
    });
    report(ranks, "all_reduce by nodes", 2 * bytes, rounds, [&] { all_reduce(true); });
  }
  std::vector<std::int64_t> integers(kEndOfStepIntegers);
  std::vector<double> doubles(kEndOfStepDoubles);
  report(ranks, "end of a step", 0, 200, [&] {
    Stream& stream = world.reduce_stream();
    world.all_reduce_sums(stream, "bench", integers.data(), kEndOfStepIntegers, doubles.data(),
                          kEndOfStepDoubles);
    stream.synchronize();
  });
  report(ranks, "barrier", 0, 200, [&] { world.channel().barrier(); });
  report(ranks, "idle second", 0, 5, [] { std::this_thread::sleep_for(std::chrono::seconds(1)); });
  auto event = device->make_event();
  auto later = device->make_stream({.name = "later", .mode = StreamOptions::Mode::worker});
  report(ranks, "gather waits 0.1 s", 0, 5, [&] {
    cpu::enqueue(*later, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    later->record(*event);
    world.gather_stream().wait(*event);
    world.all_reduce_max(world.gather_stream(), "nothing", nullptr, 0);
    world.gather_stream().synchronize();
  });
  return 0;
}

}  // namespace

void report(const Ranks& ranks, const char* name, double bytes, int rounds,
            const std::function<void()>& once) {
  once();
  ranks.barrier();
  constexpr int parts = 5;
  std::vector<double> taken;
  const double cpu = cpu_seconds();
  const auto begun = Clock::now();
  for (int part = 0; part < parts; ++part) {
    const auto start = Clock::now();
    for (int i = 0; i < rounds / parts; ++i) once();
    taken.push_back(seconds_since(start) / (rounds / parts));
  }
  const double core = (cpu_seconds() - cpu) / seconds_since(begun);
  std::ranges::sort(taken);
  const double seconds = taken[parts / 2];
  if (ranks.rank == 0) {
    std::printf("%-24s %10.4f ms  %8.3f GB/s sent  %.2f cores\n", name, seconds * 1e3, bytes / seconds * 1e-9,
                core);
  }
}

}  // namespace octet::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "" : arguments[0];
  try {
    if (what == "mpi") return octet::bench::measure_mpi();
    if (what == "gpu") return octet::bench::measure_gpus(arguments.size() > 1 ? arguments[1] : "auto");
    return octet::bench::measure_cpus(arguments);
  } catch (const octet::Error& error) {
    if (!error.problem().what.empty()) std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
