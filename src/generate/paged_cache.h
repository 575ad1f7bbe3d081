// Manages pages of a KV cache while sequences start, grow and end: sharing, holding and releasing. It is
// independent of the model.
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
    std::vector<std::int32_t> partial;  ///< per group, the page after them; empty: none
    std::size_t tokens = 0;             ///< in total
  };
  /// Finds the cached prefix of a sequence. `active`: their newest, partly filled pages are searched too.
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
