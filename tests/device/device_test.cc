#include "octet/device/device.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::device_test {
namespace {

TEST(Arena, GivesZeroedMemoryOnA256ByteBoundaryAndCountsIt) {
  const auto device = make_cpu_device();
  Arena arena(*device);
  std::size_t expected = 0;
  for (const std::size_t bytes : {1u, 255u, 256u, 257u, 5u << 20}) {
    auto* memory = static_cast<unsigned char*>(arena.reserve("x", bytes));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(memory[i], 0);
    std::memset(memory, 0xFF, bytes);  // shows whether a second reservation is cleared
    expected += (bytes + 255) / 256 * 256;
    EXPECT_EQ(arena.bytes(), expected);
  }
  EXPECT_EQ(arena.reservations().size(), 5u);
  EXPECT_EQ(arena.reserve("none", 0), nullptr);
  EXPECT_EQ(arena.reservations().size(), 5u);
}

TEST(Arena, CountsEachKindOfMemoryForItself) {
  for (const bool dry : {false, true}) {
    const auto device = dry ? make_dry_device({.stands_for = DeviceKind::cuda}) : make_cpu_device();
    Arena arena(*device);
    arena.reserve("weights", 256);
    auto* pinned = static_cast<unsigned char*>(arena.reserve("words", 1000, MemoryKind::pinned));
    auto* host = static_cast<unsigned char*>(arena.reserve("pieces", 3000, MemoryKind::host));
    for (std::size_t i = 0; i < 1000 && !dry; ++i) ASSERT_EQ(pinned[i] + host[i], 0);
    EXPECT_NE(pinned, host);
    EXPECT_EQ(arena.bytes(), 256u);
    EXPECT_EQ(arena.bytes(MemoryKind::pinned), 1024u);
    EXPECT_EQ(arena.bytes(MemoryKind::host), 3072u);
    arena.seal();
    EXPECT_THROW(arena.reserve("late", 1, MemoryKind::pinned), Error);
    arena.expect_passing("state", 5000, MemoryKind::host);
    EXPECT_EQ(arena.bytes(MemoryKind::host), 3072u) << "what passes is not held";
    ASSERT_EQ(arena.reservations().size(), 4u);
    EXPECT_EQ(arena.reservations()[1].kind, MemoryKind::pinned);
    EXPECT_TRUE(arena.reservations()[3].passing);
  }
}

TEST(CpuDevice, ClearsMemoryThatWasUsedBefore) {
  const auto device = make_cpu_device();
  for (const std::size_t bytes : {100u, 5000u, 100000u}) {
    for (int round = 0; round < 3; ++round) {
      auto* memory = static_cast<unsigned char*>(device->allocate(bytes));
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(memory[i], 0) << bytes << " bytes, round " << round;
      std::memset(memory, 0xFF, bytes);
      device->release(memory, bytes);  // the next round gets the same memory
    }
  }
}

std::size_t resident_bytes() {
  std::size_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Staging that a short run does not use costs nothing. Beyond a bound, a machine without memory is noticed
// when an array is allocated.
TEST(CpuDevice, MakesPagesOfFewMediumArraysOnDemand) {
  constexpr std::size_t kMiB = std::size_t{1} << 20, kArray = 60 * kMiB;
  const auto device = make_cpu_device();
  const std::size_t before = resident_bytes();
  std::vector<void*> arrays;
  for (int i = 0; i < 4; ++i) arrays.push_back(device->allocate(kArray));
  EXPECT_LT(resident_bytes() - before, 20 * kMiB);
  arrays.push_back(device->allocate(kArray));
  EXPECT_GT(resident_bytes() - before, kArray - kMiB) << "the fifth is beyond 256 MiB";
  for (void* array : arrays) device->release(array, kArray);
  arrays = {device->allocate(kArray)};
  EXPECT_LT(resident_bytes() - before, 20 * kMiB) << "released arrays no longer count";
  device->release(arrays[0], kArray);
}

TEST(Arena, IsClosedOnceSealed) {
  const auto device = make_cpu_device();
  Arena arena(*device);
  arena.reserve("early", 16);
  arena.seal();
  try {
    arena.reserve("late", 16);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'late'"), std::string::npos);
  }
}

TEST(Arena, SaysWhatWasAskedForAndWhatIsHeldWhenMemoryIsShort) {
  const auto device = make_cpu_device();
  Arena arena(*device);
  arena.reserve("held", 512);
  const std::size_t absurd = device->memory().total + (std::size_t{1} << 40);
  for (const std::size_t bytes : {absurd, std::numeric_limits<std::size_t>::max() - 1000}) {
    try {
      arena.reserve("activations", bytes);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("activations"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(arena.bytes(), 512u);
  EXPECT_EQ(arena.reservations().size(), 1u);
  EXPECT_NE(arena.reserve("small", 100), nullptr) << "a refusal leaves the arena usable";
}

TEST(CpuDevice, DescribesTheMachine) {
  const auto device = make_cpu_device({.threads = 2});
  EXPECT_EQ(device->kind(), DeviceKind::cpu);
  EXPECT_NE(device->description().find("CPU ("), std::string::npos);
  EXPECT_NE(device->description().find("2 threads"), std::string::npos);
  const MemoryInfo memory = device->memory();
  EXPECT_GT(memory.total, std::size_t{64} << 20);
  EXPECT_GT(memory.free, 0u);
  EXPECT_LE(memory.free, memory.total);
}

TEST(DryDevice, ReservesNothingAndGivesDistinctAddresses) {
  const auto device = make_dry_device();
  Arena arena(*device);
  const std::size_t huge = std::size_t{1} << 46;
  void* first = arena.reserve("weights", huge);
  void* second = arena.reserve("moments", huge);
  EXPECT_NE(first, nullptr);
  EXPECT_GE(reinterpret_cast<std::uintptr_t>(second) - reinterpret_cast<std::uintptr_t>(first), huge);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(arena.bytes(), 2 * huge);
}

TEST(DryDevice, RunsNothing) {
  const auto device = make_dry_device();
  const auto stream = device->make_stream({.name = "compute", .mode = StreamOptions::Mode::served});
  const auto event = device->make_event();
  int value = 5, other = 6;
  device->copy(*stream, &value, &other, sizeof value);
  device->copy_to_host(*stream, &value, device->allocate(4), sizeof value);
  device->zero(*stream, &value, sizeof value);
  stream->record(*event);
  stream->wait(*event);
  stream->synchronize();
  EXPECT_EQ(value, 5);
}

/// Sets environment variables and the affinity of this thread for one test.
class ClaimCores : public testing::Test {
 protected:
  void SetUp() override {
    sched_getaffinity(0, sizeof before_, &before_);
    unsetenv("OMP_NUM_THREADS");
  }
  void TearDown() override {
    sched_setaffinity(0, sizeof before_, &before_);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_MCA_hwloc_base_binding_policy");
  }
  void bind_to_first() {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &before_)) continue;
      CPU_SET(core, &one);
      break;
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  static int cores() {
    cpu_set_t now;
    sched_getaffinity(0, sizeof now, &now);
    return CPU_COUNT(&now);
  }
  cpu_set_t before_;
};

TEST_F(ClaimCores, DividesTheCoresAmongTheRanksOfANodeAndGivesAtLeastOne) {
  const int all = cpu::claim_cores(0, 1);
  EXPECT_GE(all, 1);
  EXPECT_LE(all, cores());
  EXPECT_EQ(cpu::claim_cores(1, 2), std::max(1, all / 2));
  EXPECT_EQ(cpu::claim_cores(999, 1000), std::max(1, all / 1000));
  EXPECT_THROW(cpu::claim_cores(2, 2), std::logic_error);
}

TEST_F(ClaimCores, GoesWhereItLikesWhenNothingIsKnownOfANumaNode) {
  const int all = cpu::claim_cores(0, 1), before = cores();
  EXPECT_EQ(cpu::claim_cores(0, 1, {.numa_node = 4095, .ranks = 1}), all) << "there is none of that number";
  EXPECT_EQ(cpu::claim_cores(0, 1, {.numa_node = 0, .ranks = 0}), all) << "nobody knows how many share it";
  EXPECT_EQ(cores(), before);
}

TEST_F(ClaimCores, StaysOnTheCoresOfItsNumaNode) {
  const int all = cpu::claim_cores(0, 1), before = cores();
  const int near = cpu::claim_cores(0, 1, {.numa_node = 0, .ranks = 1});
  EXPECT_GE(near, 1);
  EXPECT_LE(near, all);
  EXPECT_LE(cores(), before);
  EXPECT_GE(2 * near, all) << "never much less than anywhere";
}

TEST_F(ClaimCores, KeepsABindingOfTheUser) {
  bind_to_first();
  EXPECT_EQ(cpu::claim_cores(0, 1), 1);
  EXPECT_EQ(cores(), 1) << "no launcher: the binding is the user's";
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  setenv("OMPI_MCA_hwloc_base_binding_policy", "core", 1);
  EXPECT_EQ(cpu::claim_cores(0, 1), 1);
  EXPECT_EQ(cores(), 1) << "the launcher was asked to bind";
}

TEST(OpThreads, BelongToTheThread) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ops run on one thread under the thread sanitizer";
#endif
  cpu::set_op_threads(3);
  int other = 0;
  std::thread([&] {
    cpu::set_op_threads(2);
    other = cpu::op_threads();
  }).join();
  EXPECT_EQ(other, 2);
  EXPECT_EQ(cpu::op_threads(), 3);
}

TEST(OpThreads, OutliveADeviceMadeWithoutANumber) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ops run on one thread under the thread sanitizer";
#endif
  cpu::set_op_threads(3);
  const auto by_the_way = make_cpu_device();
  EXPECT_EQ(cpu::op_threads(), 3);
  EXPECT_EQ(omp_get_max_threads(), 3);
  EXPECT_NE(by_the_way->description().find("3 threads"), std::string::npos) << by_the_way->description();
  const auto told = make_cpu_device({.threads = 2});
  EXPECT_EQ(cpu::op_threads(), 2);
  std::thread([] { EXPECT_EQ(cpu::op_threads(), cpu::allowed_cores()) << "before anyone said"; }).join();
}

TEST(CudaDevice, SaysInASentenceWhyItCannotBeHad) {
  // No machine has this many GPUs, so the test holds with and without a driver.
  std::string why;
  EXPECT_FALSE(cuda_available(4096, &why));
  EXPECT_GT(why.size(), 10u);
  EXPECT_NE(why.back(), '.');
  EXPECT_FALSE(cuda_available(-1));
  try {
    make_cuda_device(4096);
    FAIL() << "made a device that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.problem().what, why);
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_FALSE(error.problem().fix.empty());
  }
}

}  // namespace
}  // namespace octet::device_test
