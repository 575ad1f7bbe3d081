#pragma once

#include "octet/config/config.h"

namespace octet::config {

/// The warnings of a configuration (Resolved::warnings), then settings that are allowed and rarely meant,
/// each with its place, its harm and what to do instead. load() throws for settings that are wrong. Looks at
/// the configuration alone.
Strings doubts(const Resolved& resolved);

/// Returns the sentence of a doubt after the place of the first of `keys` that is set, or after the file.
std::string placed(const Resolved& resolved, const Strings& keys, const std::string& sentence);

}  // namespace octet::config
