// Checks the weights of a run for values that are not finite. All functions are collective.
#pragma once

#include <string>
#include <vector>

#include "octet/comm/job.h"
#include "run_context.h"

namespace octet::train {

// Searches for the tensor that causes losses that are not finite.

/// Searches the model's folder, then the folders of the adapters, for a value that is not finite. Returns
/// "tensor 'NAME' of FILE" for the first such tensor, or "". Collective; each rank reads a share of the
/// tensors.
std::string not_finite_in(comm::Job& job, const std::string& model, const std::vector<std::string>& adapters);

/// Returns the name of a trained tensor that holds a value that is not finite, or "".
std::string weight_not_finite(Engine& engine);
/// Returns the first such tensor of the base and of its merged adapters, with its file, or "".
std::string base_not_finite(RunContext& run, const RunParts& parts);
/// Throws Error (usage) if a weight that the run begins with is not finite.
void require_finite_base(RunContext& run, const RunParts& parts);
/// Throws Error (no_valid_checkpoint) if a weight that was read from the checkpoint is not finite.
void require_finite_checkpoint(RunContext& run, const RunParts& parts);

}  // namespace octet::train
