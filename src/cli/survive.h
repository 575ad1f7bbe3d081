// Continues a training run on the surviving ranks.
#pragma once

#include <functional>

#include "command.h"

namespace octet::cli {

/// Runs `train` with its words. If ranks end and the others may continue (OCTETRUN_SURVIVORS, an MPI with
/// ULFM), runs it again on the survivors. They stay in the same processes and resume from the newest
/// checkpoint. This repeats until `train` returns. If too few ranks are left, or they cannot divide the
/// samples of a step, prints an error and returns 75.
int run_with_survivors(const Arguments& words, const std::function<int(const Arguments&)>& train);

}  // namespace octet::cli
