#pragma once

#include "octet/config/config.h"
#include "octet/train/session.h"

namespace octet::train {

/// Trains as the configuration says and returns the exit code: 0, or 76 when a signal ended the run after a
/// checkpoint. SIGUSR1 saves and goes on; SIGTERM, SIGINT and SIGUSR2 save and stop. All ranks call it.
int train(Session& session, const config::Resolved& config);

}  // namespace octet::train
