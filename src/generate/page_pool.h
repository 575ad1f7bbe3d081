// Which pages of a KV cache are held, and in which order those that nobody holds are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octet::generate {

/// A page has any number of holders. One without holders may still have contents that somebody will ask for:
/// it is taken last, and of several the one that nobody has held for longest.
class PagePool {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit PagePool(std::int64_t pages);
  std::int64_t pages() const { return pages_; }
  std::int64_t free() const { return free_; }
  /// Whether a page can be taken without losing contents.
  bool has_empty() const { return touched() < pages_ || next_[ring(false)] != ring(false); }
  /// Pages that were held at once, at most.
  std::int64_t most_held() const { return most_held_; }
  /// A page for one holder, or kNone when all are held. What it held is no longer true.
  std::int32_t take();
  void hold(std::int32_t page);
  std::int32_t holders(std::int32_t page) const {
    return page < touched() ? holders_[static_cast<std::size_t>(page)] : 0;
  }
  /// One holder less. `worth_keeping`: its contents may be asked for.
  void give(std::int32_t page, bool worth_keeping);

 private:
  // Two rings of pages without holders. Each goes through an entry of its own, before the entries of pages.
  static std::size_t ring(bool worth_keeping) { return worth_keeping ? 1 : 0; }
  static std::size_t entry(std::int32_t page) { return static_cast<std::size_t>(page) + 2; }
  std::int64_t touched() const { return static_cast<std::int64_t>(holders_.size()); }
  void touch();
  void link(std::size_t entry, std::size_t before);
  void unlink(std::size_t entry);

  std::int64_t pages_;
  // Of the pages that were ever held, which are the first ones: a cache may have millions that never are.
  std::vector<std::int32_t> holders_;
  std::vector<std::size_t> next_{ring(false), ring(true)}, previous_{ring(false), ring(true)};
  std::int64_t free_, most_held_ = 0;
};

}  // namespace octet::generate
