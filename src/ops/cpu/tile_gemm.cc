// Compiled with contraction of a * b + c into one fused operation (see src/CMakeLists.txt).
#include "cpu/tile_gemm.h"

#include "cpu/levels.h"

namespace octet::ops::cpu {

namespace {

namespace generic {
#define OCTET_TILE_TARGET
#define OCTET_TILE_LANES 4
#define OCTET_TILE_ROWS 4
#include "cpu/tile_kernel.h"
#undef OCTET_TILE_TARGET
#undef OCTET_TILE_LANES
#undef OCTET_TILE_ROWS
}  // namespace generic

#if defined(__x86_64__)
namespace v3 {
#define OCTET_TILE_TARGET __attribute__((target("arch=x86-64-v3")))
#define OCTET_TILE_LANES 8
#define OCTET_TILE_ROWS 4
#include "cpu/tile_kernel.h"
#undef OCTET_TILE_TARGET
#undef OCTET_TILE_LANES
#undef OCTET_TILE_ROWS
}  // namespace v3

namespace v4 {
#define OCTET_TILE_TARGET __attribute__((target("arch=x86-64-v4")))
#define OCTET_TILE_LANES 16
#define OCTET_TILE_ROWS 8
#include "cpu/tile_kernel.h"
#undef OCTET_TILE_TARGET
#undef OCTET_TILE_LANES
#undef OCTET_TILE_ROWS
}  // namespace v4
#endif

using Kernel = void (*)(const TileGemm&);

Kernel best() {
#if defined(__x86_64__)
  if (has_v4()) return v4::run;
  if (has_v3()) return v3::run;
#endif
  return generic::run;
}

}  // namespace

void tile_gemm(const TileGemm& tile) {
  static const Kernel kernel = best();
  kernel(tile);
}

#if defined(__x86_64__)
// Tests extensions, because clang before 18 does not support the level names here. No processor has the
// tested extensions without the rest of their level.
bool has_v3() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

}  // namespace octet::ops::cpu
