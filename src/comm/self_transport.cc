#include "self_transport.h"

#include <unistd.h>

#include <array>

namespace octet::comm {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

SelfTransport::SelfTransport() {
  place_.host = host_name();
}

}  // namespace octet::comm
