// Reports the end of a job: its message and its exit code.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "arguments.h"
#include "cleanup.h"
#include "listener.h"
#include "mpi.h"

namespace octet::launch {

/// The exit code of a program that signal N ended is 128 + N.
inline constexpr int kCodeOfSignal = 128;

/// How a job ended.
struct Ending {
  int code = 0;             ///< mpirun's exit code, or 128 + N if signal N ended it
  bool was_killed = false;  ///< a signal ended mpirun
  pid_t mpirun = 0;
  Mpi mpi = Mpi::open;
  std::optional<int> stop;    ///< the signal that asked to stop
  Cause cause = Cause::none;  ///< the cause that mpirun reported
  Words words_of_ssh;         ///< output of ssh, in order
  Words words;                ///< arguments of launch/mpirun
  std::string called;         ///< the name of launch/mpirun
};

/// Writes the message, removes the leftovers of the job, and returns the exit code of launch/mpirun.
int conclude(const Ending& ending, const Leftovers& leftovers,
             const std::function<void(const std::string&)>& write);

}  // namespace octet::launch
