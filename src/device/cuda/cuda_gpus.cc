// Answers of the CUDA runtime about GPUs, without a context on any GPU.
#include "octet/device/gpus.h"

#include <cuda_runtime_api.h>

#include <array>

#include "octet/device/device.h"

namespace octet {
namespace {

/// Returns whether a call succeeded. Clears the error of a failed call.
bool answered(cudaError_t code) {
  if (code == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

bool reaches(int from, int to) {
  int can = 0;
  return answered(cudaDeviceCanAccessPeer(&can, from, to)) && can != 0;
}

int attribute_of(cudaDeviceP2PAttr attribute, int from, int to, int unknown) {
  int value = 0;
  return answered(cudaDeviceGetP2PAttribute(&value, attribute, from, to)) ? value : unknown;
}

}  // namespace

std::vector<GpuInfo> gpus() {
  std::vector<GpuInfo> all;
  const int count = cuda_device_count();
  for (int i = 0; i < count; ++i) {
    GpuInfo gpu{.ordinal = i};
    cudaDeviceProp found{};
    if (answered(cudaGetDeviceProperties(&found, i))) {
      gpu.name = found.name;
      gpu.uuid = uuid_text(reinterpret_cast<const unsigned char*>(found.uuid.bytes));
      gpu.capability = 10 * found.major + found.minor;
      gpu.memory = found.totalGlobalMem;
    }
    std::array<char, 64> bus{};
    if (answered(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), i))) {
      gpu.bus = kernel_bus_name(bus.data());
    }
    gpu.numa_node = numa_node_of(gpu.bus);
    cuda_available(i, &gpu.why_not);
    all.push_back(std::move(gpu));
  }
  return all;
}

std::vector<GpuPair> gpu_pairs() {
  std::vector<GpuPair> all;
  const int count = cuda_device_count();
  for (int i = 0; i < count; ++i) {
    for (int k = i + 1; k < count; ++k) {
      all.push_back({.first = i,
                     .second = k,
                     .peer_access = reaches(i, k) && reaches(k, i),
                     .performance_rank = attribute_of(cudaDevP2PAttrPerformanceRank, i, k, -1),
                     .native_atomics = attribute_of(cudaDevP2PAttrNativeAtomicSupported, i, k, 0) != 0});
    }
  }
  return all;
}

}  // namespace octet
