#include "octet/files/failpoint.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "octet/base/environment.h"

namespace octet::files {

void failpoint(const char* name) {
  const char* wanted = environment_variable("OCTETRUN_FAILPOINT");
  if (wanted == nullptr) return;
  const std::string_view text(wanted);
  const std::size_t colon = text.find(':');
  if (text.substr(0, colon) != name) return;
  static std::atomic<int> passings{0};
  const int count = colon == std::string_view::npos ? 1 : std::atoi(wanted + colon + 1);
  if (++passings >= count) ::kill(::getpid(), SIGKILL);
}

bool plays_full_disk(const std::string& folder) {
  const char* wanted = environment_variable("OCTETRUN_FAILPOINT");
  return wanted != nullptr && std::string_view(wanted) == "full_disk" &&
         ::access((folder + "/disk-is-full").c_str(), F_OK) == 0;
}

}  // namespace octet::files
