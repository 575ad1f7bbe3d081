// Which program this is.
#pragma once

#include <string>

namespace octet {

/// "0.1.0".
std::string program_version();

/// The linker's hash of the program in hexadecimal digits: equal for copies of a program, different for any
/// other build. Empty if the linker wrote none.
std::string build_id();

}  // namespace octet
