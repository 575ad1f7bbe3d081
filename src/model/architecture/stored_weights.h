#pragma once

#include <string>

#include "octet/base/json_fwd.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Of a quantization_config, as transformers writes it. Throws Error (usage), by name, for methods that are
/// not read and for an unknown one.
StoredWeights read_stored_weights(const Json& config, const std::string& where);

}  // namespace octet::model
