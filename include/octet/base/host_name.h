#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace octet {

/// The name of this host, as `uname -n` prints it; "localhost" if the system does not tell.
inline std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace octet
