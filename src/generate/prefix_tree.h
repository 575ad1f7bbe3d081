// Maps prefixes of prompts to the pages that hold their keys and values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace octet::generate {

/// A tree of tokens with up to one page of tokens per node. The path from the root spells a prefix. The pages
/// of a node, one per group of blocks, hold the keys and values of the node's tokens. Nodes with less than a
/// page of tokens are ends of sequences. A node exists as long as it has a page, a child or a user.
class PrefixTree {
 public:
  using Tokens = std::span<const std::int32_t>;
  static constexpr std::int32_t kRoot = 0, kNone = -1;

  PrefixTree(std::int64_t groups, std::int64_t pages);
  /// Returns the child with exactly these tokens, or kNone.
  std::int32_t find(std::int32_t node, Tokens tokens) const;
  /// Like find(), but creates a missing child, and adds a user to it.
  std::int32_t use(std::int32_t node, Tokens tokens);
  void use(std::int32_t node);
  void leave(std::int32_t node);
  /// The child with the longest common prefix with `tokens`, and the length of that prefix.
  struct Nearest {
    std::int32_t node = kNone;
    std::size_t tokens = 0;
  };
  Nearest nearest(std::int32_t node, Tokens tokens) const;
  std::int32_t page(std::int32_t node, std::int64_t group) const {
    return nodes_[static_cast<std::size_t>(node)].pages[static_cast<std::size_t>(group)];
  }
  /// Whether a node has a page in every group.
  bool whole(std::int32_t node) const;
  /// Records that `page`, which belongs to no other node, holds the node's tokens. No effect if the group has
  /// a page there.
  void put(std::int32_t node, std::int64_t group, std::int32_t page);
  /// Whether a page holds tokens of a node.
  bool has(std::int32_t page) const { return places_[static_cast<std::size_t>(page)].node != kNone; }
  /// Must be called before a page gets other contents.
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
    std::vector<std::int32_t> pages;  ///< per group; kNone: none
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
  std::vector<std::int32_t> unused_;  ///< free entries of nodes_
  std::vector<Place> places_;         ///< per page
};

}  // namespace octet::generate
