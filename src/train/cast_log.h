// What casts to FP8 met, of all ranks, and how a row of the log has it.
#pragma once

#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/comm/channel.h"
#include "octet/precision/casts.h"

namespace octet::train {

/// Rows of all ranks added up: counts as sums, amax as the largest (NaN where one is), scale as the least.
/// All ranks call it with rows of the same names in the same order; rows of one name become one.
std::vector<precision::CastRow> casts_of_all(comm::Channel& channel,
                                             const std::vector<precision::CastRow>& own);

/// By product and operand, as the two fields of a row in the log have it (docs/logging.md). Names are
/// "layers.N.PRODUCT/OPERAND", and more behind another slash that is left out.
struct CastFields {
  Json worst;   ///< {"qkv": {"input": {"amax", "scale", "saturated", "lost", "layer"}, …}, …}
  Json layers;  ///< {"qkv": {"input": {"amax": [by layer], "scale": […], …}, …}, …}
};
CastFields cast_fields(const std::vector<precision::CastRow>& rows);

}  // namespace octet::train
