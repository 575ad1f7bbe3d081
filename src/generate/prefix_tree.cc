#include "prefix_tree.h"

#include <iterator>
#include <utility>

namespace octet::generate {

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

}  // namespace octet::generate
