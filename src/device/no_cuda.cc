// Answers about GPUs in a build without CUDA.
#include "octet/base/error.h"
#include "octet/device/device.h"
#include "octet/device/gpus.h"

namespace octet {

namespace cuda {
std::unique_ptr<Recording> record(Stream&, const std::function<void()>&) {
  return nullptr;
}
}  // namespace cuda

bool cuda_available(int, std::string* why_not) {
  if (why_not) {
    *why_not = built_without_cuda_text();
    if (const std::string others = amd_gpus_text(); !others.empty() && nvidia_files().empty())
      *why_not += "; " + others;
  }
  return false;
}

int cuda_device_count() {
  return 0;
}

bool has_cuda_driver() {
  return false;
}

std::vector<GpuInfo> gpus() {
  return {};
}

std::vector<GpuPair> gpu_pairs() {
  return {};
}

std::unique_ptr<Device> make_cuda_device(int) {
  throw Error({.what = "this program was built without CUDA",
               .expected = "a build with the CUDA toolkit for device: cuda",
               .where = "configuration key 'device'",
               .fix = "build with -DOCTET_CUDA=ON, use device: cpu, or leave it auto",
               .code = ExitCode::usage});
}

}  // namespace octet
