#pragma once

#include "octet/base/json_fwd.h"
#include "plan_report.h"

namespace octet::cli {

/// What a planned run leaves on the disk, to the byte where that follows from its configuration: prints a
/// section of the plan.
void print_disk(const PlanReport& report, const PlanTarget& target);
/// The same as an object.
Json disk_json(const PlanReport& report, const PlanTarget& target);

}  // namespace octet::cli
