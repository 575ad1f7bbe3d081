// Faults of the processor: a message before the signal ends the program.
#pragma once

namespace octet::cli {

/// Installs handlers for SIGSEGV and SIGILL that print an error, say whether memory has run out, and let the
/// signal end the program. A handler that is installed already (a sanitizer's) stays. Signals that another
/// process sends are not reported.
void tell_of_faults();

}  // namespace octet::cli
