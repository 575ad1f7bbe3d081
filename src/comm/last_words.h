// Which rank says why a job ends.
#pragma once

#include <boost/mpi/communicator.hpp>
#include <chrono>

#include "octet/comm/collectives.h"

namespace octet::comm {

/// How much longer than the rank below it a rank waits before it says why the job ends.
constexpr auto turn_to_speak = std::chrono::milliseconds(300);

/// Whether this rank is the one that speaks. Often several ranks notice the same thing, and an abort takes
/// its time: one of them should be heard, the lowest if it is quick. So each waits longer than those below
/// it, is silent once another has announced its words over `channel`, and announces its own before it says
/// them.
bool may_speak(const boost::mpi::communicator& channel, const Place& place);

}  // namespace octet::comm
