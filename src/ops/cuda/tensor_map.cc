#include "cuda/tensor_map.h"

#include <string>

#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

CUtensorMap tensor_map(const TiledMatrix& m) {
  static const auto encode =
      octet::cuda::driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.bytes), static_cast<cuuint64_t>(m.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(m.bytes)};
  const cuuint32_t tile[] = {128, static_cast<cuuint32_t>(m.tile_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map{};
  const CUresult code =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(m.data), sizes, strides, tile, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    throw Error(Problem{.what = "the driver of the GPU describes no tiles of a matrix",
                        .found = "code " + std::to_string(static_cast<int>(code)) + " for " +
                                 std::to_string(m.rows) + " rows of " + std::to_string(m.bytes) + " bytes"});
  }
  return map;
}

}  // namespace octet::ops::cuda
