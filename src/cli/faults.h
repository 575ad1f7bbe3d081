// Faults of the processor: a message before the signal ends the program.
#pragma once

namespace octet::cli {

/// Installs handlers for SIGSEGV and SIGILL that let the signal end the program. If `print`, they print an
/// error before, which says whether memory has run out. After note_ending() the program ends with its code
/// instead. A handler that is installed already (a sanitizer's) stays. Signals that another process sends are
/// not reported.
void tell_of_faults(bool print);

}  // namespace octet::cli
