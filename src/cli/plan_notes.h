// What a run of the configuration that is planned would say before its first step, and what would end it.
#pragma once

#include <string>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"

namespace octet::cli {

struct PlanNotes {
  config::Strings notes;         ///< of the configuration, as a run prints them
  config::Strings doubts;        ///< settings that one would rarely mean
  config::Strings cannot_run;    ///< messages with which a run would end: what this version does not read
  ExitCode code = ExitCode::ok;  ///< of the first of them
};

/// `kind`: the device that is planned for. `configured`: there is a configuration; else the shape of a model
/// alone, which is not doubted for keys that nobody set. Data sets are not looked at, and neither are missing
/// weights and tokenizers: a plan may be made where they are not.
PlanNotes plan_notes(const config::Resolved& resolved, bool configured, const std::string& model,
                     const model::Architecture& architecture, DeviceKind kind);

}  // namespace octet::cli
