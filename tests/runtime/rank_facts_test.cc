// The facts that ranks exchange on their hosts arrive complete.
#include "octet/runtime/rank_facts.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/comm/serialize.h"

namespace octet::runtime::rank_facts_test {
namespace {

TEST(RankFacts, ArriveWhole) {
  RankFacts sent{.refuses = true,
                 .gpus = {.host = "a \"host\"\n\xff",
                          .device = DeviceWish::cuda,
                          .shares = true,
                          .driver = true,
                          .gpus = {{},
                                   {.ordinal = 3,
                                    .name = "NVIDIA H200",
                                    .uuid = "GPU-1",
                                    .bus = "0000:3b:00.0",
                                    .numa_node = 1,
                                    .capability = 90,
                                    .memory = std::size_t{141} << 30,
                                    .why_not = "too old"}},
                          .why_not = "no GPU"}};
  const auto came = comm::from_bytes<RankFacts>(comm::to_bytes(sent));
  EXPECT_TRUE(came.refuses && came.gpus.shares && came.gpus.driver);
  EXPECT_EQ(came.gpus.host, sent.gpus.host);
  EXPECT_EQ(came.gpus.device, DeviceWish::cuda);
  EXPECT_EQ(came.gpus.why_not, "no GPU");
  ASSERT_EQ(came.gpus.gpus.size(), 2u);
  EXPECT_EQ(came.gpus.gpus[0].numa_node, -1);
  const GpuInfo& gpu = came.gpus.gpus[1];
  EXPECT_EQ(gpu.ordinal, 3);
  EXPECT_EQ(gpu.name, "NVIDIA H200");
  EXPECT_EQ(gpu.uuid, "GPU-1");
  EXPECT_EQ(gpu.bus, "0000:3b:00.0");
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(gpu.capability, 90);
  EXPECT_EQ(gpu.memory, std::size_t{141} << 30);
  EXPECT_EQ(gpu.why_not, "too old");
}

TEST(RankFacts, OfAnotherProgramAreAnError) {
  EXPECT_THROW(comm::from_bytes<RankFacts>(std::string(1, 0) + std::string(8, -1)), Error)
      << "a host without end";
  EXPECT_THROW(comm::from_bytes<RankFacts>(""), Error);
  std::string cut = comm::to_bytes(RankFacts{});
  cut.pop_back();
  EXPECT_THROW(comm::from_bytes<RankFacts>(cut), Error);
}

}  // namespace
}  // namespace octet::runtime::rank_facts_test
