// What all ranks of a run must have alike, compared before anything is trained.
#pragma once

#include <map>
#include <string>

#include "octet/comm/channel.h"
#include "octet/config/config.h"

namespace octet::train {

/// Names and values: "the program" -> "0.1.0", "learning_rate" -> "1e-05".
using Facts = std::map<std::string, std::string>;

/// What a run's ranks must agree upon: the program and its build, every key as it was resolved, and the
/// program's own variables but for those that belong to a host or a rank.
Facts facts_of_start(const std::string& version, const config::Config& config,
                     const config::Environment& environment);

/// Collective. Throws Error (usage) on all ranks when one has other facts than rank 0: it names the first
/// such rank, its host, and the facts in which the two differ, with both values. One short message a rank
/// where all agree.
void require_same(comm::Channel& channel, const Facts& own);

}  // namespace octet::train
