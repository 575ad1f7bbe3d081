#pragma once

#include <cstddef>
#include <string>

#include "octet/config/config.h"
#include "octet/model/architecture.h"

namespace octet::train {

/// Returns settings that are allowed but rarely intended, each as a sentence with a suggestion. Checks the
/// configuration (config::doubts()), the model and the output folder. `architecture` is that of the model.
config::Strings doubts(const config::Resolved& resolved, const model::Architecture& architecture);

/// Returns a sentence with the checkpoint of output_dir from which a run resumes if its configuration names
/// none. Empty if it starts fresh.
std::string resumption(const config::SaveKeys& config);

/// Returns a warning for each GEMM that `fp8: true` selects but a GPU computes in bf16. The reason is sizes
/// that are not multiples of 16. With `fp8_fallback: error`, the run ends before its first step.
config::Strings fp8_fallbacks(const config::Config& config, const model::Architecture& architecture);

/// Throws the Error (usage) that ends a run on a GPU if `fp8_fallback: error` is set and there are fallbacks.
void require_no_fallback(const config::Config& config, const model::Architecture& architecture);

}  // namespace octet::train
