// AMX tiles in plain C++, for processors without AMX. Included before the sources of AMX attention, it
// replaces the tile instructions. All other code (layouts, masks, the AVX-512 softmax) is thus tested on
// every processor with AVX-512 bf16.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "octet/base/dtype.h"

namespace octet::ops::emulated {

/// Eight tiles of 16 rows of 64 bytes.
struct Tile {
  std::uint32_t row[16][16];
};
inline Tile& tile(int number) {
  static thread_local Tile tiles[8];
  return tiles[number];
}
inline void zero(int to) {
  std::memset(&tile(to), 0, sizeof(Tile));
}
inline void load(int to, const void* from, std::size_t stride) {
  for (std::size_t r = 0; r < 16; ++r) {
    std::memcpy(tile(to).row[r], static_cast<const std::uint8_t*>(from) + r * stride, 64);
  }
}
inline void store(int from, void* to, std::size_t stride) {
  for (std::size_t r = 0; r < 16; ++r) {
    std::memcpy(static_cast<std::uint8_t*>(to) + r * stride, tile(from).row[r], 64);
  }
}
/// TDPBF16PS: fp32 sums of products of pairs of bf16.
inline void multiply_add(int to, int left, int right) {
  const auto half = [](std::uint32_t pair, int which) {
    return from_bf16(static_cast<std::uint16_t>(pair >> (16 * which)));
  };
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float sum = 0;
      std::memcpy(&sum, &tile(to).row[m][n], sizeof sum);
      for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < 2; ++i) sum += half(tile(left).row[m][k], i) * half(tile(right).row[k][n], i);
      }
      std::memcpy(&tile(to).row[m][n], &sum, sizeof sum);
    }
  }
}

/// Returns whether this processor has all instructions that are not emulated.
inline bool runs_here() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}

}  // namespace octet::ops::emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(to) ::octet::ops::emulated::zero(to)
#define _tile_loadd(to, from, stride) ::octet::ops::emulated::load(to, from, stride)
#define _tile_stored(from, to, stride) ::octet::ops::emulated::store(from, to, stride)
#define _tile_dpbf16ps(to, left, right) ::octet::ops::emulated::multiply_add(to, left, right)

#endif
