// Warnings about the keys of a configuration, and errors about keys, with their places.
#pragma once

#include "octet/config/config.h"

namespace octet {
struct Problem;
}

namespace octet::config {

/// The warnings of a configuration (Resolved::warnings), then settings that are allowed and rarely meant,
/// each with its place, its harm and what to do instead. load() throws for settings that are wrong. Looks at
/// the configuration alone.
Strings doubts(const Resolved& resolved);

/// Returns the sentence of a doubt after the place of the first of `keys` that is set, or after the file.
std::string placed(const Resolved& resolved, const Strings& keys, const std::string& sentence);

// Adds file and line to errors about keys that depend on the model, the data or the world size. Such errors
// name keys; the resolved configuration has their places.

/// Returns `problem` with keys as the user wrote them, and with the file and line of each. Keys are taken
/// from its place ("configuration key 'template'") or, without a place, from its first sentence.
Problem located(Problem problem, const Resolved& resolved);

}  // namespace octet::config
