// Decodes received wire data to values.
#include "cuda/wire/wire_tiles.cuh"

namespace octet::ops::cuda {
namespace {

using namespace wires;

template <Wire wire>
constexpr int kQuadsOfDecode = wire == Wire::fp8 || wire == Wire::int8 ? kQuadsOfNarrow : kQuads;

template <Wire wire, typename E>
__global__ void __launch_bounds__(kThreads) decode_kernel(DecodeArgs a, bool vector) {
  each_tile<kQuadsOfDecode<wire>>(a.count, vector, [&](auto tile, std::int64_t base) {
    constexpr bool whole = decltype(tile)::whole;
    constexpr int quads = decltype(tile)::quads;
    PartTile<wire, decltype(tile)> part;
    part.load(a.part, base, a.count);
    Values<quads> x;
#pragma unroll
    for (int q = 0; q < quads; ++q) part.get(q, x[q]);
    store_values<whole, quads>(static_cast<E*>(a.to), base, a.count, x);
  });
}

}  // namespace

void decode_values(Stream& stream, const DecodeArgs& a) {
  if (a.count == 0) return;
  const bool vector = moves_words(a.part, a.wire) && moves_words(a.to, size_of(a.dtype));
  with_narrow(a.wire, [&](auto wire) {
    with_values(a.dtype, [&](auto element) {
      constexpr Wire of = decltype(wire)::value;
      decode_kernel<of, decltype(element)>
          <<<grid_for(stream, a.count, kQuadsOfDecode<of>), kThreads, 0, octet::cuda::native(stream)>>>(
              a, vector);
    });
  });
  octet::cuda::check_launch("decode_values");
}

}  // namespace octet::ops::cuda
