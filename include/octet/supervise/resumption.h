// The state that the next start of a run, or the remaining ranks, take over from the previous start.
#pragma once

#include "octet/config/config.h"
#include "octet/report/progress.h"
#include "octet/supervise/command.h"

namespace octet::supervise {

/// Overrides for a restart. A restarted run resumes from the newest checkpoint of its folder, except if the
/// configuration names another start (a checkpoint, none, or an empty folder by overwrite_output_dir), which
/// was meant for the first start. `saved` is the progress since then: its checkpoint is named if it is valid.
Strings resume_overrides(const config::Config& config, const report::Progress& saved);

/// Whether the samples of a step can be dealt to so many ranks.
bool runs_on(const config::Config& config, int ranks);

}  // namespace octet::supervise
