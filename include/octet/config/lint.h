#pragma once

#include "octet/config/config.h"

namespace octet::config {

/// Returns the warnings of a configuration (Resolved::warnings), followed by settings that are valid but
/// rarely intended. Each is a sentence with advice. load() throws for invalid settings. Only the
/// configuration is read.
Strings doubts(const Resolved& resolved);

}  // namespace octet::config
