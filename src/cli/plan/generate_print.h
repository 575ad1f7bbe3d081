// Prints the report of `trainer plan MODEL --generate`.
#pragma once

#include "octet/planner/generation.h"

namespace octet::cli {

/// Print the report: for people, and with --json as one line.
void print_generate_report(const planner::GeneratePlan& plan, const planner::PlanTarget& target,
                           const planner::GenerationReport& report);
void print_generate_json(const planner::GeneratePlan& plan, const planner::PlanTarget& target,
                         const planner::GenerationReport& report);

}  // namespace octet::cli
