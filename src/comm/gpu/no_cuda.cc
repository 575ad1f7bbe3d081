// Replaces the CUDA side in builds without CUDA. Never reached, because no device is a GPU.
#include "gpu/nccl_library.h"
#include "gpu/peer_access.h"
#include "octet/base/error.h"

namespace octet::comm {
namespace {

Error left_out() {
  return Error(Problem{.what = "this program was built without CUDA", .fix = "build with -DOCTET_CUDA=ON"});
}

}  // namespace

std::unique_ptr<PeerAccess> make_cuda_peer_access(Device&) {
  throw left_out();
}

int load_nccl() {
  throw left_out();
}

std::string gpu_uuid(Device&) {
  throw left_out();
}

std::string make_nccl_id() {
  throw left_out();
}

std::unique_ptr<Exchange> make_nccl_exchange(Device&, const std::string&, int, int) {
  throw left_out();
}

}  // namespace octet::comm
