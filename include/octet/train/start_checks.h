// Checks of a run before it starts: settings that are rarely meant, GEMMs that stay in bf16, and the template
// of a checkpoint.
#pragma once

#include <cstddef>
#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"
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

// Checks the template file of a checkpoint's run.

/// Throws Error (usage) if the template file of the run has changed after the checkpoint was written.
/// `encoder` has the current template of the file.
void require_template_of(const checkpoint::Checkpoint& checkpoint, const config::Config& run,
                         const data::TemplateEncoder& encoder, const std::string& fix);

}  // namespace octet::train
