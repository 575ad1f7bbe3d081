// Overrides for the shape of a model without a configuration.
#pragma once

#include <string>
#include <vector>

namespace octet::planner {

/// Returns overrides for a model without a configuration: adds bf16=true unless bf16 or pure_bf16 is set.
/// This precedes loading, because other keys require bf16.
std::vector<std::string> with_bf16(std::vector<std::string> words);

}  // namespace octet::planner
