// The state that the next start of a run, or the remaining ranks, take over from the previous start.
#pragma once

#include "octet/config/keys.h"
#include "octet/report/progress.h"
#include "octet/supervise/command.h"

namespace octet::supervise {

/// Returns overrides for a restart. A restarted run resumes from the newest checkpoint in its folder. If the
/// configuration names another start (a checkpoint, none, or an empty folder by overwrite_output_dir), it was
/// meant for the first start and is overridden. `saved` is the progress of this run; its checkpoint is named
/// if it is valid.
Strings resume_overrides(const config::SaveKeys& config, const report::Progress& saved);

/// Whether `ranks` ranks can divide the samples of a step.
bool runs_on(const config::BatchKeys& config, int ranks);

}  // namespace octet::supervise
