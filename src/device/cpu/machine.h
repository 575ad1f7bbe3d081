// Cores and memory that this machine grants to the process, limited by control groups.
#pragma once

#include <string>

#include "octet/device/device.h"

namespace octet::cpu {

/// Returns "Intel(R) Xeon(R) Processor", or the architecture if the kernel gives no model.
std::string processor_name();
/// Returns the memory of the machine or of the control group, the smaller of both.
MemoryInfo machine_memory();
/// Returns the limits on the threads of a process: "ulimit -u 200, pids.max 100 (98 in use)". Empty if there
/// are none.
std::string thread_limits();
/// Returns whether the limit on processes and threads is so low that one rank or a few can reach it.
bool threads_are_few();

}  // namespace octet::cpu
