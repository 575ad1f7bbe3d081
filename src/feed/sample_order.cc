#include "octet/feed/sample_order.h"

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

// Returns the end of the trained items of an epoch. In the first epoch after a resume, the remaining items
// are rounded down to whole groups, because earlier groups may have had another size.
std::int64_t SampleOrder::last_item(std::int64_t epoch) const {
  if (epoch != first.epoch) return items_per_epoch();
  return items - std::max<std::int64_t>(0, items - first.item) % whole_groups_of;
}

std::int64_t SampleOrder::steps_of_first_epoch() const {
  return std::max<std::int64_t>(1, (last_item(first.epoch) - first.item + global_batch - 1) / global_batch);
}

void SampleOrder::go_on(std::int64_t step, SamplePlace place) {
  first_step = step;
  first = place;
  if (first.item > 0 && first.item >= last_item(first.epoch)) first = {.epoch = first.epoch + 1};
}

SamplePlace SampleOrder::place(std::int64_t step) const {
  const std::int64_t since = step - first_step;
  const std::int64_t begun = steps_of_first_epoch();
  if (since < begun) return {first.epoch, first.item + since * global_batch};
  return {first.epoch + 1 + (since - begun) / steps_per_epoch(),
          (since - begun) % steps_per_epoch() * global_batch};
}

std::int64_t SampleOrder::steps_until_end_of(std::int64_t steps) const {
  const std::int64_t each = steps_per_epoch();
  const SamplePlace end{steps / each, std::min(steps % each * global_batch, items_per_epoch())};
  if (end.epoch < first.epoch) return first_step;
  if (end.epoch == first.epoch) {
    return first_step + std::max<std::int64_t>(0, (end.item - first.item + global_batch - 1) / global_batch);
  }
  return first_step + steps_of_first_epoch() + (end.epoch - first.epoch - 1) * each + steps % each;
}

std::int64_t SampleOrder::item(std::int64_t step, std::int64_t nth) const {
  const SamplePlace begin = place(step);
  const std::int64_t position = begin.item + nth;
  if (position >= last_item(begin.epoch)) return -1;
  if (!shuffle) return position;
  return static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(position),
                                           static_cast<std::uint64_t>(items), seed,
                                           static_cast<std::uint32_t>(begin.epoch)));
}

Error no_whole_group(std::int64_t items, std::int64_t whole_groups_of) {
  return Error(
      {.what = "dataloader_drop_last leaves no samples for training",
       .expected = with_commas(whole_groups_of) + " samples or more, a micro-batch on every rank",
       .found = with_commas(items) + " an epoch",
       .where = "configuration key 'dataloader_drop_last'",
       .fix = "lower per_device_train_batch_size, use fewer ranks, or set dataloader_drop_last: false",
       .code = ExitCode::usage});
}

}  // namespace octet::feed
