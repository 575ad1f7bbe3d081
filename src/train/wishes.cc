#include "wishes.h"

#include <cstdint>

namespace octet::train {

Wishes wishes_of_all(comm::Channel& channel, const Wishes& own) {
  Wishes all;
  const int bits = (own.save ? 1 : 0) + (own.stop ? 2 : 0) + (own.settle ? 4 : 0) + (own.data ? 8 : 0);
  for (const std::int64_t of_rank : channel.all_gather_int(bits)) {
    all.save |= (of_rank & 1) != 0;
    all.stop |= (of_rank & 2) != 0;
    all.settle |= (of_rank & 4) != 0;
    all.data |= (of_rank & 8) != 0;
  }
  return all;
}

}  // namespace octet::train
