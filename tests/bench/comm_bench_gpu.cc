// Times collectives on device streams with events around many calls, and compares them with plain copies of
// the hardware. Small calls may take longer to enqueue than to run, and a training step enqueues them far
// ahead. So they are timed twice: as fast as the host enqueues them, and after copies that keep the stream
// busy until all calls are enqueued.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm_bench.h"
#include "gpu/peer_access.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/gpus.h"
#include "octet/ops/elementwise.h"
#ifdef OCTET_HAVE_CUDA
#include "cuda/nccl_exchange.h"
#endif

namespace octet::bench {
namespace {

using comm::Carrier;
using comm::Collectives;
using comm::Wire;
using Clock = std::chrono::steady_clock;

// The time of a row: five rounds of 10 ms, fewer if a call takes longer, none if that is too long.
constexpr double seconds_of_round = 0.01;
constexpr double seconds_of_row = 0.05;
constexpr double most_seconds_of_call = 0.4;
constexpr int most_calls = 400;
// The most calls that are enqueued after a copy that holds the stream: a stream takes about a thousand
// operations before the host must wait.
constexpr int most_held_calls = 100;
constexpr double host_bound = 0.5;  ///< of a call's time: enqueueing that the call may have waited for

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Rows {
 public:
  /// `hold` enqueues work of about this many seconds on a stream.
  Rows(Collectives& world, Device& device, std::function<void(Stream&, double)> hold)
      : world_(world),
        device_(device),
        hold_(std::move(hold)),
        begin_(device.make_timed_event()),
        end_(device.make_timed_event()) {
    world.take_times(false);  // the events around whole rounds do
  }

  void title(const std::string& text) const {
    if (world_.rank() != 0) return;
    std::printf("%-32s %12s %12s %14s %14s\n", text.c_str(), "us a call", "GB/s sent", "us to enqueue",
                "us of device");
  }

  /// A row. `slice`: bytes, to foresee what larger ones take; `bytes`: that a rank sends in a call, or none,
  /// where the collectives count them. All ranks call it alike.
  void row(Stream& stream, const std::string& name, std::size_t slice, std::optional<double> bytes,
           const std::function<void()>& once) {
    const auto before = last_.find(name);
    if (before != last_.end()) {
      const auto& [smaller, seconds] = before->second;
      const double foreseen = seconds * static_cast<double>(slice) / static_cast<double>(smaller);
      if (slice > smaller && foreseen > most_seconds_of_call) {
        if (world_.rank() == 0) std::printf("  %-30s takes too long\n", name.c_str());
        return;
      }
    }
    // The first call is for getting used to it: connections, kernels that are loaded.
    round(stream, 1, once);
    const double estimate = agreed(round(stream, 1, once).device);
    const double fitting = seconds_of_round / std::max(estimate, 1e-9);
    const int calls = std::max(1, static_cast<int>(std::min<double>(fitting, most_calls)));
    const int rounds = estimate * 5 <= seconds_of_row ? 5 : estimate * 3 <= seconds_of_row ? 3 : 1;
    world_.take_traffic();
    std::vector<Times> times;
    double sent = 0;
    for (int i = 0; i < rounds; ++i) {
      times.push_back(round(stream, calls, once));
      for (const auto& kind : world_.take_traffic()) {
        if (kind.kind != "control") sent += static_cast<double>(kind.bytes_sent);
      }
    }
    const double seconds = agreed(median(times, &Times::device));
    last_[name] = {slice, seconds};
    const double host = agreed(median(times, &Times::host));
    const double device = host < host_bound * seconds ? seconds : held_seconds(stream, host, rounds, once);
    if (world_.rank() != 0) return;
    const double a_call = bytes.value_or(sent / rounds / calls);
    std::printf("  %-30s %12.1f %12.2f %14.1f %14.1f\n", name.c_str(), seconds * 1e6, a_call / seconds * 1e-9,
                host * 1e6, device * 1e6);
    std::fflush(stdout);
  }

 private:
  /// Seconds of a call: on the device, and of the host until it was enqueued.
  struct Times {
    double device = 0, host = 0;
  };

  /// Seconds of a call on the device when all of a round's calls were enqueued before the first began.
  double held_seconds(Stream& stream, double host, int rounds, const std::function<void()>& once) {
    std::vector<Times> times;
    for (int i = 0; i < rounds; ++i) {
      times.push_back(round(stream, most_held_calls, once, 1.5 * host * most_held_calls));
    }
    world_.take_traffic();
    return agreed(median(times, &Times::device));
  }

  Times round(Stream& stream, int calls, const std::function<void()>& once, double held = 0) {
    world_.channel().barrier();
    const auto start = Clock::now();
    if (held > 0) {
      hold_(stream, held);
      once();  // the streams of all ranks start together after it
    }
    stream.record(*begin_);
    for (int i = 0; i < calls; ++i) once();
    stream.record(*end_);
    const double host = seconds_since(start);
    stream.synchronize();
    return {device_.seconds_between(*begin_, *end_) / calls, host / calls};
  }
  static double median(std::vector<Times> times, double Times::*which) {
    std::ranges::sort(times, {}, which);
    return times[times.size() / 2].*which;
  }
  /// The time of the slowest rank, on all ranks, so that all continue alike.
  double agreed(double seconds) {
    return 1e-9 * static_cast<double>(world_.channel().all_max(static_cast<std::int64_t>(seconds * 1e9)));
  }

  Collectives& world_;
  Device& device_;
  std::function<void(Stream&, double)> hold_;
  std::unique_ptr<Event> begin_, end_;
  std::map<std::string, std::pair<std::size_t, double>> last_;  ///< slice and seconds, by name
};

/// Memory of the rows, each with room for the largest slice.
struct Buffers {
  std::byte* shared = nullptr;  ///< a slice of every rank; gathers may write into that of others
  std::byte* apart = nullptr;   ///< the same, not shared; what reductions read
  std::byte* own = nullptr;     ///< a slice: sums, copies
  std::byte* peer = nullptr;    ///< a slice, into which the rank before copies
};

std::size_t bytes_of_buffers(int ranks, std::size_t slice) {
  return (2 * static_cast<std::size_t>(ranks) + 2) * slice;
}

Buffers reserve(Arena& arena, Collectives& world, std::size_t slice) {
  const std::size_t all = static_cast<std::size_t>(world.size()) * slice;
  Buffers buffers;
  buffers.shared = arena.reserve_as<std::byte>("bench/shared", all);
  buffers.apart = arena.reserve_as<std::byte>("bench/apart", all);
  buffers.own = arena.reserve_as<std::byte>("bench/own", slice);
  buffers.peer = arena.reserve_as<std::byte>("bench/peer", slice);
  // bf16 numbers, which are numbers as fp32 too.
  const auto stream = arena.device().make_stream({.name = "fill"});
  for (std::byte* values : {buffers.shared, buffers.apart}) {
    ops::random_normal(*stream, {.seed = static_cast<std::uint64_t>(world.rank()),
                                 .out = values,
                                 .dtype = DType::bf16,
                                 .count = static_cast<std::int64_t>(all / 2)});
  }
  stream->synchronize();
  world.share({{buffers.shared, all}});
  return buffers;
}

/// Work that takes at least the seconds asked for on every rank's device: as many copies on all of them.
std::function<void(Stream&, double)> hold_by_copies(Collectives& world, Device& device,
                                                    const Buffers& buffers, std::size_t largest) {
  const std::size_t bytes = std::min(largest, std::size_t{64} << 20);
  const auto copy = [&device, buffers, bytes](Stream& stream) {
    device.copy(stream, buffers.own, buffers.apart, bytes);
  };
  const auto stream = device.make_stream({.name = "hold"});
  copy(*stream);
  stream->synchronize();
  const auto start = Clock::now();
  copy(*stream);
  stream->synchronize();
  const double seconds =
      1e-9 *
      static_cast<double>(world.channel().all_min(static_cast<std::int64_t>(seconds_since(start) * 1e9)));
  return [copy, seconds](Stream& held, double wanted) {
    for (double behind = 0; behind < wanted; behind += seconds) copy(held);
  };
}

/// The memory of the next rank, opened like the carrier `peer` opens it, for copies without synchronization.
class NextRank {
 public:
  NextRank(Collectives& world, Device& device, std::byte* memory) {
    const bool on_gpus = device.kind() == DeviceKind::cuda && world.place().nodes == 1;
    if (!on_gpus || !world.carrier().starts_with("peer")) return;
    access_ = comm::make_cuda_peer_access(device);
    const auto handles = world.channel().all_gather_bytes(access_->handle(memory));
    memory_ = access_->open(handles[static_cast<std::size_t>((world.rank() + 1) % world.size())]);
  }
  /// Null with another carrier.
  void* memory() const { return memory_; }

 private:
  std::unique_ptr<comm::PeerAccess> access_;
  void* memory_ = nullptr;
};

#ifdef OCTET_HAVE_CUDA
/// NCCL with a separate communicator if the carrier of the ranks is NCCL, else null.
std::unique_ptr<comm::NcclExchange> make_nccl(Collectives& world, Device& device) {
  const bool carries = world.carrier().find("nccl") != std::string::npos;
  if (!comm::built_with_nccl() || device.kind() != DeviceKind::cuda || !carries) return nullptr;
  const comm::NcclLibrary& library = comm::nccl_library();
  const std::string id = world.channel().broadcast(world.rank() == 0 ? comm::make_nccl_id(library) : "", 0);
  return std::make_unique<comm::NcclExchange>(
      library, device, comm::NcclGroup{.id = id, .size = world.size(), .member = world.rank()});
}

void nccl_rows(Rows& rows, comm::NcclExchange& nccl, Stream& stream, const Buffers& buffers,
               std::size_t slice) {
  const auto others = static_cast<double>(nccl.size() - 1), bytes = static_cast<double>(slice);
  const auto count = static_cast<std::int64_t>(slice / sizeof(float));
  rows.row(stream, "NCCL's all-gather", slice, bytes * others, [&] {
    const std::byte* own = buffers.apart + static_cast<std::size_t>(nccl.member()) * slice;
    nccl.all_gather(stream, own, buffers.apart, slice);
  });
  rows.row(stream, "NCCL's reduce-scatter f32", slice, bytes * others,
           [&] { nccl.reduce_scatter(stream, buffers.apart, buffers.own, count, DType::f32); });
  rows.row(stream, "NCCL's reduce-scatter bf16", slice, bytes / 2 * others,
           [&] { nccl.reduce_scatter(stream, buffers.apart, buffers.own, count, DType::bf16); });
}
#endif

std::string size_text(std::size_t bytes) {
  for (const auto& [unit, name] : {std::pair{30, " GiB"}, std::pair{20, " MiB"}}) {
    if (bytes >> unit != 0) return std::to_string(bytes >> unit) + name;
  }
  return std::to_string(bytes >> 10) + " KiB";
}

void reduce_rows(Rows& rows, Collectives& world, const Buffers& buffers, std::size_t slice) {
  struct Row {
    const char* name;
    Wire wire;
    DType from;
  };
  for (const Row& row : {Row{"reduce_scatter f32", Wire::f32, DType::f32},
                         Row{"reduce_scatter bf16 of bf16", Wire::bf16, DType::bf16},
                         Row{"reduce_scatter bf16 of f32", Wire::bf16, DType::f32},
                         Row{"reduce_scatter fp8 of f32", Wire::fp8, DType::f32},
                         Row{"reduce_scatter int8 of f32", Wire::int8, DType::f32}}) {
    rows.row(world.reduce_stream(), row.name, slice, {}, [&] {
      world.reduce_scatter(world.reduce_stream(), {.name = "bench",
                                                   .from = buffers.apart,
                                                   .from_dtype = row.from,
                                                   .to = buffers.own,
                                                   .count = static_cast<std::int64_t>(slice / sizeof(float)),
                                                   .accumulate = true,
                                                   .wire = row.wire});
    });
  }
}

void small_rows(Rows& rows, Collectives& world, Arena& arena) {
  constexpr std::int64_t most = 400;
  auto* floats = arena.reserve_as<float>("bench/small", most);
  auto* integers = arena.reserve_as<std::int64_t>("bench/small", most);
  auto* doubles = arena.reserve_as<double>("bench/small", most);
  Stream& stream = world.reduce_stream();
  rows.title("values of all ranks");
  for (const std::int64_t count : {1, 20, 100, 400}) {
    const std::string of = " " + std::to_string(count);
    rows.row(stream, "all_reduce_max f32" + of, 1, {},
             [&] { world.all_reduce_max(stream, "bench", floats, count); });
    rows.row(stream, "all_reduce_sum i64" + of, 1, {},
             [&] { world.all_reduce_sum(stream, "bench", integers, count); });
    rows.row(stream, "all_reduce_sum f64" + of, 1, {},
             [&] { world.all_reduce_sum(stream, "bench", doubles, count); });
  }
  rows.row(stream, "end of a step", 1, {}, [&] {
    world.all_reduce_sums(stream, "bench", integers, kEndOfStepIntegers, doubles, kEndOfStepDoubles);
  });
}

}  // namespace

void measure_on_device(Collectives& world, Arena& arena, std::size_t largest) {
  Device& device = arena.device();
  const Buffers buffers = reserve(arena, world, largest);
  Rows rows(world, device, hold_by_copies(world, device, buffers, largest));
  small_rows(rows, world, arena);
  const NextRank next(world, device, buffers.peer);
#ifdef OCTET_HAVE_CUDA
  const auto nccl = make_nccl(world, device);
#endif
  Stream& gather = world.gather_stream();
  const auto kib = std::size_t{1} << 10, mib = std::size_t{1} << 20;
  for (const std::size_t slice : {kib, 16 * kib, 256 * kib, mib, 16 * mib, 64 * mib, 256 * mib, 1024 * mib}) {
    if (slice > largest) break;
    const auto bytes = static_cast<double>(slice);
    rows.title("slices of " + size_text(slice));
    rows.row(gather, "copy on the device", slice, bytes,
             [&] { device.copy(gather, buffers.own, buffers.apart, slice); });
    if (next.memory() != nullptr) {
      rows.row(gather, "copy to the next rank", slice, bytes,
               [&] { device.copy(gather, next.memory(), buffers.own, slice); });
    }
    for (const auto& [name, buffer] :
         {std::pair{"all_gather, shared memory", buffers.shared}, std::pair{"all_gather", buffers.apart}}) {
      rows.row(gather, name, slice, {}, [&] {
        world.all_gather(gather,
                         {.name = "bench", .buffer = buffer, .bytes = static_cast<std::int64_t>(slice)});
      });
    }
    reduce_rows(rows, world, buffers, slice);
#ifdef OCTET_HAVE_CUDA
    if (nccl != nullptr) nccl_rows(rows, *nccl, gather, buffers, slice);
#endif
  }
}

int measure_gpus(const std::string& name) {
  const std::map<std::string, Carrier> carriers = {{"auto", Carrier::automatic},
                                                   {"peer", Carrier::peer},
                                                   {"nccl", Carrier::nccl},
                                                   {"host", Carrier::host}};
  const auto carrier = carriers.find(name);
  if (carrier == carriers.end()) {
    throw Error(Problem{.what = "no such carrier: " + name, .expected = "auto, peer, nccl or host"});
  }
  prepare_gpu_environment();
  const comm::Place place = comm::find_place();
  const int gpus = cuda_device_count();
  if (place.size < 2 || gpus == 0) {
    throw Error(Problem{.what = "collectives between GPUs are measured with two ranks or more, and a GPU",
                        .found = std::to_string(place.size) + " ranks, " + std::to_string(gpus) + " GPUs"});
  }
  const auto device = make_cuda_device(place.local_rank % gpus);
  Arena arena(*device);  // memory that is shared stays until the collectives end
  const auto job = comm::make_job();
  const auto all =
      job->collectives(comm::Mesh(job->size()).group("data", job->rank()), *device, carrier->second);
  Collectives& world = *all;
  log::set_rank(world.rank(), world.rank() == 0);
  job->watch({.timeout_seconds = 60});
  try {
    // Ranks that share a GPU share its memory.
    const auto sharers = static_cast<std::int64_t>((place.local_size + gpus - 1) / gpus);
    const std::int64_t free =
        world.channel().all_min(static_cast<std::int64_t>(device->memory().free) / sharers);
    const std::int64_t room = free - (std::int64_t{1} << 30);
    std::size_t largest = std::size_t{1} << 30;
    while (largest > 1 << 20 && static_cast<std::int64_t>(bytes_of_buffers(world.size(), largest)) > room) {
      largest /= 4;
    }
    if (world.rank() == 0) {
      std::printf("%s, %d ranks on %d hosts, carrier: %s\n", device->description().c_str(), world.size(),
                  place.nodes, world.carrier().c_str());
    }
    const auto start = Clock::now();
    measure_on_device(world, arena, largest);
    if (world.rank() == 0) std::printf("%.1f s in all\n", seconds_since(start));
    world.channel().barrier();  // memory is released only after all ranks have closed it
    return 0;
  } catch (const Error& error) {
    if (!error.problem().what.empty()) log::error(error.what());
    job->abort(static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    log::error(error.what());
    job->abort(1);
  }
  return 1;  // abort() does not
}

}  // namespace octet::bench
