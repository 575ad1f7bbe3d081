#pragma once

#include "octet/config/config.h"

namespace octet::config {

/// The warnings of a configuration (Resolved::warnings), then settings that are allowed and rarely meant,
/// each as a sentence with what to do instead. load() throws for settings that are wrong. Looks at the
/// configuration alone.
Strings doubts(const Resolved& resolved);

}  // namespace octet::config
