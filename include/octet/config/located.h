// Adds file and line to errors about keys that depend on the model, the data or the world size. Such errors
// name keys; the resolved configuration has their places.
#pragma once

#include "octet/config/config.h"

namespace octet {
struct Problem;
}

namespace octet::config {

/// Returns `problem` with keys as the user wrote them, and with the file and line of each. Keys are taken
/// from its place ("configuration key 'template'") or, without a place, from its first sentence.
Problem located(Problem problem, const Resolved& resolved);

}  // namespace octet::config
