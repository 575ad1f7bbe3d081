// Statistics of casts to FP8 over all ranks, and their fields in a log row.
#pragma once

#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/comm/channel.h"
#include "octet/precision/casts.h"

namespace octet::train {

/// Returns the rows of all ranks, merged: counts are summed, amax is the largest (NaN if any is NaN), scale
/// is the smallest. Collective. All ranks pass rows with equal names in equal order. Rows of one name are
/// merged.
std::vector<precision::CastRow> casts_of_all(comm::Channel& channel,
                                             const std::vector<precision::CastRow>& own);

/// The two fields of a log row, by GEMM and operand (docs/logging.md). Names are "layers.N.PRODUCT/OPERAND";
/// a further part after another slash is ignored.
struct CastFields {
  Json worst;   ///< {"qkv": {"input": {"amax", "scale", "saturated", "lost", "layer"}, …}, …}
  Json layers;  ///< {"qkv": {"input": {"amax": [by layer], "scale": […], …}, …}, …}
};
CastFields cast_fields(const std::vector<precision::CastRow>& rows);

}  // namespace octet::train
