// Checks the template file of a checkpoint's run.
#pragma once

#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"

namespace octet::train {

/// Throws Error (usage) if the template file of the run has changed after the checkpoint was written.
/// `encoder` has the current template of the file.
void require_template_of(const checkpoint::Checkpoint& checkpoint, const config::Config& run,
                         const data::TemplateEncoder& encoder, const std::string& fix);

}  // namespace octet::train
