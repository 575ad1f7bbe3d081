// Part of every test program: runs print the lines that otherwise go to training.log alone, so that tests see
// them. Tests of the screen unset the variable.
#include <cstdlib>

namespace {

[[maybe_unused]] const int every_line = ::setenv("OCTETRUN_VERBOSE", "1", 0);

}  // namespace
