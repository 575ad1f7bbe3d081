// What is said of a command line that CLI11 refuses.
#pragma once

#include "command.h"
#include "octet/base/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace octet::cli {

/// The message for what CLI11 threw while `app` read `typed`: it names the option as it was typed, what it
/// takes, and what it was given.
Error option_error(CLI::App& app, const Arguments& typed, const CLI::ParseError& refusal);

}  // namespace octet::cli
