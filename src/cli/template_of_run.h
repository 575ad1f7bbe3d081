// The template of a checkpoint's run, where it stands in a file.
#pragma once

#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"

namespace octet::cli {

/// Throws Error (usage) where the file that the run named holds another template than when the checkpoint was
/// written. `encoder` has the one that it holds now.
void require_template_of(const checkpoint::Checkpoint& checkpoint, const config::Config& run,
                         const data::TemplateEncoder& encoder, const std::string& fix);

}  // namespace octet::cli
