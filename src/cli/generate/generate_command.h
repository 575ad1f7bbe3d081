#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/answers/answer.h"
#include "options.h"

namespace octet::cli {

// The command line of `trainer generate`.

/// Returns the parsed call, or nullopt if help was requested. Throws Error (usage) for unknown or
/// contradictory options.
std::optional<answers::GenerateCall> read_generate_call(const Arguments& arguments);

}  // namespace octet::cli
