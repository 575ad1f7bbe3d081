// Collectives among the ranks of an mpirun: seconds a call, bytes that one rank sends a second, the latency
// of a barrier, and the share of a core that an idle rank takes. Run as launch/mpirun -np 4 comm_bench.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "octet/comm/communicator.h"
#include "octet/device/cpu.h"

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

void report(octet::comm::Communicator& world, const char* name, double bytes,
            const std::function<void()>& once) {
  once();
  world.barrier();
  constexpr int rounds = 10;
  const double cpu = cpu_seconds();
  const auto start = Clock::now();
  for (int i = 0; i < rounds; ++i) once();
  const double seconds = seconds_since(start) / rounds;
  const double core = (cpu_seconds() - cpu) / rounds / seconds;
  if (world.rank() == 0) {
    std::printf("%-24s %10.3f ms  %8.3f GB/s sent  %.2f cores\n", name, seconds * 1e3, bytes / seconds * 1e-9,
                core);
  }
}

}  // namespace

int main() {
  using octet::comm::Wire;
  const auto device = octet::make_cpu_device({.threads = 1});
  const auto communicator = octet::comm::make_communicator(*device);
  auto& world = *communicator;
  const std::int64_t size = world.size();
  for (const std::int64_t count : {std::int64_t{1} << 10, std::int64_t{1} << 16, std::int64_t{1} << 21}) {
    std::vector<float> from(static_cast<std::size_t>(size * count), 1.0f);
    float* own = from.data() + world.rank() * count;
    if (world.rank() == 0) std::printf("slices of %ld elements\n", static_cast<long>(count));
    for (const auto& [name, wire, bytes] : {std::tuple{"reduce_scatter f32", Wire::f32, 4.0},
                                            std::tuple{"reduce_scatter bf16", Wire::bf16, 2.0},
                                            std::tuple{"reduce_scatter fp8", Wire::fp8, 1.03},
                                            std::tuple{"reduce_scatter int8", Wire::int8, 1.03}}) {
      report(world, name, bytes * static_cast<double>(count * (size - 1)), [&] {
        world.reduce_scatter(world.reduce_stream(),
                             {.from = from.data(), .to = own, .count = count, .wire = wire});
        world.reduce_stream().synchronize();
      });
    }
    report(world, "all_gather", 4.0 * static_cast<double>(count * (size - 1)), [&] {
      world.all_gather(world.gather_stream(), {.buffer = from.data(), .bytes = 4 * count});
      world.gather_stream().synchronize();
    });
  }
  report(world, "barrier", 0, [&] { world.barrier(); });
  report(world, "idle second", 0, [] { std::this_thread::sleep_for(std::chrono::seconds(1)); });
  auto event = device->make_event();
  auto later = device->make_stream({.name = "later", .mode = octet::StreamOptions::Mode::worker});
  report(world, "gather waits 0.1 s", 0, [&] {
    octet::cpu::enqueue(*later, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    later->record(*event);
    world.gather_stream().wait(*event);
    world.all_reduce_max(world.gather_stream(), "nothing", nullptr, 0);
    world.gather_stream().synchronize();
  });
}
