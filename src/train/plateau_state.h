// The state of reduce_lr_on_plateau in a checkpoint.
#pragma once

#include <string>

#include "octet/base/json_fwd.h"
#include "octet/optim/plateau.h"

namespace octet::train {

Json plateau_json(const optim::Plateau::State& state);

/// Reads what plateau_json() wrote. Throws Error for other values; `where` names them.
optim::Plateau::State read_plateau(const Json& saved, const std::string& where);

}  // namespace octet::train
