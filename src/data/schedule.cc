#include "octet/data/schedule.h"

#include <algorithm>

#include "octet/base/random.h"

namespace octet::data {

std::int64_t SampleOrder::steps_per_epoch() const {
  const std::int64_t full = items / global_batch;
  const bool partial = items % global_batch != 0 && (!drop_last || full == 0);
  return std::max<std::int64_t>(1, full + (partial ? 1 : 0));
}

std::int64_t SampleOrder::item(std::int64_t step, std::int64_t place) const {
  const std::int64_t epoch = step / steps_per_epoch();
  const std::int64_t position = step % steps_per_epoch() * global_batch + place;
  if (position >= items) return -1;
  if (!shuffle) return position;
  return static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(position),
                                           static_cast<std::uint64_t>(items), seed,
                                           static_cast<std::uint32_t>(epoch)));
}

}  // namespace octet::data
