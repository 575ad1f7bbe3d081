#pragma once

#include "plan/plan_report.h"

namespace octet::cli {

/// Print the report of `trainer plan`: for people, and with --json as one line.
void print_report(const PlanReport& report, const PlanTarget& target);
void print_json(const PlanReport& report, const PlanTarget& target);

}  // namespace octet::cli
