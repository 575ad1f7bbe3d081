#include "octet/feed/schedule.h"

#include <algorithm>

#include "octet/base/random.h"
#include "octet/base/strings.h"

namespace octet::feed {

std::int64_t SampleOrder::items_per_epoch() const {
  return items - items % whole_groups_of;
}

std::int64_t SampleOrder::steps_per_epoch() const {
  return std::max<std::int64_t>(1, (items_per_epoch() + global_batch - 1) / global_batch);
}

std::int64_t SampleOrder::item(std::int64_t step, std::int64_t place) const {
  const std::int64_t epoch = step / steps_per_epoch();
  const std::int64_t position = step % steps_per_epoch() * global_batch + place;
  if (position >= items_per_epoch()) return -1;
  if (!shuffle) return position;
  return static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(position),
                                           static_cast<std::uint64_t>(items), seed,
                                           static_cast<std::uint32_t>(epoch)));
}

Error no_whole_group(std::int64_t items, std::int64_t whole_groups_of) {
  return Error(
      {.what = "dataloader_drop_last leaves nothing to train on",
       .expected = with_commas(whole_groups_of) + " samples or more, a micro-batch on every rank",
       .found = with_commas(items) + " an epoch",
       .where = "configuration key 'dataloader_drop_last'",
       .fix = "lower per_device_train_batch_size or take fewer ranks, or set dataloader_drop_last: false",
       .code = ExitCode::usage});
}

}  // namespace octet::feed
