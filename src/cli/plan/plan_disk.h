#pragma once

#include "octet/base/json_fwd.h"
#include "plan/plan_report.h"

namespace octet::cli {

/// Prints the section about files that the planned run leaves on disk. Sizes are exact if they follow from
/// the configuration.
void print_disk(const PlanReport& report, const PlanTarget& target);
/// Returns the figures of print_disk() as JSON.
Json disk_json(const PlanReport& report, const PlanTarget& target);

}  // namespace octet::cli
