// The command line of `trainer generate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "generate/generate_options.h"
#include "options.h"

namespace octet::cli {

struct GenerateCall {
  GenerateOptions options;
  std::vector<std::string> given;  ///< settings on the command line, by their names in generation_config.json
  bool model_defaults = true;      ///< other settings come from that file
};

/// Returns the parsed call, or nullopt if help was requested. Throws Error (usage) for unknown or
/// contradictory options.
std::optional<GenerateCall> read_generate_call(const Arguments& arguments);

}  // namespace octet::cli
