// Searches for the tensor that causes losses that are not finite.
#pragma once

#include <string>
#include <vector>

#include "octet/comm/job.h"

namespace octet::train {

/// Returns "tensor 'NAME' of FILE" for the first tensor of the model's folder, then of the adapters' folders,
/// with a value that is not finite; "" if there is none. Collective; each rank reads a share of the tensors.
std::string not_finite_in(comm::Job& job, const std::string& model, const std::vector<std::string>& adapters);

}  // namespace octet::train
