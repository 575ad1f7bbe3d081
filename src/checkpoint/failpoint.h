// Named places where a crash test may kill the process.
#pragma once

#include <string>

namespace octet::checkpoint {

/// Kills this process with SIGKILL when OCTETRUN_FAILPOINT is "<name>" or "<name>:<count>" and this is the
/// count-th passing.
void failpoint(const char* name);

/// Where OCTETRUN_FAILPOINT is "full_disk", a folder that holds a file named "disk-is-full" has no room.
/// Returns whether that is so.
bool plays_full_disk(const std::string& folder);

}  // namespace octet::checkpoint
