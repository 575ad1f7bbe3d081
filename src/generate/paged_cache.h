// Pages of a KV cache as sequences come, grow and end: what they share, hold and give back. Knows no model.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "page_pool.h"
#include "prefix_tree.h"
#include "sequence.h"

namespace octet::generate {

/// Pages of a cache and who reads them (model::KvLayout).
struct CacheShape {
  std::vector<std::int64_t> windows;  ///< of each group
  std::int64_t page_tokens = 64, pages = 0;
  std::int64_t piece = 1;  ///< tokens of a sequence that a pass takes at most
  bool shared = true;      ///< sequences hold the pages of others that begin alike
};

/// Pages of one group that a sequence of so many tokens holds at most. A window holds what the tokens of a
/// pass see.
std::int64_t pages_of_group(const CacheShape& shape, std::size_t group, std::int64_t tokens);
/// Of all groups.
std::int64_t pages_of_sequence(const CacheShape& shape, std::int64_t tokens);

/// From now on a page holds tokens of a slot, for the blocks of a group.
struct PageChange {
  std::int64_t slot = 0, group = 0, index = 0;
  std::int32_t page = 0;
};

/// A copy of the first `tokens` tokens of a page.
struct PageCopy {
  std::int32_t from = 0, to = 0;
  std::int64_t tokens = 0;
};

/// Sequences take pages as they grow and give back what lies behind the windows that see it. Pages stay true
/// when they are given back, until somebody takes them: a sequence that begins with the same tokens holds
/// them too, and copies of the page behind them what it has in common.
class PagedCache {
 public:
  explicit PagedCache(const CacheShape& shape);
  const CacheShape& shape() const { return shape_; }
  const PagePool& pool() const { return pool_; }

  /// Where the beginning of a sequence lies. The last token is always computed: its logits are wanted.
  struct Found {
    std::vector<std::int32_t> path;     ///< nodes whose pages are whole
    std::vector<std::int32_t> partial;  ///< of each group the page behind them; empty: none
    std::size_t tokens = 0;             ///< in all
  };
  /// `active`: sequences whose newest pages may have more in common with it than any that is full.
  Found find(const Sequence& sequence, const std::list<Sequence>& active) const;
  /// Gives a sequence that holds nothing what was found, and advances `cached`. The copies must be done, in
  /// this order, before the next pass.
  void begin(Sequence& sequence, const Found& found, std::vector<PageCopy>& copies);
  /// Makes room for the token behind those that are cached; false where no page is free.
  bool grow(Sequence& sequence);
  /// That token is taken. What it is may become known later.
  void advance(Sequence& sequence);
  /// More of a sequence's tokens became known: pages that are full of known ones can be found.
  void learn(Sequence& sequence);
  /// Gives back what no token behind those that are cached sees.
  void free_behind_windows(Sequence& sequence);
  /// Gives everything back.
  void release(Sequence& sequence);
  /// Nothing that pages hold is true any more.
  void forget();
  /// Pages that a sequence of `tokens` tokens takes from those that nobody holds, when it begins so.
  std::int64_t wanted(const Found& found, std::int64_t tokens) const;
  std::vector<PageChange> take_changes() { return std::exchange(changes_, {}); }

 private:
  using Tokens = std::span<const std::int32_t>;
  std::size_t page_tokens() const { return static_cast<std::size_t>(shape_.page_tokens); }
  std::size_t groups() const { return shape_.windows.size(); }
  /// The first page of a group that the token behind `cached` others sees.
  std::size_t first_seen(std::size_t group, std::size_t cached) const;
  bool all_seen(const std::vector<std::int32_t>& path) const;
  void find_partial(Found& found, Tokens wanted, const std::list<Sequence>& active) const;
  std::int32_t take_page();
  /// A page of each group, or nothing.
  std::vector<std::int32_t> take_pages();
  void give(std::int32_t page) { pool_.give(page, tree_.has(page)); }
  void append(Sequence& sequence, const std::vector<std::int32_t>& pages);
  void copy_partial(Sequence& sequence, const Found& found, std::vector<PageCopy>& copies);
  /// The tokens of page `index`, as far as they are cached, lie where the sequence has them.
  void remember(Sequence& sequence, std::size_t index);

  CacheShape shape_;
  PagePool pool_;
  PrefixTree tree_;
  std::vector<PageChange> changes_;
};

}  // namespace octet::generate
