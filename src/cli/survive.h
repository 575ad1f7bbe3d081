// A training whose ranks go on where others of them end.
#pragma once

#include <functional>

#include "command.h"

namespace octet::cli {

/// Runs `train` with its words. Where ranks of the job end and the others may go on (OCTETRUN_SURVIVORS, an
/// MPI with ULFM), runs it once more on those that are left, in the same processes, from what the run has
/// saved; and so on. Where fewer are left than may go on, or the samples of a step cannot be dealt to them,
/// prints so and returns 75.
int run_with_survivors(const Arguments& words, const std::function<int(const Arguments&)>& train);

}  // namespace octet::cli
