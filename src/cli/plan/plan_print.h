// Prints the report of `trainer plan`.
#pragma once

#include "octet/base/json_fwd.h"
#include "octet/planner/plan_report.h"

namespace octet::cli {

/// Prints the section about files that the planned run leaves on disk. Sizes are exact if they follow from
/// the configuration.
void print_disk(const planner::PlanReport& report, const planner::PlanTarget& target);
/// Returns the figures of print_disk() as JSON.
Json disk_json(const planner::PlanReport& report, const planner::PlanTarget& target);

/// Print the report of `trainer plan`: for people, and with --json as one line.
void print_report(const planner::PlanReport& report, const planner::PlanTarget& target);
void print_json(const planner::PlanReport& report, const planner::PlanTarget& target);

}  // namespace octet::cli
