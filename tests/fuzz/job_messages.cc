#include <cstdlib>

#include "fuzz.h"
#include "octet/supervise/job_errors.h"

namespace octet::fuzz {

// Takes the bytes as the output of a job, at once and in pieces of seven bytes.
void job_messages(std::string_view bytes) {
  supervise::Messages whole, pieces;
  whole.hear(bytes);
  for (std::size_t at = 0; at < bytes.size(); at += 7) pieces.hear(bytes.substr(at, 7));
  const supervise::Fault &a = whole.fault(), &b = pieces.fault();
  if (a.what != b.what || a.who != b.who || a.lost_hosts != b.lost_hosts) std::abort();
}

}  // namespace octet::fuzz
