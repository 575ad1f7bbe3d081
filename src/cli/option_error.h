// Error messages for command lines that CLI11 refuses.
#pragma once

#include "command.h"
#include "octet/base/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace octet::cli {

/// Converts an exception that CLI11 threw while `app` parsed `typed`. The message names the option as typed,
/// the accepted values, and the given value.
Error option_error(CLI::App& app, const Arguments& typed, const CLI::ParseError& refusal);

}  // namespace octet::cli
