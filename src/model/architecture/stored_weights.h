#pragma once

#include <string>

#include "octet/base/json_fwd.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Reads a quantization_config of transformers. Throws Error (usage) with the name of the method for an
/// unsupported or unknown method.
StoredWeights read_stored_weights(const Json& config, const std::string& where);

}  // namespace octet::model
