#pragma once

#include "octet/config/config.h"

namespace octet::config {

/// Settings that are allowed and that one would rarely mean, each as a sentence with what to do instead. What
/// is wrong is not here: load() throws for it. Looks at the configuration alone.
Strings doubts(const Resolved& resolved);

}  // namespace octet::config
