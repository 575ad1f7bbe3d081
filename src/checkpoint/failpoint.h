// Named places where a crash test may kill the process.
#pragma once

namespace octet::checkpoint {

/// Kills this process with SIGKILL when OCTETRUN_FAILPOINT is "<name>" or "<name>:<count>" and this is the
/// count-th passing.
void failpoint(const char* name);

}  // namespace octet::checkpoint
