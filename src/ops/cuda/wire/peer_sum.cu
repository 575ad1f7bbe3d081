// Each thread writes its words to the memory of all peers, waits for the corresponding words of the peers,
// and adds. Threads of different blocks never wait for each other or for a fence.
#include "octet/ops/peer_sum.h"

#include <algorithm>

#include "cuda/early_launch.cuh"
#include "octet/device/cuda.h"
#include "peer_sum_rule.h"

namespace octet::ops::cuda {

void peer_sum(Stream& stream, const PeerSumArgs& args);

namespace {

constexpr int kMostThreads = 512;
// Two words of values with their marks, in 16 bytes. Each 8-byte half arrives atomically.
constexpr std::size_t kValueBytes = sizeof(uint2);

struct Places {
  std::byte* of[kMostPeers];
};

__device__ void put(void* there, uint2 values, std::uint32_t mark) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(there), "r"(values.x), "r"(mark),
               "r"(values.y), "r"(mark)
               : "memory");
}

__device__ uint2 await(const void* here, std::uint32_t mark) {
  uint2 values;
  std::uint32_t first, second;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values.x), "=r"(first), "=r"(values.y), "=r"(second)
                 : "l"(here)
                 : "memory");
  } while (first != mark || second != mark);
  return values;
}

/// 8 bytes of values, converted to fp32.
template <typename Value>
struct Wide;

template <>
struct Wide<float> {
  static constexpr int kCount = 2;
  float x[kCount];
  __device__ static Wide of(uint2 values) { return {{__uint_as_float(values.x), __uint_as_float(values.y)}}; }
  __device__ uint2 rounded() const { return {__float_as_uint(x[0]), __float_as_uint(x[1])}; }
};

template <>
struct Wide<Bf16> {
  static constexpr int kCount = 4;
  float x[kCount];
  __device__ static float low(std::uint32_t word) { return __uint_as_float(word << 16); }
  __device__ static float high(std::uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }
  __device__ static Wide of(uint2 values) {
    return {{low(values.x), high(values.x), low(values.y), high(values.y)}};
  }
  __device__ static std::uint32_t both(float low, float high) {
    return to_bf16(low) | static_cast<std::uint32_t>(to_bf16(high)) << 16;
  }
  __device__ uint2 rounded() const { return {both(x[0], x[1]), both(x[2], x[3])}; }
};

template <typename Value>
__device__ void add(Wide<Value>& sum, const Wide<Value>& more) {
#pragma unroll
  for (int i = 0; i < Wide<Value>::kCount; ++i) sum.x[i] = sum.x[i] + more.x[i];
}

template <typename Value>
__global__ void __launch_bounds__(kMostThreads)
    peer_sum_kernel(const uint2* values, const uint2* addend, uint2* to, std::size_t count, int rank,
                    int ranks, const __grid_constant__ Places places, std::size_t room,
                    unsigned long long* begun) {
  __shared__ std::uint64_t number;
  wait_for_previous();
  if (threadIdx.x == 0) number = atomicAdd(begun, 1ull) / kPeerSumBlocks;
  __syncthreads();
  const std::uint64_t n = number;
  const std::uint32_t mark = mark_of(n);
  const std::size_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
  const std::size_t own = place_of(n, ranks, rank, room);
  for (std::size_t i = first; i < count; i += stride) {
    const uint2 mine = values[i];
    for (int d = 1; d < ranks; ++d) {
      const int peer = rank + d < ranks ? rank + d : rank + d - ranks;
      put(places.of[peer] + own + i * 2 * kValueBytes, mine, mark);
    }
  }
  let_next_begin();
  for (std::size_t i = first; i < count; i += stride) {
    const auto part = [&](int member) {
      const std::byte* const came = places.of[rank] + place_of(n, ranks, member, room);
      return Wide<Value>::of(member == rank ? values[i] : await(came + i * 2 * kValueBytes, mark));
    };
    Wide<Value> sum = part(0);
    for (int member = 1; member < ranks; ++member) add(sum, part(member));
    uint2 made = sum.rounded();
    if (addend != nullptr) {
      Wide<Value> all = Wide<Value>::of(addend[i]);
      add(all, Wide<Value>::of(made));
      made = all.rounded();
    }
    to[i] = made;
  }
}

}  // namespace

void peer_sum(Stream& stream, const PeerSumArgs& args) {
  const std::size_t count = static_cast<std::size_t>(args.count) * size_of(args.dtype) / kValueBytes;
  const std::size_t of_block = (count + kPeerSumBlocks - 1) / kPeerSumBlocks;
  const int threads = std::clamp(static_cast<int>((of_block + 31) / 32 * 32), 32, kMostThreads);
  Places places{};
  std::ranges::copy(args.places, places.of);
  const auto kernel = args.dtype == DType::bf16 ? peer_sum_kernel<Bf16> : peer_sum_kernel<float>;
  launch_early(kernel, dim3(kPeerSumBlocks), threads, 0, octet::cuda::native(stream), "peer_sum",
               static_cast<const uint2*>(args.values), static_cast<const uint2*>(args.addend),
               static_cast<uint2*>(args.to), count, args.rank, static_cast<int>(args.places.size()), places,
               args.room, reinterpret_cast<unsigned long long*>(args.begun));
}

}  // namespace octet::ops::cuda
