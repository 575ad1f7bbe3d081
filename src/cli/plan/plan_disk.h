#pragma once

#include "octet/base/json_fwd.h"
#include "octet/planner/report.h"

namespace octet::cli {

/// Prints the section about files that the planned run leaves on disk. Sizes are exact if they follow from
/// the configuration.
void print_disk(const planner::PlanReport& report, const planner::PlanTarget& target);
/// Returns the figures of print_disk() as JSON.
Json disk_json(const planner::PlanReport& report, const planner::PlanTarget& target);

}  // namespace octet::cli
