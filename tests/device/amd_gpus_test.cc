// AMD GPUs in simulated kernel folders.
#include "octet/device/gpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "octet/device/gpu_choice.h"
#include "support/temporary_folder.h"

namespace octet::amd_gpus_test {
namespace {

namespace fs = std::filesystem;

class AmdGpus : public testing::Test {
 protected:
  AmdGpus() : folder_("amd") {}
  void file(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text << "\n";
  }
  void device(const std::string& address, const std::string& vendor, const std::string& kind) const {
    file("sys/bus/pci/devices/" + address + "/vendor", vendor);
    file("sys/bus/pci/devices/" + address + "/class", kind);
  }
  test::TemporaryFolder folder_;
};

TEST_F(AmdGpus, AreFoundOnPciByVendorAndClass) {
  EXPECT_TRUE(amd_gpus(folder_.path()).empty());
  EXPECT_EQ(amd_gpus_text(folder_.path()), "");
  device("0000:00:00.0", "0x1002", "0x060400");  // a bridge of AMD
  device("0000:01:00.0", "0x10de", "0x030200");  // a GPU of NVIDIA
  EXPECT_EQ(amd_gpus_text(folder_.path()), "");
  device("0000:83:00.0", "0x1002", "0x120000");  // an accelerator
  EXPECT_EQ(amd_gpus_text(folder_.path()),
            "an AMD GPU is present (0000:83:00.0), which this program does not use: it computes on NVIDIA's "
            "GPUs, and here on the CPU");
  device("0000:03:00.0", "0x1002", "0x030000");
  EXPECT_EQ(amd_gpus(folder_.path()), (std::vector<std::string>{"0000:03:00.0", "0000:83:00.0"}));
  EXPECT_TRUE(
      amd_gpus_text(folder_.path()).starts_with("2 AMD GPUs are present (0000:03:00.0, 0000:83:00.0)"));
}

// A container may show the driver and not the bus.
TEST_F(AmdGpus, AreFoundInTheDriversTopologyToo) {
  file("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0");
  EXPECT_TRUE(amd_gpus(folder_.path()).empty());
  file("sys/class/kfd/kfd/topology/nodes/1/properties", "cpu_cores_count 0\nsimd_count 912\nvendor_id 4098");
  EXPECT_EQ(amd_gpus(folder_.path()), std::vector<std::string>{"kfd node 1"});
}

TEST_F(AmdGpus, AreNamedWhereThereIsNoDriverOfNvidias) {
  GpuAnswers none{.driver = 0, .program = 13000};
  EXPECT_EQ(why_no_driver(none), "no NVIDIA driver was found");
  none.others = "an AMD GPU is here";
  EXPECT_EQ(why_no_driver(none), "no NVIDIA driver was found; an AMD GPU is here");
  none.driver = 13000;
  EXPECT_EQ(why_no_driver(none), "");
}

}  // namespace
}  // namespace octet::amd_gpus_test
