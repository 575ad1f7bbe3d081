#include "paged_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

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

PrefixTree::PrefixTree(std::int64_t groups, std::int64_t pages)
    : groups_(groups), nodes_(1), places_(static_cast<std::size_t>(pages)) {
  nodes_[kRoot].pages.assign(static_cast<std::size_t>(groups), kNone);
}

std::int32_t PrefixTree::find(std::int32_t node, Tokens tokens) const {
  const Children& children = at(node).children;
  const auto found = children.find(tokens);
  return found == children.end() ? kNone : found->second;
}

std::int32_t PrefixTree::add(std::int32_t parent, Tokens tokens) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::int32_t>(nodes_.size()));
    nodes_.emplace_back();
  }
  const std::int32_t node = unused_.back();
  unused_.pop_back();
  Node fresh{.parent = parent, .in_parent = {}, .children = {}, .pages = {}};
  fresh.in_parent = at(parent).children.emplace(std::vector(tokens.begin(), tokens.end()), node).first;
  fresh.pages.assign(static_cast<std::size_t>(groups_), kNone);
  at(node) = std::move(fresh);
  return node;
}

std::int32_t PrefixTree::use(std::int32_t node, Tokens tokens) {
  std::int32_t child = find(node, tokens);
  if (child == kNone) child = add(node, tokens);
  use(child);
  return child;
}

void PrefixTree::use(std::int32_t node) {
  ++at(node).users;
}

void PrefixTree::leave(std::int32_t node) {
  --at(node).users;
  prune(node);
}

// In sorted order, a neighbour has the longest common prefix.
PrefixTree::Nearest PrefixTree::nearest(std::int32_t node, Tokens tokens) const {
  const Children& children = at(node).children;
  Nearest best;
  const auto look = [&](Children::const_iterator child) {
    const auto common =
        static_cast<std::size_t>(std::ranges::mismatch(tokens, child->first).in1 - tokens.begin());
    if (common > best.tokens) best = {child->second, common};
  };
  const auto behind = children.lower_bound(tokens);
  if (behind != children.end()) look(behind);
  if (behind != children.begin()) look(std::prev(behind));
  return best;
}

bool PrefixTree::whole(std::int32_t node) const {
  return std::ranges::find(at(node).pages, kNone) == at(node).pages.end();
}

void PrefixTree::put(std::int32_t node, std::int64_t group, std::int32_t page) {
  std::int32_t& place = at(node).pages[static_cast<std::size_t>(group)];
  if (place != kNone) return;
  place = page;
  places_[static_cast<std::size_t>(page)] = {node, static_cast<std::int32_t>(group)};
}

void PrefixTree::forget(std::int32_t page) {
  const Place place = std::exchange(places_[static_cast<std::size_t>(page)], {});
  if (place.node == kNone) return;
  at(place.node).pages[static_cast<std::size_t>(place.group)] = kNone;
  prune(place.node);
}

void PrefixTree::prune(std::int32_t node) {
  while (node != kRoot) {
    Node& here = at(node);
    const bool pages = std::ranges::any_of(here.pages, [](std::int32_t page) { return page != kNone; });
    if (here.users > 0 || pages || !here.children.empty()) return;
    const std::int32_t parent = here.parent;
    at(parent).children.erase(here.in_parent);
    unused_.push_back(node);
    node = parent;
  }
}

std::int64_t pages_of_group(const CacheShape& shape, std::size_t group, std::int64_t tokens) {
  const std::int64_t all = (tokens + shape.page_tokens - 1) / shape.page_tokens;
  if (shape.windows[group] == 0) return all;
  // The window of the first token of a pass, and all tokens of the pass, at any offset in a page.
  const std::int64_t seen = shape.windows[group] - 1 + shape.piece;
  return std::min(all, (seen + shape.page_tokens - 2) / shape.page_tokens + 1);
}

std::int64_t pages_of_sequence(const CacheShape& shape, std::int64_t tokens) {
  std::int64_t pages = 0;
  for (std::size_t g = 0; g < shape.windows.size(); ++g) pages += pages_of_group(shape, g, tokens);
  return pages;
}

PagedCache::PagedCache(const CacheShape& shape)
    : shape_(shape), pool_(shape.pages), tree_(std::ssize(shape.windows), shape.pages) {}

std::size_t PagedCache::first_seen(std::size_t group, std::size_t cached) const {
  const auto window = static_cast<std::size_t>(shape_.windows[group]);
  return window == 0 || cached < window ? 0 : (cached + 1 - window) / page_tokens();
}

// Whether the cache has all pages that the token after `path` reads.
bool PagedCache::all_seen(const std::vector<std::int32_t>& path) const {
  for (std::size_t g = 0; g < groups(); ++g) {
    for (std::size_t i = first_seen(g, path.size() * page_tokens()); i < path.size(); ++i) {
      if (tree_.page(path[i], static_cast<std::int64_t>(g)) == PagePool::kNone) return false;
    }
  }
  return true;
}

// Finds common tokens after the full pages, in a page that is not full or that continues differently.
void PagedCache::find_partial(Found& found, Tokens wanted, const std::list<Sequence>& active) const {
  const std::size_t full = found.path.size(), begin = full * page_tokens();
  const std::int32_t node = full == 0 ? PrefixTree::kRoot : found.path.back();
  const Tokens rest = wanted.subspan(begin, std::min(page_tokens(), wanted.size() - begin));
  std::size_t most = 0;
  const PrefixTree::Nearest nearest = tree_.nearest(node, rest);
  if (nearest.tokens > 0 && tree_.whole(nearest.node)) {
    most = nearest.tokens;
    for (std::size_t g = 0; g < groups(); ++g)
      found.partial.push_back(tree_.page(nearest.node, static_cast<std::int64_t>(g)));
  }
  for (const Sequence& other : active) {
    const HeldPages& held = other.held;
    if (held.path.size() != full || held.count() <= full || other.known() <= begin) continue;
    if (full > 0 && held.path.back() != node) continue;
    const Tokens there = Tokens(other.tokens).subspan(begin, other.known() - begin);
    const auto common = static_cast<std::size_t>(std::ranges::mismatch(rest, there).in1 - rest.begin());
    if (common <= most) continue;
    most = common;
    found.partial.clear();
    for (const std::vector<std::int32_t>& pages : held.pages) found.partial.push_back(pages[full]);
  }
  found.tokens = begin + most;
}

PagedCache::Found PagedCache::find(const Sequence& sequence, const std::list<Sequence>& active) const {
  Found found;
  const Tokens wanted = Tokens(sequence.tokens).first(sequence.tokens.size() - 1);
  std::int32_t node = PrefixTree::kRoot;
  while ((found.path.size() + 1) * page_tokens() <= wanted.size()) {
    node = tree_.find(node, wanted.subspan(found.path.size() * page_tokens(), page_tokens()));
    if (node == PrefixTree::kNone) break;
    found.path.push_back(node);
  }
  while (!all_seen(found.path)) found.path.pop_back();
  find_partial(found, wanted, active);
  return found;
}

std::int64_t PagedCache::wanted(const Found& found, std::int64_t tokens) const {
  const std::size_t full = found.path.size();
  std::int64_t count = 0;
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::size_t first = first_seen(g, full * page_tokens());
    count += std::max<std::int64_t>(
        0, pages_of_group(shape_, g, tokens) - static_cast<std::int64_t>(full - first));
    for (std::size_t i = first; i < full; ++i) {
      if (pool_.holders(tree_.page(found.path[i], static_cast<std::int64_t>(g))) == 0) ++count;
    }
  }
  return count;
}

std::int32_t PagedCache::take_page() {
  const std::int32_t page = pool_.take();
  if (page != PagePool::kNone) tree_.forget(page);
  return page;
}

std::vector<std::int32_t> PagedCache::take_pages() {
  std::vector<std::int32_t> pages;
  while (pages.size() < groups()) {
    const std::int32_t page = take_page();
    if (page == PagePool::kNone) {
      for (const std::int32_t taken : pages) give(taken);
      return {};
    }
    pages.push_back(page);
  }
  return pages;
}

void PagedCache::append(Sequence& sequence, const std::vector<std::int32_t>& pages) {
  const auto index = static_cast<std::int64_t>(sequence.held.count());
  for (std::size_t g = 0; g < groups(); ++g) {
    sequence.held.pages[g].push_back(pages[g]);
    changes_.push_back({sequence.slot, static_cast<std::int64_t>(g), index, pages[g]});
  }
}

void PagedCache::begin(Sequence& sequence, const Found& found, std::vector<PageCopy>& copies) {
  HeldPages& held = sequence.held;
  check(held.count() == 0 && sequence.cached == 0, "a sequence is empty before its first token");
  const std::size_t full = found.path.size();
  held.pages.assign(groups(), std::vector<std::int32_t>(full, PagePool::kNone));
  held.first.assign(groups(), full);
  for (std::size_t g = 0; g < groups(); ++g) {
    held.first[g] = first_seen(g, full * page_tokens());
    for (std::size_t i = held.first[g]; i < full; ++i) {
      const std::int32_t page = tree_.page(found.path[i], static_cast<std::int64_t>(g));
      pool_.hold(page);
      held.pages[g][i] = page;
      changes_.push_back({sequence.slot, static_cast<std::int64_t>(g), static_cast<std::int64_t>(i), page});
    }
  }
  held.path = found.path;
  for (const std::int32_t node : held.path) tree_.use(node);
  sequence.cached = full * page_tokens();
  copy_partial(sequence, found, copies);
}

// Takes a page for each copy. If that would evict reusable contents, the sequence takes the source page
// itself, unless it has other holders. The common tokens stay, and only the rest of that page is lost.
void PagedCache::copy_partial(Sequence& sequence, const Found& found, std::vector<PageCopy>& copies) {
  if (found.partial.empty()) return;
  const auto tokens = static_cast<std::int64_t>(found.tokens - sequence.cached);
  // Held, so that none of them is taken for the copy of another.
  for (const std::int32_t page : found.partial) pool_.hold(page);
  std::vector<std::int32_t> own;
  for (const std::int32_t page : found.partial) {
    const bool itself = pool_.holders(page) == 1 && !pool_.has_empty();
    if (itself) pool_.hold(page);
    own.push_back(itself ? page : take_page());
  }
  const bool all = std::ranges::find(own, PagePool::kNone) == own.end();
  for (std::size_t g = 0; g < own.size(); ++g) {
    if (all && own[g] == found.partial[g]) tree_.forget(own[g]);
    if (all && own[g] != found.partial[g]) copies.push_back({found.partial[g], own[g], tokens});
    if (!all && own[g] != PagePool::kNone) give(own[g]);
    give(found.partial[g]);
  }
  if (!all) return;
  append(sequence, own);
  sequence.cached = found.tokens;
}

bool PagedCache::grow(Sequence& sequence) {
  if (sequence.held.pages.empty()) {
    sequence.held.pages.resize(groups());
    sequence.held.first.resize(groups());
  }
  if (sequence.cached < sequence.held.count() * page_tokens()) return true;
  const std::vector<std::int32_t> pages = take_pages();
  if (pages.empty()) return false;
  append(sequence, pages);
  return true;
}

void PagedCache::advance(Sequence& sequence) {
  ++sequence.cached;
  learn(sequence);
}

void PagedCache::learn(Sequence& sequence) {
  const HeldPages& held = sequence.held;
  while (sequence.known() >= (held.path.size() + 1) * page_tokens()) remember(sequence, held.path.size());
}

void PagedCache::remember(Sequence& sequence, std::size_t index) {
  HeldPages& held = sequence.held;
  const std::size_t begin = index * page_tokens();
  const std::size_t count = std::min(page_tokens(), sequence.known() - begin);
  const std::int32_t node = tree_.use(held.path.empty() ? PrefixTree::kRoot : held.path.back(),
                                      Tokens(sequence.tokens).subspan(begin, count));
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::int32_t page = held.pages[g][index];
    if (page != PagePool::kNone) tree_.put(node, static_cast<std::int64_t>(g), page);
  }
  held.path.push_back(node);
}

void PagedCache::free_behind_windows(Sequence& sequence) {
  HeldPages& held = sequence.held;
  for (std::size_t g = 0; g < held.pages.size(); ++g) {
    const std::size_t end = std::min(first_seen(g, sequence.cached), held.count());
    for (; held.first[g] < end; ++held.first[g]) {
      give(std::exchange(held.pages[g][held.first[g]], PagePool::kNone));
    }
  }
}

// The pages of a sequence are reused from its end, because other sequences may share its beginning.
void PagedCache::release(Sequence& sequence) {
  HeldPages& held = sequence.held;
  learn(sequence);
  if (sequence.known() > held.path.size() * page_tokens()) remember(sequence, held.path.size());
  for (std::size_t i = held.count(); i-- > 0;) {
    for (std::vector<std::int32_t>& pages : held.pages) {
      if (pages[i] != PagePool::kNone) give(pages[i]);
    }
  }
  for (auto node = held.path.rbegin(); node != held.path.rend(); ++node) tree_.leave(*node);
  held = {};
  sequence.cached = 0;
}

void PagedCache::forget() {
  for (std::int32_t page = 0; page < pool_.pages(); ++page) tree_.forget(page);
}

}  // namespace octet::generate
