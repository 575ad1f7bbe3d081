// Requests of the ranks between two steps.
#pragma once

#include "octet/comm/channel.h"

namespace octet::train {

struct Wishes {
  bool save = false;
  bool stop = false;
  bool settle = false;  ///< a concurrent save has ended
  bool data = false;    ///< the data of the rank are unreadable
};

/// Returns the requests of any rank. Collective.
Wishes wishes_of_all(comm::Channel& channel, const Wishes& own);

}  // namespace octet::train
