#pragma once

#include "octet/base/json_fwd.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Returns, by name, all members of `architecture` that affect the results of a model with given weights.
/// Members that only initialise or name weights are left out. So is max_positions, which is no limit of the
/// core.
Json facts_of(const Architecture& architecture);

}  // namespace octet::model
