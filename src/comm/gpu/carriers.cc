#include "gpu/carriers.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "gpu/nccl_library.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/base/log.h"
#include "octet/base/timing.h"

namespace octet::comm {
namespace {

constexpr auto probe_patience = std::chrono::seconds(20);
constexpr std::size_t probe_bytes = std::size_t{1} << 20;
// Bytes of one of a queue's two sets of pinned buffers, in each direction.
constexpr std::size_t host_capacity = std::size_t{16} << 20;
constexpr std::size_t least_host_capacity_of_rank = std::size_t{1} << 18;

const char* name_of(Carrier carrier) {
  constexpr const char* names[] = {"messages", "auto", "peer", "nccl", "host"};
  return names[static_cast<int>(carrier)];
}

/// For tests: OCTETRUN_BREAK_CARRIER names the part that fails here, "peer-open" or "peer-pattern".
bool broken(std::string_view what) {
  const char* told = environment_variable("OCTETRUN_BREAK_CARRIER");
  return told != nullptr && told == what;
}

/// For comparisons: OCTETRUN_DIRECT_SUMS=off uses collectives for all sums.
bool direct_sums_wanted() {
  const char* told = environment_variable("OCTETRUN_DIRECT_SUMS");
  if (told == nullptr || std::string_view(told) == "on") return true;
  if (std::string_view(told) == "off") return false;
  throw Error(Problem{.what = "OCTETRUN_DIRECT_SUMS has an invalid value",
                      .expected = "on or off",
                      .found = told,
                      .fix = "set it to on or off, or leave it out",
                      .code = ExitCode::usage});
}

/// Returns bytes that are unique to this pair of ranks.
std::vector<std::uint32_t> pattern(int from, int to, std::size_t bytes) {
  std::vector<std::uint32_t> words(bytes / sizeof(std::uint32_t));
  std::uint32_t x = 0x9E3779B9u * static_cast<std::uint32_t>(from * 1024 + to + 1);
  for (std::uint32_t& word : words) word = x = x * 1664525u + 1013904223u;
  return words;
}

/// Sends pieces for ranks of the same node by one exchange, and pieces for other nodes by another.
class RoutedExchange final : public Exchange {
 public:
  RoutedExchange(const Place& place, std::unique_ptr<Exchange> inside, std::unique_ptr<Exchange> between)
      : place_(place), inside_(std::move(inside)), between_(std::move(between)) {}

  void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) override {
    for (const bool near : {true, false}) {
      std::vector<Outgoing> leaving;
      std::vector<Incoming> arriving;
      const auto goes = [&](const auto& piece) {
        return (place_.node_of[index(piece.peer)] == place_.node) == near;
      };
      std::ranges::copy_if(out, std::back_inserter(leaving), goes);
      std::ranges::copy_if(in, std::back_inserter(arriving), goes);
      if (leaving.empty() && arriving.empty()) continue;
      (near ? inside_ : between_)->exchange(stream, leaving, arriving);
    }
  }
  bool reaches(const void* twin, std::size_t bytes) const override {
    return inside_->reaches(twin, bytes) && between_->reaches(twin, bytes);
  }

 private:
  Place place_;
  std::unique_ptr<Exchange> inside_, between_;
};

}  // namespace

Carriers::Carriers(Device& device, RankGroup& group)
    : device_(device),
      group_(group),
      access_(device.kind() == DeviceKind::cuda ? make_cuda_peer_access(device)
                                                : make_memory_peer_access(group.options().alive)) {}

Carriers::~Carriers() = default;

DeviceStaging Carriers::staging_of(Queue queue) const {
  return queue == Queue::gather ? budget_.gather(memory_) : budget_.reduce(memory_);
}

// The own entry stays empty. Handles of other nodes cannot be opened and are not needed.
std::vector<void*> Carriers::open_alike(void* address, const std::vector<std::string>& handles) {
  const Place& place = group_.place();
  std::vector<void*> opened(index(place.size), nullptr);
  for (int rank = 0; rank < place.size; ++rank) {
    if (rank == place.rank) {
      opened[index(rank)] = address;
    } else if (place.node_of[index(rank)] == place.node) {
      opened[index(rank)] = access_->open(handles[index(rank)]);
    }
  }
  return opened;
}

void Carriers::open_peers() {
  std::string handle;
  std::string trouble = group_.agreed([&] {
    if (broken("peer-open") && group_.place().rank == group_.place().size - 1) {
      throw Error(Problem{.what = "OCTETRUN_BREAK_CARRIER: memory is not shared"});
    }
    handle = access_->handle(memory_);
  });
  if (!trouble.empty()) throw Error(Problem{.what = trouble});
  const auto handles = group_.gather_bytes(handle);
  trouble = group_.agreed([&] { memory_of_ = open_alike(memory_, handles); });
  if (!trouble.empty()) throw Error(Problem{.what = trouble});
  regions_.add(memory_, budget_.bytes(), memory_of_);
  peers_ = true;
}

std::unique_ptr<Exchange> Carriers::make_peer(Queue queue) {
  const int number = queue == Queue::gather ? 0 : 1;
  const std::size_t at = budget_.counters_at(number);
  PeerCounters counters{.own = reinterpret_cast<std::uint32_t*>(memory_ + at), .of_member = {}};
  for (void* memory : memory_of_) {
    counters.of_member.push_back(
        memory == nullptr ? nullptr : reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(memory) + at));
  }
  EagerPlaces eager{.room = budget_.eager_room, .own = memory_ + budget_.eager_at(number), .of_member = {}};
  for (void* memory : memory_of_) {
    eager.of_member.push_back(memory == nullptr ? nullptr
                                                : static_cast<std::byte*>(memory) + budget_.eager_at(number));
  }
  // Ranks of other hosts have no memory on this host.
  if (group_.place().nodes > 1) eager.room = 0;
  return std::make_unique<PeerExchange>(device_, *access_, regions_, group_.place().rank, group_.place().size,
                                        std::move(counters), std::move(eager));
}

void Carriers::probe(Queue queue, Exchange& exchange) {
  const Place& place = group_.place();
  const DeviceStaging staging = staging_of(queue);
  const auto stream = device_.make_stream({.name = "probe"});
  const std::size_t bytes = std::min(probe_bytes, staging.part / 4 * 4);
  const auto near = [&](int rank) { return rank != place.rank && place.node_of[index(rank)] == place.node; };
  std::vector<std::vector<std::uint32_t>> sent;
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int rank = 0; rank < place.size; ++rank) {
    if (!near(rank)) continue;
    sent.push_back(pattern(place.rank, rank, bytes));
    device_.copy_to_device(*stream, staging.leaving(0, rank), sent.back().data(), bytes);
    device_.zero(*stream, staging.arriving(0, rank), bytes);
    out.push_back({rank, staging.leaving(0, rank), staging.arriving(0, place.rank), bytes});
    in.push_back({rank, staging.arriving(0, rank), bytes});
  }
  stream->synchronize();
  const auto begun = device_.make_timed_event(), done = device_.make_timed_event();
  const auto in_time = [&] {
    exchange.exchange(*stream, out, in);
    stream->record(*done);
    const auto deadline = Clock::now() + probe_patience;
    while (!device_.complete(*done)) {
      if (Clock::now() > deadline) {
        throw Error(Problem{.what = "a pattern sent to the ranks of this host did not come back in time"});
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  in_time();
  for (const Incoming& piece : in) {
    std::vector<std::uint32_t> came(bytes / sizeof(std::uint32_t));
    device_.copy_to_host(*stream, came.data(), piece.to, bytes);
    stream->synchronize();
    if (broken("peer-pattern")) came[came.size() / 2] ^= 1;
    if (came != pattern(piece.peer, place.rank, bytes)) {
      throw Error(Problem{.what = "a pattern from rank " + std::to_string(group_.rank_of_job(piece.peer)) +
                                  " arrived corrupted"});
    }
  }
  if (queue != Queue::reduce || in.empty()) return;
  for (auto& piece : out) piece.bytes = staging.part;
  for (auto& piece : in) piece.bytes = staging.part;
  for (int round = 0; round < 3; ++round) {  // the first rounds are warm-up
    stream->record(*begun);
    in_time();
  }
  const double seconds = device_.seconds_between(*begun, *done);
  if (seconds > 0) {
    bytes_per_second_ = static_cast<double>(staging.part) * static_cast<double>(in.size()) / seconds;
  }
}

std::string Carriers::try_carrier(Carrier carrier, Ways& ways, std::span<const Queue> queues) {
  const Place& place = group_.place();
  if (carrier == Carrier::peer && !peers_) {
    try {
      open_peers();
    } catch (const Error& error) {
      return error.problem().what;  // the Error is agreed upon
    }
  }
  if (carrier == Carrier::nccl) {
    int version = 0;
    std::string trouble = group_.agreed([&] { version = load_nccl(); });
    if (!trouble.empty()) return trouble;
    const auto all = group_.gather_int(version);
    std::string differ =
        group_.agreed([&] { require_one_nccl_version(std::vector<int>(all.begin(), all.end())); });
    if (!differ.empty()) return differ;
    const auto gpus = group_.gather_bytes(gpu_uuid(device_));
    std::string shared = group_.agreed([&] { require_a_gpu_each(gpus); });
    if (!shared.empty()) return shared;
  }
  for (const Queue queue : queues) {
    Way& way = ways[queue == Queue::gather ? 0 : 1];
    std::string id;
    if (carrier == Carrier::nccl) {
      std::string trouble = group_.agreed([&] {
        if (place.rank == 0) id = make_nccl_id();
      });
      if (!trouble.empty()) return trouble;
      id = group_.broadcast(id, 0);
    }
    std::string trouble = group_.agreed([&] {
      if (carrier == Carrier::peer) {
        way.exchange = make_peer(queue);
      } else if (carrier == Carrier::host) {
        const std::size_t capacity =
            std::max(host_capacity / StagingBudget::share_of(device_.kind()),
                     least_host_capacity_of_rank * static_cast<std::size_t>(place.size));
        auto host = std::make_unique<HostExchange>(device_, *access_, place.rank, place.size, capacity);
        way.host = host.get();
        way.exchange = std::move(host);
      } else {
        way.exchange = make_nccl_exchange(device_, id, place.rank, place.size);
      }
    });
    if (trouble.empty() && carrier != Carrier::host) {
      trouble = group_.agreed([&] { probe(queue, *way.exchange); });
    }
    if (!trouble.empty()) {
      // Memory served by another carrier needs no opened handles.
      if (carrier == Carrier::peer) peers_ = false;
      return trouble;
    }
  }
  return {};
}

void Carriers::choose(Carrying wanted, std::byte* memory, const StagingBudget& budget) {
  memory_ = memory;
  budget_ = budget;
  choose_carrier(wanted.carrier);
  choose_sums(wanted.sums);
  prepare_direct_sums();
}

// Kernels of ranks that share a GPU would wait for each other across time slices.
void Carriers::prepare_direct_sums() {
  if (!peers_ || group_.place().nodes > 1 || budget_.sum_room == 0 || !direct_sums_wanted()) return;
  if (device_.kind() == DeviceKind::cuda) {
    const auto gpus = group_.gather_bytes(gpu_uuid(device_));
    if (std::set<std::string>(gpus.begin(), gpus.end()).size() < gpus.size()) return;
  }
  for (void* memory : memory_of_) sum_places_.push_back(static_cast<std::byte*>(memory) + budget_.sums_at());
}

bool Carriers::sums_directly(std::int64_t count, DType dtype) const {
  return !sum_places_.empty() && ops::peer_sum_takes(count, dtype, budget_.sum_room);
}

void Carriers::sum_directly(Stream& stream, const DirectSumArgs& args) {
  check(sums_directly(args.count, args.dtype), "direct sums are used only where they are supported");
  ops::peer_sum(stream, {.values = args.values,
                         .addend = args.addend,
                         .to = args.to,
                         .dtype = args.dtype,
                         .count = args.count,
                         .rank = group_.place().rank,
                         .places = sum_places_,
                         .room = budget_.sum_room,
                         .begun = reinterpret_cast<std::uint64_t*>(memory_ + budget_.sums_begun_at()),
                         .alive = group_.options().alive});
}

// If NCCL carries reductions, NCCL also sums. Otherwise it sums only on request, on a separate communicator.
// It also sums values that it rounds to bf16 on the way only on request.
void Carriers::choose_sums(Sums wanted) {
  if (wanted == Sums::ordered || device_.kind() != DeviceKind::cuda) return;
  Way& way = ways_[1];
  if (way.exchange->sums()) {
    way.sums = way.exchange.get();
  } else if (wanted == Sums::nccl) {
    const double rate = bytes_per_second_;  // of the carrier
    Ways more;
    const std::string trouble = try_carrier(Carrier::nccl, more, std::array{Queue::reduce});
    bytes_per_second_ = rate;
    if (!trouble.empty()) {
      throw Error(Problem{.what = "NCCL cannot reduce these values",
                          .found = trouble,
                          .where = "gpu_sums: nccl",
                          .fix = "set gpu_sums: auto"});
    }
    way.summing = std::move(more[1].exchange);
    way.sums = way.summing.get();
  }
  way.sums_bf16 = wanted == Sums::nccl;
  if (way.sums != nullptr) sums_ = ", sums by nccl";
}

void Carriers::choose_carrier(Carrier wanted) {
  const Place& place = group_.place();
  const bool shares_hosts = place.nodes < place.size;
  const auto first_that_works = [&](const std::vector<Carrier>& of, const std::string& where, Ways& ways) {
    std::string troubles;
    for (const Carrier carrier : of) {
      ways = {};
      const std::string trouble = try_carrier(carrier, ways, std::array{Queue::gather, Queue::reduce});
      if (trouble.empty()) return carrier;
      troubles += (troubles.empty() ? "" : "; ") + std::string(name_of(carrier)) + ": " + trouble;
      if (wanted == Carrier::automatic && place.rank == 0) {
        log::warn("GPUs " + where + ": the carrier '" + name_of(carrier) + "' does not work (" + trouble +
                  "); the next one is tried");
      }
    }
    throw Error(Problem{.what = "the GPUs of the ranks cannot reach each other " + where,
                        .found = troubles,
                        .fix = "set gpu_transport: auto, or host, which always works"});
  };
  const bool automatic = wanted == Carrier::automatic;
  const auto candidates = [&](bool inside) {
    if (!automatic && (inside || wanted != Carrier::peer)) return std::vector<Carrier>{wanted};
    std::vector<Carrier> all;
    if (inside) all.push_back(Carrier::peer);
    if (device_.kind() == DeviceKind::cuda) all.push_back(Carrier::nccl);
    all.push_back(Carrier::host);
    return all;
  };
  if (place.nodes == 1) {
    name_ = name_of(first_that_works(candidates(true), "of this host", ways_));
    return;
  }
  Ways between;
  const Carrier across = first_that_works(candidates(false), "of different hosts", between);
  name_ = name_of(across);
  const Carrier near = shares_hosts ? first_that_works(candidates(true), "of one host", ways_) : across;
  if (near == across) {
    ways_ = std::move(between);
    return;
  }
  name_ = std::string(name_of(near)) + " inside hosts, " + name_ + " between";
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    ways_[i].exchange =
        std::make_unique<RoutedExchange>(place, std::move(ways_[i].exchange), std::move(between[i].exchange));
    ways_[i].host = between[i].host;
  }
}

Way Carriers::take(Queue queue) {
  return std::move(ways_[queue == Queue::gather ? 0 : 1]);
}

void Carriers::share(const std::vector<SharedMemory>& memory) {
  if (!peers_) return;
  for (const SharedMemory& piece : memory) {
    if (piece.bytes == 0 || regions_.holds(piece.address, piece.bytes)) continue;
    std::string handle;
    std::string trouble = group_.agreed([&] { handle = access_->handle(piece.address); });
    std::vector<void*> opened;
    if (trouble.empty()) {
      const auto handles = group_.gather_bytes(handle);
      trouble = group_.agreed([&] { opened = open_alike(piece.address, handles); });
    }
    if (!trouble.empty()) {
      if (group_.place().rank == 0) {
        log::warn(
            "memory of parameters is not shared between the GPUs of this host, so gathers need one more copy "
            "(" +
            trouble + ")");
      }
      return;
    }
    regions_.add(piece.address, piece.bytes, std::move(opened));
  }
}

void Carriers::unshare(const std::vector<SharedMemory>& memory) {
  if (!peers_) return;
  group_.barrier();  // no rank has copies under way
  for (const SharedMemory& piece : memory) {
    const std::vector<void*> opened = regions_.remove(piece.address);
    for (int rank = 0; rank < static_cast<int>(opened.size()); ++rank) {
      if (rank != group_.place().rank && opened[index(rank)] != nullptr) access_->close(opened[index(rank)]);
    }
  }
  group_.barrier();  // no rank keeps memory open after its owner frees it
}

std::string Carriers::words() const {
  if (bytes_per_second_ <= 0) return name_ + sums_;
  std::array<char, 64> rate{};
  std::snprintf(rate.data(), rate.size(), ", %.0f GB/s", 1e-9 * bytes_per_second_);
  return name_ + rate.data() + sums_;
}

}  // namespace octet::comm
