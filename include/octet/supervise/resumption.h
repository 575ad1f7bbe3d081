// What the next start of a run, or ranks that go on without others, take over from what went before.
#pragma once

#include "octet/config/config.h"
#include "octet/report/progress.h"
#include "octet/supervise/command.h"

namespace octet::supervise {

/// A run that is started again takes the newest checkpoint of its folder by itself, but for a configuration
/// that names another beginning (a checkpoint, none, or by overwrite_output_dir an empty folder): that was
/// meant for the first start. `saved` is what the run has saved since then; its checkpoint is named where it
/// holds.
Strings resume_overrides(const config::Config& config, const report::Progress& saved);

/// Whether the samples of a step can be dealt to so many ranks.
bool runs_on(const config::Config& config, int ranks);

}  // namespace octet::supervise
