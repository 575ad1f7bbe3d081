// Memory that a library is about to take.
#pragma once

#include <cstddef>

namespace octet {

/// Throws Error where this process may not take so many bytes more (ulimit -v, a host without any): for
/// libraries that do not look whether they got any, and are ended by a signal then. `what`: "the code of a
/// GEMM".
void require_memory_for(const char* what, std::size_t bytes);

}  // namespace octet
