// Compares facts that must be equal on all ranks, before training starts.
#pragma once

#include <map>
#include <string>

#include "octet/comm/channel.h"
#include "octet/config/config.h"

namespace octet::train {

/// Names and values: "the program" -> "0.1.0", "learning_rate" -> "1e-05".
using Facts = std::map<std::string, std::string>;

/// Returns the facts that ranks must agree on: the program and its build, resolved configuration keys, and
/// environment variables of the program. Variables of a host or a rank are excluded.
Facts facts_of_start(const std::string& version, const config::Config& config,
                     const config::Environment& environment);

/// Collective. Throws Error (usage) on all ranks if the facts of a rank differ from rank 0. The Error names
/// the first such rank, its host, and the differing facts with both values. If all agree, it costs one short
/// message per rank.
void require_same(comm::Channel& channel, const Facts& own);

}  // namespace octet::train
