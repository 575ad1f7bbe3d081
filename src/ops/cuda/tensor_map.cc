#include "cuda/tensor_map.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

/// `steps`: byte strides of all dimensions except the first.
template <std::size_t N>
CUtensorMap described(const void* data, const cuuint64_t (&sizes)[N], const cuuint64_t (&steps)[N - 1],
                      const cuuint32_t (&tile)[N]) {
  static const auto encode =
      octet::cuda::driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  cuuint32_t each[N];
  std::fill(std::begin(each), std::end(each), 1u);
  CUtensorMap map{};
  const CUresult code = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, N, const_cast<void*>(data), sizes, steps,
                               tile, each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    throw Error(Problem{.what = "the driver of the GPU describes no tiles of a matrix",
                        .found = "code " + std::to_string(static_cast<int>(code)) + " for rows of " +
                                 std::to_string(sizes[0]) + " bytes"});
  }
  return map;
}

cuuint64_t size(std::int64_t x) {
  return static_cast<cuuint64_t>(x);
}

}  // namespace

CUtensorMap tensor_map(const TiledMatrix& m) {
  return described<2>(m.data, {size(m.bytes), size(m.rows)}, {size(m.bytes)},
                      {128, static_cast<cuuint32_t>(m.tile_rows)});
}

CUtensorMap tensor_map(const TiledWeight& w) {
  return described<5>(
      w.data, {size(w.bytes), 8, 2, size(w.groups), size(w.heads)},
      {size(w.bytes), size(w.second * w.bytes), size(w.group * w.bytes), size(w.head * w.bytes)},
      {128, 8, 2, 4, 1});
}

}  // namespace octet::ops::cuda
