#pragma once

#include <cstddef>
#include <string>

#include "octet/base/error.h"

namespace octet {

/// Returns the Error for a device that has `free` bytes, less than `bytes`, free.
Error out_of_memory(std::size_t bytes, std::size_t free, const std::string& device, const std::string& fix);
/// `found`: why the allocation was refused.
Error out_of_memory(std::size_t bytes, const std::string& found, const std::string& device,
                    const std::string& fix, ExitCode code);
/// Returns whether an Error was made by out_of_memory().
bool is_out_of_memory(const Error& error);

}  // namespace octet
