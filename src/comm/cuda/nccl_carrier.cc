#include "gpu/nccl_carrier.h"

#include <cuda_runtime_api.h>

#include <numeric>
#include <vector>

#include "nccl_exchange.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"
#include "octet/device/gpus.h"

namespace octet::comm {

int load_nccl() {
  if (!built_with_nccl()) {
    throw Error(Problem{.what = "this program was built without NCCL", .fix = "build with -DOCTET_NCCL=ON"});
  }
  return nccl_library().version();
}

std::string gpu_uuid(Device& device) {
  cuda::native(*device.make_stream({.name = "uuid"}));  // makes the device the thread's current one
  int ordinal = 0;
  cudaDeviceProp found{};
  cuda::check(cudaGetDevice(&ordinal), "asking which GPU this is");
  cuda::check(cudaGetDeviceProperties(&found, ordinal), "asking what the GPU is");
  return uuid_text(reinterpret_cast<const unsigned char*>(found.uuid.bytes));
}

std::string make_nccl_id() {
  return make_nccl_id(nccl_library());
}

std::unique_ptr<Exchange> make_nccl_exchange(Device& device, const std::string& id, int rank, int size) {
  auto made = std::make_unique<NcclExchange>(nccl_library(), device,
                                             NcclGroup{.id = id, .size = size, .member = rank});
  std::vector<int> peers(static_cast<std::size_t>(size));
  std::iota(peers.begin(), peers.end(), 0);
  std::erase(peers, rank);
  made->connect(peers);
  return made;
}

}  // namespace octet::comm
