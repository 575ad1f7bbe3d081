#include "messages/self_transport.h"

#include "octet/base/host_name.h"

namespace octet::comm {

SelfTransport::SelfTransport() {
  place_.host = host_name();
}

}  // namespace octet::comm
