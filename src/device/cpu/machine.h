// What this machine lets the process use: cores and memory, control groups included.
#pragma once

#include <string>

#include "octet/device/device.h"

namespace octet::cpu {

/// "Intel(R) Xeon(R) Processor", or the architecture where the kernel names no model.
std::string processor_name();
/// Memory of the machine or of the control group, whichever is less.
MemoryInfo machine_memory();
/// Which limits there are on the threads of a process, "ulimit -u 200, pids.max 100 (98 in use)". Empty:
/// none.
std::string thread_limits();
/// Whether processes and threads are limited to a number that one rank or a few can reach.
bool threads_are_few();

}  // namespace octet::cpu
