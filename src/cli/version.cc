#include "version.h"

#include "octet/comm/launchers.h"

namespace octet::cli {

std::string version_text() {
  return std::string("octet ") + OCTET_VERSION + " (" + commit_text() + ")\n" + OCTET_BUILT_WITH + ", " +
         comm::program_mpi().name + "\n";
}

}  // namespace octet::cli
