// Data about GPUs before one is opened, as far as it can be tested without a GPU.
#include "octet/device/gpus.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "support/temporary_folder.h"

namespace octet::gpus_test {
namespace {

TEST(Gpus, AreAsManyAsTheDriverShows) {
  const std::vector<GpuInfo> all = gpus();
  ASSERT_EQ(static_cast<int>(all.size()), cuda_device_count());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].ordinal, static_cast<int>(i));
    EXPECT_EQ(all[i].why_not.empty(), cuda_available(all[i].ordinal));
    EXPECT_EQ(all[i].uuid.size(), 40u) << all[i].uuid;
  }
  EXPECT_EQ(gpu_pairs().size(), all.empty() ? 0 : all.size() * (all.size() - 1) / 2);
}

TEST(Gpus, UuidsAreWrittenAsTheDriverDoes) {
  const unsigned char bytes[16] = {0x3f, 0x2a, 0x00, 0xff, 1, 2, 3, 4, 5, 6, 0xa7, 8, 9, 10, 11, 0xcd};
  EXPECT_EQ(uuid_text(bytes), "GPU-3f2a00ff-0102-0304-0506-a708090a0bcd");
}

TEST(Gpus, BusesAreNamedAsTheKernelDoes) {
  EXPECT_EQ(kernel_bus_name("0000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(kernel_bus_name("00000000:E4:00.0"), "0000:e4:00.0");
  EXPECT_EQ(kernel_bus_name("00010000:01:00.0"), "10000:01:00.0");
  EXPECT_EQ(kernel_bus_name("0008:06:00.0"), "0008:06:00.0");
  EXPECT_EQ(kernel_bus_name(""), "");
  EXPECT_EQ(kernel_bus_name("00000"), "00000");
}

TEST(Gpus, NumaNodesComeFromTheKernel) {
  const octet::test::TemporaryFolder scratch("numa");
  const std::filesystem::path folder = scratch.path();
  const auto write = [&](const std::string& bus, const std::string& text) {
    std::filesystem::create_directories(folder / bus);
    std::ofstream(folder / bus / "numa_node") << text;
  };
  write("0000:3b:00.0", "1\n");
  write("0000:5d:00.0", "-1\n");
  write("0000:9b:00.0", "none\n");
  EXPECT_EQ(numa_node_of("0000:3b:00.0", folder.string()), 1);
  EXPECT_EQ(numa_node_of("0000:5d:00.0", folder.string()), -1);
  EXPECT_EQ(numa_node_of("0000:9b:00.0", folder.string()), -1);
  EXPECT_EQ(numa_node_of("0000:ff:00.0", folder.string()), -1);
  EXPECT_EQ(numa_node_of("", folder.string()), -1);
}

TEST(Gpus, HaveAsManyConnectionsAsThereCanBe) {
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  prepare_gpu_environment();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  prepare_gpu_environment();
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  prepare_gpu_environment();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

using Ints = std::vector<int>;

TEST(CpuLists, AreReadAsTheKernelWritesThem) {
  EXPECT_EQ(cpu::parse_cpu_list("0-3,8,10-11\n"), (Ints{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(cpu::parse_cpu_list("5"), (Ints{5}));
  EXPECT_EQ(cpu::parse_cpu_list("3,1,2-3"), (Ints{1, 2, 3}));
  for (const char* wrong : {"", "\n", "-", "1-", "-1", "3-1", "1,,2", "a", "1-b", "1-2-3", "0x1", "1 2",
                            "99999999999999999999", "0-2000000000"}) {
    EXPECT_EQ(cpu::parse_cpu_list(wrong), Ints{}) << wrong;
  }
}

TEST(CoresNear, AreSharedByTheRanksThatAreBestThere) {
  EXPECT_EQ(cpu::share_near(14, 56, 4), 14) << "eight ranks on two NUMA nodes of 56 cores";
  EXPECT_EQ(cpu::share_near(28, 56, 1), 28) << "no more than others get";
  EXPECT_EQ(cpu::share_near(28, 56, 3), 18);
  EXPECT_EQ(cpu::share_near(112, 56, 1), 56) << "a rank alone stays near its GPU";
  EXPECT_EQ(cpu::share_near(16, 2, 1), 0) << "too few of the allowed cores lie there";
  EXPECT_EQ(cpu::share_near(1, 2, 4), 0) << "more ranks than cores";
  EXPECT_EQ(cpu::share_near(8, 0, 1), 0);
  EXPECT_EQ(cpu::share_near(8, 16, 0), 0) << "nobody knows";
}

}  // namespace
}  // namespace octet::gpus_test
