#include "octet/ops/peer_sum.h"

#include "dispatch.h"

namespace octet::ops {

namespace cpu {
void peer_sum(const PeerSumArgs& args);
}  // namespace cpu
namespace cuda {
void peer_sum(Stream& stream, const PeerSumArgs& args);
}  // namespace cuda

bool peer_sum_takes(std::int64_t count, DType dtype, std::size_t room) {
  if (dtype != DType::f32 && dtype != DType::bf16) return false;
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  return count > 0 && bytes % sizeof(std::uint64_t) == 0 && bytes <= room;
}

void peer_sum(Stream& stream, const PeerSumArgs& args) {
  const int ranks = static_cast<int>(args.places.size());
  check(ranks > 0 && ranks <= kMostPeers && args.rank >= 0 && args.rank < ranks,
        "peer_sum: every rank of the group has its places");
  check(args.room % sizeof(std::uint64_t) == 0 && peer_sum_takes(args.count, args.dtype, args.room),
        "peer_sum: values in f32 or bf16, as many as the places have room for, in words of 8 bytes");
  check(args.values != nullptr && args.to != nullptr && args.to != args.addend && args.begun != nullptr,
        "peer_sum: values, a separate buffer for their sum, and the count of sums are needed");
  OCTET_DISPATCH(stream, peer_sum, args);
}

}  // namespace octet::ops
