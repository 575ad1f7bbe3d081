#pragma once

#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/runtime/session.h"

namespace octet::train {

/// Throws Error (usage) on all ranks when they were started with different programs (`version`, or another
/// build of it), configurations or variables of this program, or with other arguments, where these are what
/// a command goes by. All ranks call it.
void require_same_start(runtime::Session& session, const std::string& version, const config::Config& config,
                        const std::vector<std::string>& arguments = {});

/// Trains as the configuration says and returns the exit code: 0, or 76 when a signal ended the run after a
/// checkpoint. SIGUSR1 saves and goes on; SIGTERM, SIGINT, SIGHUP and SIGUSR2 save and stop. All ranks call
/// it.
int train(runtime::Session& session, const config::Resolved& config);

}  // namespace octet::train
