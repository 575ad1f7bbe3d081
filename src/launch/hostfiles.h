// Hostfiles in a form that mpirun reads.
#pragma once

#include "arguments.h"
#include "mpi.h"

namespace octet::launch {

/// Translates the hostfiles that `words` and Open MPI's variables in `environment` name, if mpirun cannot
/// read them. Returns the words with the paths of the translations, and replaces the variables. A translation
/// is held in memory. It exists as long as this process, and mpirun inherits it as an open file. Throws Error
/// if the system provides no such file.
Words with_readable_hostfiles(const Words& words, Environment& environment, Mpi mpi);

}  // namespace octet::launch
