#include "version.h"

namespace octet::cli {

std::string version_text() {
  return std::string("octet ") + OCTET_VERSION + " (" + commit_text() + ")\n" + OCTET_BUILT_WITH + "\n";
}

}  // namespace octet::cli
