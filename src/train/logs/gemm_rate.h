// Measures the GEMM speed of a device, to estimate the time of a run.
#pragma once

#include <cstdint>

#include "octet/device/device.h"

namespace octet::train {

struct GemmShape {
  std::int64_t rows = 0, cols = 0, inner = 0;
};

/// Returns the FLOP/s of a GEMM of this shape, with at most 1,024 columns and 256 rows. Takes a few
/// milliseconds. Ranks that share cores measure their share if all call this function concurrently.
double gemm_rate(Device& device, DType dtype, GemmShape shape);

}  // namespace octet::train
