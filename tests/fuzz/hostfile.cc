#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/supervise/job_command.h"
#include "scratch.h"

namespace octet::fuzz {

// The bytes as a hostfile, and as the list that --host names. Each host that is found can be left out, but
// the last.
void hostfile(std::string_view bytes) {
  const std::string path = scratch_file("hosts", bytes);
  for (const supervise::Strings& named :
       {supervise::Strings{"launch/mpirun", "--hostfile", path, "-np", "4"},
        supervise::Strings{"launch/mpirun", "--host", std::string(bytes)}}) {
    try {
      supervise::Command command{.launcher = named, .program = {"trainer"}, .arguments = {"config.yaml"}};
      supervise::require_hostfiles(command);
      for (const supervise::Host& host : supervise::hosts_of(command))
        supervise::leave_out(command, host.name);
    } catch (const Error&) {
    }
  }
}

}  // namespace octet::fuzz
