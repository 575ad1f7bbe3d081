// Notes, warnings and errors that the planned run would report before its first step.
#pragma once

#include <string>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"

namespace octet::planner {

struct PlanNotes {
  config::Strings notes;         ///< notes of the configuration, as in a run
  config::Strings doubts;        ///< warnings about unusual settings
  config::Strings cannot_run;    ///< errors that would end the run, like unsupported features
  ExitCode code = ExitCode::ok;  ///< exit code of the first error
};

/// `kind` is the planned device. If `configured` is false there is no configuration, only the shape of a
/// model; then no warnings about keys are given. Data sets are not read. Weights and tokenizers may be
/// missing on the planning machine.
PlanNotes plan_notes(const config::Resolved& resolved, bool configured, const std::string& model,
                     const model::Architecture& architecture, DeviceKind kind);

}  // namespace octet::planner
