#pragma once

#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/runtime/session.h"

namespace octet::train {

/// Throws Error (usage) on all ranks if the ranks differ in the program (`version` or build), configuration,
/// environment variables of this program, or `arguments`. Pass `arguments` for commands that depend on them.
/// Collective.
void require_same_start(runtime::Session& session, const std::string& version, const config::Config& config,
                        const std::vector<std::string>& arguments = {});

/// Trains as configured and returns the exit code: 0, or 76 if a signal ended the run after a checkpoint.
/// SIGUSR1 saves and continues. SIGTERM, SIGINT, SIGHUP and SIGUSR2 save and stop. Collective.
int train(runtime::Session& session, const config::Resolved& config);

}  // namespace octet::train
