#pragma once

#include <cstddef>
#include <string>

#include "octet/base/error.h"

namespace octet {

/// The Error of a device that has less than `bytes` free.
Error out_of_memory(std::size_t bytes, std::size_t free, const std::string& device, const std::string& fix);
/// `found`: what refuses them.
Error out_of_memory(std::size_t bytes, const std::string& found, const std::string& device,
                    const std::string& fix, ExitCode code);
/// Whether an Error is one of these.
bool is_out_of_memory(const Error& error);

}  // namespace octet
