// Collectives between MPI ranks. All tests share one communicator, and every rank runs them in one order.
// With an argument, the program fails in one of the ways that failure.sh tests.
#include <gtest/gtest.h>
#include <mpi.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/claims.h"
#include "octet/base/log.h"
#include "octet/comm/thread_ranks.h"

namespace octet::comm {
namespace {

Job* job_of_rank = nullptr;
Collectives* world = nullptr;
Device* device_of_rank = nullptr;
int most_threads_of_mpi = MPI_THREAD_MULTIPLE;
std::thread::id maker_of_mpi;                 // the thread that initialised MPI
std::atomic<int> sends_of_others{0};          // messages that other threads started
std::vector<std::vector<std::string>> facts;  // exchanged before a device existed

/// OCTETRUN_TEST_CARRIER=peer, nccl or host: between GPUs.
Carrier carrier() {
  const char* told = std::getenv("OCTETRUN_TEST_CARRIER");
  const std::string name = told == nullptr ? "auto" : told;
  if (name == "peer") return Carrier::peer;
  if (name == "nccl") return Carrier::nccl;
  return name == "host" ? Carrier::host : Carrier::automatic;
}

/// Returns a rank's data for a round: empty, or longer with every round and rank.
std::string fact_of(int rank, int round) {
  return std::string(static_cast<std::size_t>(rank * round * 1000), static_cast<char>('a' + rank % 26));
}

TEST(MpiRanks, KnowTheirPlace) {
  const Place& place = world->place();
  EXPECT_GE(place.local_rank, 0);
  EXPECT_LT(place.local_rank, place.local_size);
  EXPECT_LT(place.node, place.nodes);
  EXPECT_FALSE(place.host.empty());
  const auto ranks = job_of_rank->all_gather_int(place.rank);
  for (int r = 0; r < world->size(); ++r) EXPECT_EQ(ranks[static_cast<std::size_t>(r)], r);
  EXPECT_TRUE(launched_by_mpi());
  EXPECT_EQ(find_place().rank, place.rank);
  EXPECT_THROW(make_job(), Error) << "a second one";
}

TEST(MpiRanks, ThreadsThatWaitMakeTheCallsThemselves) {
  if (world->size() == 1 || world->carrier() != "messages") return;
  const int before = sends_of_others;
  for (int round = 0; round < 100; ++round) EXPECT_EQ(job_of_rank->all_sum(1), world->size());
  EXPECT_GT(sends_of_others, before);
}

TEST(MpiRanks, KnowOfEachOtherBeforeTheyHaveDevices) {
  ASSERT_EQ(facts.size(), 3u);
  for (int round = 0; round < 3; ++round) {
    const auto& said = facts[static_cast<std::size_t>(round)];
    ASSERT_EQ(static_cast<int>(said.size()), world->size());
    for (int r = 0; r < world->size(); ++r) {
      EXPECT_EQ(said[static_cast<std::size_t>(r)], fact_of(r, round)) << r;
    }
  }
}

TEST(MpiRanks, ReduceScatterSumsInRankOrder) {
  expect_sums_in_rank_order(*world);
  expect_sums_in_a_given_order(*world);
  expect_sums_of_several_addends(*world);
}
TEST(MpiRanks, DirectSumsAreInRankOrder) {
  const bool has_them = world->sums_directly(2, DType::f32);
  EXPECT_TRUE(!has_them || world->carrier().starts_with("peer"));
  expect_direct_sums(*world, *device_of_rank, has_them);
}
TEST(MpiRanks, AllGatherBringsEverySlice) {
  expect_all_gather(*world);
}
TEST(MpiRanks, LongMessagesTravelInPieces) {
  expect_long_messages_to_arrive(*world);
}
TEST(MpiRanks, AllReduceGivesMaximaAndSums) {
  expect_all_reduce(*world);
}
TEST(MpiRanks, QueuesDoNotBlockEachOther) {
  // Pinned memory replaces GPU memory here, and copies between pinned buffers block the host. With the host
  // carrier, ranks could therefore not enqueue on the two queues in different orders.
  if (world->carrier() == "host") return;
  expect_queues_to_be_independent(*world);
}
TEST(MpiRanks, EventsOrderCollectivesAndCompute) {
  expect_events_to_order_collectives(*world, *device_of_rank);
  if (device_of_rank->kind() != DeviceKind::cpu) return;
  const auto with_worker = make_cpu_device({.threads = 1, .compute_worker = true});
  expect_events_to_order_collectives(*world, *with_worker);
}
TEST(MpiRanks, ControlPlaneCarriesBytes) {
  expect_control_plane(world->channel());
  expect_control_plane(*job_of_rank);
  expect_channels_to_be_apart(*job_of_rank, *world);
}
TEST(MpiRanks, MessagesArriveAsTheyWereSent) {
  expect_messages(*world);
}
TEST(MpiRanks, AllToAllBringsEverySlice) {
  expect_all_to_all(*world);
}
TEST(MpiRanks, GroupsOfAMeshWorkAtTheSameTime) {
  if (world->size() % 2 != 0) return;
  expect_axes_to_be_independent(*job_of_rank, *device_of_rank, carrier(),
                                {{"data", 2}, {"tensor", world->size() / 2}});
}
TEST(MpiRanks, GroupsThatDoNotMatchAreErrors) {
  expect_mismatching_groups_to_be_told(*job_of_rank, *device_of_rank, carrier());
}
TEST(MpiRanks, NarrowWiresStayWithinTheirBounds) {
  expect_wires_to_be_close(*world);
}
TEST(MpiRanks, BlockWiresAreExact) {
  expect_block_wires_to_be_exact(*world);
}
TEST(MpiRanks, NarrowSumsDoNotDependOnTheOwner) {
  expect_narrow_sums_not_to_depend_on_the_owner(*world);
}
TEST(MpiRanks, NarrowWiresShowWhatIsNotFinite) {
  expect_narrow_wires_to_show_what_is_not_finite(*world);
}
TEST(MpiRanks, ErrorsAreAgreedUpon) {
  expect_errors_to_be_agreed_upon(world->channel());
}
TEST(MpiRanks, NarrowGathersLeaveTheSameBitsEverywhere) {
  expect_narrow_gathers_to_agree(*world);
}
TEST(MpiRanks, GathersOfBf16AgreeWithThoseOfFp32) {
  expect_gathers_of_bf16_to_agree(*world);
  expect_gathers_to_keep_what_they_lose(*world);
  expect_reductions_of_bf16_to_agree(*world);
}
TEST(MpiRanks, TrafficIsCounted) {
  expect_traffic_to_be_counted(*world);
}
// OCTETRUN_TEST_SUMS=nccl, with a GPU for each rank.
TEST(MpiRanks, SumsOfNcclDifferByRoundingsAlone) {
  if (std::getenv("OCTETRUN_TEST_SUMS") == nullptr) return;
  const auto sums = job_of_rank->collectives(Mesh(world->size()).group("data", world->rank()),
                                             *device_of_rank, {carrier(), Sums::nccl});
  EXPECT_TRUE(sums->carrier().ends_with("sums by nccl")) << sums->carrier();
  expect_sums_to_be_close(*sums);
}

/// Prints failures only.
class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", world->rank(), result.file_name() ? result.file_name() : "?",
                 result.line_number(), result.summary());
  }
};

int run_tests() {
  if (world->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  // An exception on one rank leaves the others waiting, so it must end the job.
  testing::GTEST_FLAG(catch_exceptions) = false;
  return static_cast<int>(job_of_rank->all_max(RUN_ALL_TESTS()));
}

constexpr const char* kKinds[] = {"reduce_scatter", "ordered_sum",    "all_gather",     "all_gather_values",
                                  "all_reduce_max", "all_reduce_sum", "all_gather_int", "broadcast"};

/// Runs one collective of this kind and waits for it.
void take_part(const std::string& kind) {
  const int size = world->size();
  Values<float> values(static_cast<std::size_t>(size) * 1000, 1.0f);
  Values<double> doubles(100);
  Stream& gather = world->gather_stream();
  Stream& reduce = world->reduce_stream();
  if (kind == "reduce_scatter") {
    world->reduce_scatter(reduce, {.name = "test",
                                   .from = values.data(),
                                   .to = values.data() + world->rank() * 1000,
                                   .count = 1000,
                                   .wire = Wire::fp8});
  } else if (kind == "ordered_sum") {
    SumOrder order{.parts = std::vector<int>(static_cast<std::size_t>(size), 1),
                   .merges = std::vector<int>(static_cast<std::size_t>(size), 0)};
    order.merges.back() = size - 1;
    world->reduce_scatter(reduce, {.name = "test",
                                   .from = values.data(),
                                   .to = values.data() + world->rank() * 1000,
                                   .count = 1000,
                                   .order = &order});
    reduce.synchronize();
  } else if (kind == "all_gather") {
    world->all_gather(gather, {.name = "test", .buffer = values.data(), .bytes = 4000});
  } else if (kind == "all_gather_values") {
    world->all_gather_values(gather,
                             {.name = "test", .buffer = values.data(), .count = 1000, .wire = Wire::fp8});
  } else if (kind == "all_reduce_max") {
    world->all_reduce_max(gather, "test", values.data(), 1000);
  } else if (kind == "all_reduce_sum") {
    world->all_reduce_sum(reduce, "test", doubles.data(), 100);
  } else if (kind == "all_gather_int") {
    job_of_rank->all_gather_int(1);
  } else if (kind == "broadcast") {
    job_of_rank->broadcast("test", world->size() - 1);
  }
  gather.synchronize();
  reduce.synchronize();
}

/// `how` is WAY-KIND. All ranks repeat a collective of this kind. In the third round the last rank is
/// stopped, killed or leaves.
int vanish(const std::string& how) {
  const std::string way = how.substr(0, how.find('-')), kind = how.substr(how.find('-') + 1);
  const bool mine = world->rank() == world->size() - 1;
  job_of_rank->watch({.timeout_seconds = 2});
  for (int round = 0; round < 4; ++round) {
    if (mine && round == 2 && way == "stopped") raise(SIGSTOP);
    if (mine && round == 2 && way == "killed") raise(SIGKILL);
    if (mine && round == 2 && way == "leaves") return 0;
    take_part(kind);
  }
  return 0;
}

/// A gather with slices larger than 2 GiB. Most pages of the own slices are untouched and take no memory.
/// Marks are at every place where a 32-bit length or offset would fail, and often between them.
int gather_more_than_2_gib() {
  const std::int64_t bytes = (std::int64_t{21} << 30) / 10 / 8 * 8, size = world->size();
  void* address = mmap(nullptr, static_cast<std::size_t>(size * bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  auto* words = static_cast<std::int64_t*>(address);
  const std::int64_t count = bytes / 8, step = (std::int64_t{1} << 20) / 8 - 1;
  const auto mark = [&](std::int64_t rank, std::int64_t i) { return 1 + rank * count + i; };
  const auto each = [&](auto&& act) {
    for (std::int64_t i = 0; i < count; i += step) act(i);
    for (const std::int64_t edge : {std::int64_t{1} << 31, std::int64_t{1} << 30}) {
      for (std::int64_t i = edge / 8 - 2; i < edge / 8 + 2; ++i) act(i);
    }
    act(count - 1);
  };
  each([&](std::int64_t i) { words[world->rank() * count + i] = mark(world->rank(), i); });
  job_of_rank->watch({.timeout_seconds = 300});
  world->all_gather(world->gather_stream(), {.name = "huge", .buffer = words, .bytes = bytes});
  world->gather_stream().synchronize();
  std::int64_t wrong = 0;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    each([&](std::int64_t i) { wrong += words[rank * count + i] != mark(rank, i); });
  }
  std::int64_t sent = 0;
  for (const Traffic& t : world->take_traffic()) {
    if (t.kind == "all_gather") sent = t.bytes_sent;
  }
  if (world->rank() == 0) {
    std::printf("slices of %lld bytes, %lld sent, %lld marks wrong\n", static_cast<long long>(bytes),
                static_cast<long long>(sent), static_cast<long long>(wrong));
  }
  munmap(address, static_cast<std::size_t>(size * bytes));
  return job_of_rank->all_max(wrong) == 0 && sent == (size - 1) * bytes ? 0 : 1;
}

/// If MPI allows only its main thread, no other thread calls it.
int call_from_one_thread() {
  for (const char* kind : kKinds) {
    for (int round = 0; round < 20; ++round) take_part(kind);
  }
  if (sends_of_others > 0) std::fprintf(stderr, "%d calls by another thread\n", sends_of_others.load());
  return job_of_rank->all_max(sends_of_others.load()) == 0 ? 0 : 1;
}

/// Fails in the way `how` names, for example before or during a gather in which all ranks take part.
int misbehave(const std::string& how) {
  for (const char* kind : kKinds) {
    if (how.ends_with(std::string("-") + kind)) return vanish(how);
  }
  if (how == "huge") return gather_more_than_2_gib();
  if (how == "funneled") return call_from_one_thread();
  const bool mine = world->rank() == world->size() - 1;
  Values<float> buffer(static_cast<std::size_t>(world->size()) * 1000);
  if (mine && how == "killed") raise(SIGKILL);
  if (mine && how == "abort") job_of_rank->abort(76);
  if (mine && how == "exception") throw std::runtime_error("one rank cannot go on");
  if (how == "together") {
    job_of_rank->together([&] {
      if (mine) throw Error(Problem{.what = "the last rank's file is broken", .code = ExitCode::usage});
    });
  }
  if (mine && how == "mismatch") {
    world->all_reduce_max(world->gather_stream(), "amax", buffer.data(), 1000);
  } else {
    world->all_gather(world->gather_stream(), {.name = "test", .buffer = buffer.data(), .bytes = 4000});
  }
  world->gather_stream().synchronize();
  return 0;
}

/// OCTETRUN_TEST_DEVICE=cuda: runs the claims on GPUs, which are assigned to ranks in turn.
std::unique_ptr<Device> make_device() {
  const char* kind = std::getenv("OCTETRUN_TEST_DEVICE");
  if (kind == nullptr || std::string(kind) != "cuda") return make_cpu_device({.threads = 1});
  return make_cuda_device(find_place().local_rank % cuda_device_count());
}

int run(const std::string& how) {
  // As in a program, the job outlives code that may throw, so that its end reports the error. In the other
  // case the exception unwinds the job, which must still end all ranks.
  if (how == "unwinding") {
    const auto host = make_cpu_device({.threads = 1});
    const auto inner = make_job();
    const auto all =
        inner->collectives(Mesh(inner->size()).group("data", inner->rank()), *host, Carrier::automatic);
    if (inner->rank() == inner->size() - 1) throw Error("thrown through the job");
    inner->barrier();
    return 0;
  }
  const auto job = make_job();
  job_of_rank = job.get();
  for (int round = 0; round < 3; ++round) facts.push_back(job->all_gather_bytes(fact_of(job->rank(), round)));
  const auto device = make_device();
  if (device->kind() == DeviceKind::cuda) device_of_values() = device.get();
  const auto all = job->collectives(Mesh(job->size()).group("data", job->rank()), *device, carrier());
  world = all.get();
  if (world->rank() == 0 && device->kind() == DeviceKind::cuda) {
    std::printf("%s, %d ranks, carrier: %s\n", device->description().c_str(), world->size(),
                world->carrier().c_str());
  }
  device_of_rank = device.get();
  log::set_rank(world->rank(), world->rank() == 0);
  try {
    return how.empty() ? run_tests() : misbehave(how);
  } catch (const Error& error) {
    if (!error.problem().what.empty()) log::error(error.what());
    if (how == "together") return static_cast<int>(error.code());
    job_of_rank->abort(static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    log::error(error.what());
    job_of_rank->abort(1);
  }
  return 1;  // abort() does not return
}

}  // namespace
}  // namespace octet::comm

extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  octet::comm::maker_of_mpi = std::this_thread::get_id();
  const int code = PMPI_Init_thread(argc, argv, required, provided);
  *provided = std::min(*provided, octet::comm::most_threads_of_mpi);
  return code;
}

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm lane,
                         MPI_Request* request) {
  if (std::this_thread::get_id() != octet::comm::maker_of_mpi) ++octet::comm::sends_of_others;
  return PMPI_Isend(data, count, type, peer, tag, lane, request);
}

extern "C" int MPI_Query_thread(int* provided) {
  const int code = PMPI_Query_thread(provided);
  *provided = std::min(*provided, octet::comm::most_threads_of_mpi);
  return code;
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "no-threads") octet::comm::most_threads_of_mpi = MPI_THREAD_SINGLE;
  if (how == "funneled") octet::comm::most_threads_of_mpi = MPI_THREAD_FUNNELED;
  if (how == "place") {  // nothing else: MPI must end by itself
    const auto place = octet::comm::find_place();
    return place.size > place.rank ? 0 : 1;
  }
  try {
    return octet::comm::run(how);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
