#include "page_pool.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::generate {

PagePool::PagePool(std::int64_t pages)
    : holders_(static_cast<std::size_t>(pages)), next_(holders_.size() + 2), previous_(holders_.size() + 2) {
  for (const bool worth_keeping : {false, true}) next_[ring(worth_keeping)] = ring(worth_keeping);
  for (const bool worth_keeping : {false, true}) previous_[ring(worth_keeping)] = ring(worth_keeping);
  for (std::size_t page = 0; page < holders_.size(); ++page) link(page, ring(false));
}

void PagePool::link(std::size_t page, std::size_t before) {
  next_[page] = before;
  previous_[page] = previous_[before];
  next_[previous_[before]] = page;
  previous_[before] = page;
  ++free_;
}

void PagePool::unlink(std::size_t page) {
  next_[previous_[page]] = next_[page];
  previous_[next_[page]] = previous_[page];
  --free_;
  most_held_ = std::max(most_held_, pages() - free_);
}

std::int32_t PagePool::take() {
  for (const bool worth_keeping : {false, true}) {
    const std::size_t oldest = next_[ring(worth_keeping)];
    if (oldest >= holders_.size()) continue;
    hold(static_cast<std::int32_t>(oldest));
    return static_cast<std::int32_t>(oldest);
  }
  return kNone;
}

void PagePool::hold(std::int32_t page) {
  const auto at = static_cast<std::size_t>(page);
  if (holders_[at]++ == 0) unlink(at);
}

void PagePool::give(std::int32_t page, bool worth_keeping) {
  const auto at = static_cast<std::size_t>(page);
  check(holders_[at] > 0, "only a page that is held is given back");
  if (--holders_[at] == 0) link(at, ring(worth_keeping));
}

}  // namespace octet::generate
