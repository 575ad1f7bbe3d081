// Numbers as Python prints them, in logs and messages.
#pragma once

#include <string>

namespace octet::report {

/// A float as Python prints it after rounding to `digits` significant digits: "1.234", "1e-05", "2.0", "nan".
std::string python_number(double value, int digits);

}  // namespace octet::report
