#pragma once

#include "octet/ops/grouped_gemm.h"

namespace octet::ops::cuda {

/// Whether the grouped products of so many rows are made in tiles that the copy engine brings, where the rows
/// lie in their order: on Hopper.
bool has_grouped_tiles(const GroupedGemmArgs& args);
/// Enqueues them.
void grouped_tiles(Stream& stream, const GroupedGemmArgs& args);

}  // namespace octet::ops::cuda
