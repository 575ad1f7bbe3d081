// Links of GPUs, as reported by a fake of the driver's library.
#include "octet/device/gpus.h"

#include <gtest/gtest.h>

namespace octet::gpu_links_test {
namespace {

TEST(GpuLinks, AreWhatTheDriverTells) {
  const GpuLinks found = gpu_links({"GPU-0", "GPU-1", "GPU-2", "GPU-3"}, STAND_IN_NVML_GOOD);
  EXPECT_EQ(found.why_not, "");
  ASSERT_EQ(found.ports.size(), 4u);
  EXPECT_EQ(found.ports[0].nvlinks, 18);
  EXPECT_EQ(found.ports[1].nvlinks, 16);
  EXPECT_EQ(found.ports[2].nvlinks, 2);
  EXPECT_EQ(found.ports[3].nvlinks, 0);
  EXPECT_EQ(found.ports[0].nvlink_version, 4);
  EXPECT_EQ(found.ports[3].nvlink_version, 0);
  EXPECT_TRUE(found.ports[1].to_switch);
  EXPECT_FALSE(found.ports[2].to_switch);
  EXPECT_EQ(found.ports[3].pcie_generation, 5);
  EXPECT_EQ(found.ports[3].pcie_lanes, 16);
  ASSERT_EQ(found.links.size(), 6u);
  const auto between = [&](int a, int b) {
    for (const GpuLink& link : found.links) {
      if (link.first == a && link.second == b) return link;
    }
    return GpuLink{};
  };
  EXPECT_EQ(between(0, 1).nvlinks, 16) << "through the switch";
  EXPECT_EQ(between(0, 2).nvlinks, 2) << "directly";
  EXPECT_EQ(between(1, 2).nvlinks, 0);
  EXPECT_EQ(between(0, 3).nvlinks, 0);
  EXPECT_EQ(between(2, 3).pcie, "a PCIe switch");
  EXPECT_EQ(between(1, 2).pcie, "the link between NUMA nodes");
}

TEST(GpuLinks, SayWhyNothingIsKnown) {
  EXPECT_NE(gpu_links({}, "/nowhere/libnvidia-ml.so.1").why_not.find("cannot be loaded"), std::string::npos);
  EXPECT_NE(gpu_links({"GPU-0"}, STAND_IN_NVML_FAILS).why_not.find("error 9"), std::string::npos);
  const GpuLinks unknown = gpu_links({"GPU-0", "GPU-7"}, STAND_IN_NVML_GOOD);
  EXPECT_EQ(unknown.why_not, "NVML does not know GPU-7");
  EXPECT_TRUE(unknown.ports.empty());
  EXPECT_NE(gpu_links({"GPU-0"}, "libm.so.6").why_not.find("is no NVML"), std::string::npos);
}

}  // namespace
}  // namespace octet::gpu_links_test
