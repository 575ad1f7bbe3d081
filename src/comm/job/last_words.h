// Selects the rank that prints why a job ends.
#pragma once

#include <boost/mpi/communicator.hpp>
#include <chrono>

#include "octet/comm/collectives.h"

namespace octet::comm {

/// Each rank waits this much longer than the rank below it before it prints why the job ends.
constexpr auto turn_to_speak = std::chrono::milliseconds(300);

/// Whether this rank prints why the job ends. Often several ranks detect the same failure, and an abort takes
/// time. One rank should print, preferably the lowest. Each rank therefore waits longer than the ranks below
/// it, and announces over `channel` that it prints. Returns false once another rank has announced it.
bool may_speak(const boost::mpi::communicator& channel, const Place& place);

}  // namespace octet::comm
