// What this machine lets the process use: cores and memory, control groups included.
#pragma once

#include <string>

#include "octet/device/device.h"

namespace octet::cpu {

/// "Intel(R) Xeon(R) Processor", or the architecture where the kernel names no model.
std::string processor_name();
/// Memory of the machine or of the control group, whichever is less.
MemoryInfo machine_memory();

}  // namespace octet::cpu
