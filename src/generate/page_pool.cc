#include "page_pool.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::generate {

PagePool::PagePool(std::int64_t pages) : pages_(pages), free_(pages) {}

void PagePool::touch() {
  const std::size_t entry = next_.size();
  holders_.push_back(0);
  next_.push_back(entry), previous_.push_back(entry);
  --free_;  // link() increments it
  link(entry, ring(false));
}

void PagePool::link(std::size_t entry, std::size_t before) {
  next_[entry] = before;
  previous_[entry] = previous_[before];
  next_[previous_[before]] = entry;
  previous_[before] = entry;
  ++free_;
}

void PagePool::unlink(std::size_t entry) {
  next_[previous_[entry]] = next_[entry];
  previous_[next_[entry]] = previous_[entry];
  --free_;
  most_held_ = std::max(most_held_, pages() - free_);
}

std::int32_t PagePool::take() {
  // Takes pages that were never held first, in order.
  if (touched() < pages_) {
    const auto page = static_cast<std::int32_t>(touched());
    touch();
    hold(page);
    return page;
  }
  for (const bool worth_keeping : {false, true}) {
    const std::size_t oldest = next_[ring(worth_keeping)];
    if (oldest == ring(worth_keeping)) continue;
    const auto page = static_cast<std::int32_t>(oldest - entry(0));
    hold(page);
    return page;
  }
  return kNone;
}

void PagePool::hold(std::int32_t page) {
  while (page >= touched()) touch();
  if (holders_[static_cast<std::size_t>(page)]++ == 0) unlink(entry(page));
}

void PagePool::give(std::int32_t page, bool worth_keeping) {
  check(page < touched() && holders(page) > 0, "only a page in use is released");
  if (--holders_[static_cast<std::size_t>(page)] == 0) link(entry(page), ring(worth_keeping));
}

}  // namespace octet::generate
