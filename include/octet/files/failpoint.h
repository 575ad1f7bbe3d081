// Named points at which a crash test can kill the process.
#pragma once

#include <string>

namespace octet::files {

/// Kills this process with SIGKILL if OCTETRUN_FAILPOINT is "<name>" or "<name>:<count>" and this is the
/// count-th call.
void failpoint(const char* name);

/// Returns whether `folder` simulates a full disk: OCTETRUN_FAILPOINT is "full_disk", and the folder contains
/// a file "disk-is-full".
bool plays_full_disk(const std::string& folder);

}  // namespace octet::files
