#pragma once

#include <string>

#include "octet/base/json_fwd.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Reads a quantization_config of transformers. Throws Error (usage) with the name of the method for an
/// unsupported or unknown method. `has_biased_experts`: whether the family has the stacked experts with
/// biases that alone are read in MXFP4 (gpt-oss).
StoredWeights read_stored_weights(const Json& config, const std::string& where, bool has_biased_experts);

}  // namespace octet::model
