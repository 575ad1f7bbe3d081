// Which program this is.
#pragma once

#include <string>

namespace octet {

/// "0.1.0".
std::string program_version();

/// The linker's hash of what it linked, in hexadecimal digits: the same for copies of a program, another for
/// any other build. Empty where the linker wrote none.
std::string build_id();

}  // namespace octet
