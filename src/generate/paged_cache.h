// The paged KV cache of a decoder: its pages, the tree of shared prefixes, and the pages of sequences.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "octet/generate/decoder.h"

namespace octet::generate {

// A request in progress.

/// Cache pages of a sequence.
struct HeldPages {
  std::vector<std::vector<std::int32_t>> pages;  ///< per group, by their place in the sequence
  std::vector<std::size_t>
      first;  ///< per group, the first held page; earlier pages were released after the window passed
  std::vector<std::int32_t> path;  ///< nodes of the prefix tree, one per full page

  std::size_t count() const { return pages.empty() ? 0 : pages.front().size(); }
};

struct Sequence {
  std::size_t request = 0;
  Request asked;
  AnswerOptions options;
  Answer answer;
  std::vector<std::int32_t> tokens;  ///< prompt, then answer
  std::int32_t slot = -1;            ///< index of its page tables
  /// Tokens with keys and values in the cache, including passes in flight. It can exceed the known tokens by
  /// one, if the newest pass takes a token that the previous pass computes.
  std::size_t cached = 0;
  std::size_t lost = 0;   ///< most cached tokens before it returned to the queue
  int in_flight = 0;      ///< passes in flight that compute a token of it
  std::int32_t row = -1;  ///< its row in the newest of these passes
  bool waits = false;     ///< until another sequence has computed the beginning of its prompt
  bool ended = false;     ///< its answer is complete, but a pass in flight still computes a token after it
  HeldPages held;

  /// Whether all tokens except the newest are cached, and the newest is part of the answer.
  bool decodes() const { return !answer.ids.empty() && cached + 1 == tokens.size(); }
  /// Tokens that are known and cached.
  std::size_t known() const { return std::min(cached, tokens.size()); }
  /// Whether its next pass can take the unknown token of the pass in flight: the length limit allows another
  /// token after it.
  bool can_be_followed(std::size_t capacity) const {
    return in_flight == 1 && !ended && cached == tokens.size() && tokens.size() + 1 < longest(capacity);
  }
  /// Most tokens of prompt and answer.
  std::size_t longest(std::size_t capacity) const {
    return std::min(capacity, asked.prompt.size() + static_cast<std::size_t>(options.max_new));
  }
};

// Tracks which pages of a KV cache are held, and the order in which free pages are taken.

/// A page has any number of holders. A page without holders may still have reusable contents. Such a page is
/// taken last, and the least recently held page first.
class PagePool {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit PagePool(std::int64_t pages);
  std::int64_t pages() const { return pages_; }
  std::int64_t free() const { return free_; }
  /// Whether a page can be taken without losing reusable contents.
  bool has_empty() const { return touched() < pages_ || next_[ring(false)] != ring(false); }
  /// Most pages held at once.
  std::int64_t most_held() const { return most_held_; }
  /// Takes a page for one holder, or returns kNone if all are held. The earlier contents are invalid.
  std::int32_t take();
  void hold(std::int32_t page);
  std::int32_t holders(std::int32_t page) const {
    return page < touched() ? holders_[static_cast<std::size_t>(page)] : 0;
  }
  /// Removes one holder. `worth_keeping`: the contents may be reused.
  void give(std::int32_t page, bool worth_keeping);

 private:
  // Two linked rings of pages without holders: pages with reusable contents, and other pages. The entries of
  // the two heads precede the entries of the pages.
  static std::size_t ring(bool worth_keeping) { return worth_keeping ? 1 : 0; }
  static std::size_t entry(std::int32_t page) { return static_cast<std::size_t>(page) + 2; }
  std::int64_t touched() const { return static_cast<std::int64_t>(holders_.size()); }
  void touch();
  void link(std::size_t entry, std::size_t before);
  void unlink(std::size_t entry);

  std::int64_t pages_;
  // Only for pages that were held at least once; these come first. A cache may have millions of unused pages.
  std::vector<std::int32_t> holders_;
  std::vector<std::size_t> next_{ring(false), ring(true)}, previous_{ring(false), ring(true)};
  std::int64_t free_, most_held_ = 0;
};

// Maps prefixes of prompts to the pages that hold their keys and values.

/// A tree of tokens with up to one page of tokens per node. The path from the root spells a prefix. The pages
/// of a node, one per group of blocks, hold the keys and values of the node's tokens. A sequence
/// may end in a node with less than a page of tokens. A node exists as long as it has a page, a child or a
/// user.
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

/// The pages of a cache and their groups (model::KvLayout).
struct CacheShape {
  std::vector<std::int64_t> windows;  ///< per group
  std::int64_t page_tokens = 64, pages = 0;
  std::int64_t piece = 1;  ///< most tokens of a sequence per pass
  bool shared = true;      ///< sequences share pages of a common prefix
};

/// Most pages of one group that a sequence of `tokens` tokens holds. With a window, only pages that tokens of
/// a pass can read are held.
std::int64_t pages_of_group(const CacheShape& shape, std::size_t group, std::int64_t tokens);
/// Likewise, summed over all groups.
std::int64_t pages_of_sequence(const CacheShape& shape, std::int64_t tokens);

/// Maps page `index` of a slot, for the blocks of a group, to `page`.
struct PageChange {
  std::int64_t slot = 0, group = 0, index = 0;
  std::int32_t page = 0;
};

/// A copy of the first `tokens` tokens of a page.
struct PageCopy {
  std::int32_t from = 0, to = 0;
  std::int64_t tokens = 0;
};

/// Sequences take pages as they grow and release pages that their windows have passed. Released pages keep
/// valid contents until they are taken. A sequence with the same first tokens holds these pages too. From the
/// page after them, it copies the common tokens.
class PagedCache {
 public:
  explicit PagedCache(const CacheShape& shape);
  const CacheShape& shape() const { return shape_; }
  const PagePool& pool() const { return pool_; }

  /// Cached prefix of a sequence. The last token is always computed, because its logits are needed.
  struct Found {
    std::vector<std::int32_t> path;     ///< tree nodes with full pages
    std::vector<std::int32_t> partial;  ///< per group, the page after the full pages; empty: none
    std::size_t tokens = 0;             ///< tokens of all these pages
  };
  /// Finds the cached prefix of a sequence. Also searches the newest, partly
  /// filled pages of `active`.
  Found find(const Sequence& sequence, const std::list<Sequence>& active) const;
  /// Gives the found pages to a sequence that holds none, and advances `cached`. The copies must be done, in
  /// this order, before the next pass.
  void begin(Sequence& sequence, const Found& found, std::vector<PageCopy>& copies);
  /// Makes room for the token after the cached tokens. Returns false if no page is free.
  bool grow(Sequence& sequence);
  /// Counts that token as cached. Its id may become known later.
  void advance(Sequence& sequence);
  /// Registers full pages of known tokens, after more tokens of the sequence became known.
  void learn(Sequence& sequence);
  /// Releases pages that no token after the cached tokens can read.
  void free_behind_windows(Sequence& sequence);
  /// Releases all pages of the sequence.
  void release(Sequence& sequence);
  /// Invalidates the contents of all pages.
  void forget();
  /// Free pages that a sequence of `tokens` tokens takes if it starts with `found`.
  std::int64_t wanted(const Found& found, std::int64_t tokens) const;
  std::vector<PageChange> take_changes() { return std::exchange(changes_, {}); }

 private:
  using Tokens = std::span<const std::int32_t>;
  std::size_t page_tokens() const { return static_cast<std::size_t>(shape_.page_tokens); }
  std::size_t groups() const { return shape_.windows.size(); }
  /// The first page of a group that the token after `cached` tokens reads.
  std::size_t first_seen(std::size_t group, std::size_t cached) const;
  bool all_seen(const std::vector<std::int32_t>& path) const;
  void find_partial(Found& found, Tokens wanted, const std::list<Sequence>& active) const;
  std::int32_t take_page();
  /// Takes one page per group, or none.
  std::vector<std::int32_t> take_pages();
  void give(std::int32_t page) { pool_.give(page, tree_.has(page)); }
  void append(Sequence& sequence, const std::vector<std::int32_t>& pages);
  void copy_partial(Sequence& sequence, const Found& found, std::vector<PageCopy>& copies);
  /// Records that page `index` of the sequence holds the cached tokens of that page.
  void remember(Sequence& sequence, std::size_t index);

  CacheShape shape_;
  PagePool pool_;
  PrefixTree tree_;
  std::vector<PageChange> changes_;
};

}  // namespace octet::generate
