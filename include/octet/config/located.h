// What is wrong with a value that only the model, the data or the number of ranks show: such errors name
// keys, and where these were said is known to the resolved configuration.
#pragma once

#include "octet/config/config.h"

namespace octet {
struct Problem;
}

namespace octet::config {

/// `problem` with the keys that its place names ("configuration key 'template'"), or without a place its
/// first sentence, as the user wrote them, and with the file and line of each.
Problem located(Problem problem, const Resolved& resolved);

}  // namespace octet::config
