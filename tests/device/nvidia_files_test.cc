// NVIDIA GPUs in simulated kernel folders.
#include "octet/device/gpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "octet/device/gpu_choice.h"
#include "support/temporary_folder.h"

namespace octet::nvidia_files_test {
namespace {

namespace fs = std::filesystem;

struct Shown {
  const char* name;
  std::vector<std::string> files, folders;
  std::vector<std::string> found;
  const char* text;
};

TEST(NvidiaFiles, AreTheGpusThatTheKernelShows) {
  const std::vector<Shown> all{
      {"nothing", {}, {"dev"}, {}, ""},
      {"no /dev", {}, {}, {}, ""},
      {"a GPU of another maker", {"dev/dri"}, {"sys/class/kfd"}, {}, ""},
      {"one GPU",
       {"dev/nvidia0", "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-modeset"},
       {"proc/driver/nvidia"},
       {"/dev/nvidia0"},
       "this machine shows an NVIDIA GPU (/dev/nvidia0)"},
      {"several, by number",
       {"dev/nvidia10", "dev/nvidia2", "dev/nvidia1x"},
       {},
       {"/dev/nvidia2", "/dev/nvidia10"},
       "this machine shows 2 NVIDIA GPUs (/dev/nvidia2, /dev/nvidia10)"},
      {"the driver alone, in a container without devices",
       {"dev/null"},
       {"proc/driver/nvidia"},
       {"/proc/driver/nvidia"},
       "this machine shows NVIDIA's driver (/proc/driver/nvidia)"},
      {"control files alone", {"dev/nvidiactl"}, {}, {}, ""},
  };
  for (const Shown& shown : all) {
    SCOPED_TRACE(shown.name);
    const test::TemporaryFolder root("nvidia");
    for (const std::string& folder : shown.folders) fs::create_directories(root / folder);
    for (const std::string& file : shown.files) {
      fs::create_directories(fs::path(root / file).parent_path());
      std::ofstream(root / file) << "";
    }
    EXPECT_EQ(nvidia_files(root.path()), shown.found);
    EXPECT_EQ(nvidia_files_text(root.path()), shown.text);
    // A build without CUDA warns only if there are GPUs.
    const std::string why = built_without_cuda_text(root.path());
    const GpuChoice choice =
        choose_gpus({{.host = "here", .driver = !nvidia_files(root.path()).empty(), .why_not = why}});
    EXPECT_EQ(choice.why_cpu, shown.found.empty() ? "" : why);
    EXPECT_EQ((why.find("-DOCTET_CUDA=ON") != std::string::npos), !shown.found.empty()) << why;
    EXPECT_TRUE((why.find(shown.text) != std::string::npos)) << why;
  }
}

}  // namespace
}  // namespace octet::nvidia_files_test
