#pragma once

#include "octet/base/json_fwd.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// All that decides what a model computes from its weights, by name. What only initialises or names them, or
/// is no limit of the core, is left out.
Json facts_of(const Architecture& architecture);

}  // namespace octet::model
