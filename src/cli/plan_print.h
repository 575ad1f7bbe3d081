#pragma once

#include "plan_report.h"

namespace octet::cli {

/// What `trainer plan` prints: for people, and with --json as one line.
void print_report(const PlanReport& report, const PlanTarget& target);
void print_json(const PlanReport& report, const PlanTarget& target);

}  // namespace octet::cli
