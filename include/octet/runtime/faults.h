// Handlers for SIGSEGV and SIGILL: they print a message before the signal ends the program.
#pragma once

namespace octet::runtime {

/// Installs handlers for SIGSEGV and SIGILL that let the signal end the program. If `print`, the handler
/// first prints an error that says whether memory is exhausted. After note_ending() the program exits with
/// the noted code instead. Handlers that are already installed (by a sanitizer) are kept. Signals from other
/// processes are not reported.
void tell_of_faults(bool print);

}  // namespace octet::runtime
