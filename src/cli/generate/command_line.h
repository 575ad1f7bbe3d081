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
  std::vector<std::string> given;  ///< settings that the line gives, by the names of generation_config.json
  bool model_defaults = true;      ///< others come from that file
};

/// Nothing where help was asked for. Throws Error (usage) for what is not known, or does not fit together.
std::optional<GenerateCall> read_generate_call(const Arguments& arguments);

}  // namespace octet::cli
