// Which pages hold the keys and values of which beginnings of prompts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace octet::generate {

/// A tree of tokens, a page of them at each node: the way from the root spells a beginning, and the node's
/// pages, one of each group of blocks, hold the keys and values of the node's own tokens behind it. Nodes
/// with fewer tokens than a page are where sequences ended. A node is there as long as it has a page, a child
/// or a user.
class PrefixTree {
 public:
  using Tokens = std::span<const std::int32_t>;
  static constexpr std::int32_t kRoot = 0, kNone = -1;

  PrefixTree(std::int64_t groups, std::int64_t pages);
  /// The child with exactly these tokens, or kNone.
  std::int32_t find(std::int32_t node, Tokens tokens) const;
  /// The same, made where there is none, with a user more.
  std::int32_t use(std::int32_t node, Tokens tokens);
  void use(std::int32_t node);
  void leave(std::int32_t node);
  /// A child that begins with as many of `tokens` as any, and how many these are.
  struct Nearest {
    std::int32_t node = kNone;
    std::size_t tokens = 0;
  };
  Nearest nearest(std::int32_t node, Tokens tokens) const;
  std::int32_t page(std::int32_t node, std::int64_t group) const {
    return nodes_[static_cast<std::size_t>(node)].pages[static_cast<std::size_t>(group)];
  }
  /// Whether a node has a page of every group.
  bool whole(std::int32_t node) const;
  /// The node's tokens lie in this page, which has no other node, unless the group has a page there already.
  void put(std::int32_t node, std::int64_t group, std::int32_t page);
  /// Whether a page holds tokens of a node.
  bool has(std::int32_t page) const { return places_[static_cast<std::size_t>(page)].node != kNone; }
  /// The page will hold something else.
  void forget(std::int32_t page);

 private:
  struct Order {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const { return std::ranges::lexicographical_compare(a, b); }
  };
  using Children = std::map<std::vector<std::int32_t>, std::int32_t, Order>;
  struct Node {
    std::int32_t parent = kNone;
    Children::iterator in_parent;
    Children children;
    std::vector<std::int32_t> pages;  ///< of each group; kNone
    std::int64_t users = 0;
  };
  struct Place {
    std::int32_t node = kNone;
    std::int32_t group = 0;
  };
  Node& at(std::int32_t node) { return nodes_[static_cast<std::size_t>(node)]; }
  const Node& at(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }
  std::int32_t add(std::int32_t parent, Tokens tokens);
  void prune(std::int32_t node);

  std::int64_t groups_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> unused_;  ///< nodes that are none
  std::vector<Place> places_;         ///< of each page
};

}  // namespace octet::generate
