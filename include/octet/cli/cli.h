// The cli room: one program, `trainer`, and a file for each of its commands. Results go to standard output,
// everything else to standard error; one rank prints.
#pragma once

namespace octet::cli {

/// Runs the program and returns its exit code. Without a command name the first argument is a configuration
/// to train.
int run(int argc, const char* const* argv);

}  // namespace octet::cli
