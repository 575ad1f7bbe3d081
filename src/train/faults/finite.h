// Searches for the tensor that causes losses that are not finite.
#pragma once

#include <string>
#include <vector>

#include "octet/comm/job.h"

namespace octet::train {

/// Searches the model's folder, then the folders of the adapters, for a value that is not finite. Returns
/// "tensor 'NAME' of FILE" for the first such tensor, or "". Collective; each rank reads a share of the
/// tensors.
std::string not_finite_in(comm::Job& job, const std::string& model, const std::vector<std::string>& adapters);

}  // namespace octet::train
