#pragma once

#include "octet/ops/expert_gemm.h"

namespace octet::ops::cuda {

/// True if grouped GEMMs with this number of rows use tiles of the copy engine. This needs Hopper and rows in
/// the order of the experts.
bool has_grouped_tiles(const GroupedGemmArgs& args);
/// Enqueues the GEMMs. Requires has_grouped_tiles().
void grouped_tiles(Stream& stream, const GroupedGemmArgs& args);

}  // namespace octet::ops::cuda
