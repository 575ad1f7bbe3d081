// Tracks which pages of a KV cache are held, and the order in which free pages are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octet::generate {

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
  // Two linked rings of pages without holders. Each has a head entry, before the entries of the pages.
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

}  // namespace octet::generate
