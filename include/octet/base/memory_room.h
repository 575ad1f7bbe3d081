// Memory that a library is about to take.
#pragma once

#include <cstddef>
#include <string>

#include "octet/base/error.h"

namespace octet {

/// Throws Error where this process may not take so many bytes more (ulimit -v, a host without any): for
/// libraries that do not look whether they got any, and are ended by a signal then. `what`: "the code of a
/// GEMM".
void require_memory_for(const char* what, std::size_t bytes);

/// The limit that the system sets for the memory of a process, such as "262144 KiB (ulimit -v)"; "" if there is
/// none.
std::string memory_limit();

/// Returns the error of a lack of memory: the limit of memory_limit() as `found`, if there is one, what to do,
/// and code_without_memory(). `what`: "cannot map a file"; `expected` and `where` may be empty.
Problem without_memory(std::string what, std::string expected = "", std::string where = "");

/// Returns the exit code of a lack of memory: usage under a memory_limit(), since the same start fails again;
/// else failure.
ExitCode code_without_memory();

}  // namespace octet
