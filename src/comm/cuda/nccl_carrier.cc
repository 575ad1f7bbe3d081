#include "../nccl_carrier.h"

#include <numeric>
#include <vector>

#include "nccl_exchange.h"
#include "octet/base/error.h"

namespace octet::comm {

int load_nccl() {
  if (!built_with_nccl()) {
    throw Error(Problem{.what = "this program was built without NCCL", .fix = "build with -DOCTET_NCCL=ON"});
  }
  return nccl_library().version();
}

std::string make_nccl_id() {
  return make_nccl_id(nccl_library());
}

std::unique_ptr<Exchange> make_nccl_exchange(Device& device, const std::string& id, int rank, int size) {
  auto made =
      std::make_unique<NcclExchange>(nccl_library(), device, NcclGroup{.id = id, .size = size, .member = rank});
  std::vector<int> peers(static_cast<std::size_t>(size));
  std::iota(peers.begin(), peers.end(), 0);
  std::erase(peers, rank);
  made->connect(peers);
  return made;
}

}  // namespace octet::comm
