// Prints the report of `trainer plan`.
#pragma once

#include "octet/planner/report.h"

namespace octet::cli {

/// Print the report of `trainer plan`: for people, and with --json as one line.
void print_report(const planner::PlanReport& report, const planner::PlanTarget& target);
void print_json(const planner::PlanReport& report, const planner::PlanTarget& target);

}  // namespace octet::cli
