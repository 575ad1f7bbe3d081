#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/ops/attention.h"

namespace octet::model {

/// How the keys and values of a model lie in pages: the tokens of a sequence, page_tokens at a time, in as
/// many blocks as every page has. Blocks whose windows are alike see the same tokens; they form groups of one
/// size, and of each group a sequence has a page table of its own, so that a window gives back what lies
/// behind it while other blocks still see it, and a page fits every group. Without windows there is one
/// group. Of a model in stages every group has blocks on every stage, as evenly as the blocks allow: all
/// ranks then have the same groups and the same pages, each with its own blocks and heads in them.
class KvLayout {
 public:
  /// `dtype`: f32, bf16 or E4M3. Throws Error for another, and unless page_tokens is a power of two.
  KvLayout(const Architecture& architecture, DType dtype, std::int64_t page_tokens);
  DType dtype() const { return dtype_; }
  bool fp8() const { return dtype_ == DType::e4m3; }
  std::int64_t page_tokens() const { return page_tokens_; }
  /// Blocks of a group, of one stage, at most.
  std::int64_t page_blocks() const { return page_blocks_; }
  /// Those of them that this rank's share has in any group.
  std::int64_t own_blocks() const { return own_blocks_; }
  /// Of each group how many tokens its blocks see, the newest included; 0: all.
  const std::vector<std::int64_t>& windows() const { return windows_; }
  std::int64_t groups() const { return static_cast<std::int64_t>(windows_.size()); }
  /// Of keys, or values, of a token in one block, and of their scales in E4M3.
  std::size_t token_bytes() const { return token_bytes_; }
  std::size_t scale_bytes() const { return scale_bytes_; }
  /// Of a page on the rank that has most of it.
  std::size_t page_bytes() const;
  /// A block's group, and its place among the group's blocks.
  std::int64_t group(std::int64_t layer) const { return group_[static_cast<std::size_t>(layer)]; }
  std::int64_t place(std::int64_t layer) const { return place_[static_cast<std::size_t>(layer)]; }

 private:
  DType dtype_;
  std::int64_t page_tokens_, page_blocks_ = 0, own_blocks_ = 0;
  std::vector<std::int64_t> windows_, group_, place_;
  std::size_t token_bytes_, scale_bytes_;
};

/// Keys and values of sequences that are being decoded, in the compute dtype, or in E4M3 with a scale for
/// each key and value of a KV head (ops::CachedAttentionArgs), in pages. Which page holds what is for others
/// to say: set_page, then upload before the pass that reads it.
class KvCache {
 public:
  /// Reserves `pages` pages, and page tables of `slots` sequences of up to `capacity` tokens. Throws Error
  /// for sizes that are impossible.
  KvCache(Arena& arena, const Architecture& architecture, const KvLayout& layout, std::int64_t slots,
          std::int64_t capacity, std::int64_t pages);
  const KvLayout& layout() const { return layout_; }
  std::int64_t slots() const { return slots_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t pages() const { return pages_; }
  /// Tokens [index * page_tokens, …) of a slot lie in that page, for the blocks of a group. No pass that is
  /// on its way reads them.
  void set_page(std::int64_t slot, std::int64_t group, std::int64_t index, std::int32_t page);
  /// Enqueues the copy of what set_page changed to where passes read it: an address that does not change. The
  /// copy of the last but one upload is over.
  void upload(Device& device, Stream& stream);
  /// Enqueues a copy of the first `tokens` tokens of a page to another one.
  void copy_page(Device& device, Stream& stream, std::int32_t from, std::int32_t to, std::int64_t tokens);
  /// Of a block: [pages * page_tokens, kv_heads, head_dim].
  void* keys(std::int64_t layer) const { return part(keys_, layer, 0); }
  void* values(std::int64_t layer) const { return part(values_, layer, 0); }
  /// In E4M3, [pages * page_tokens, kv_heads]; else null.
  float* key_scales(std::int64_t layer) const {
    return layout_.fp8() ? static_cast<float*>(part(keys_, layer, 1)) : nullptr;
  }
  float* value_scales(std::int64_t layer) const {
    return layout_.fp8() ? static_cast<float*>(part(values_, layer, 1)) : nullptr;
  }
  /// The page tables that a block reads.
  ops::CachePages table(std::int64_t layer) const;

 private:
  struct Part {
    void* data = nullptr;
    std::size_t token_bytes = 0;  ///< of a token in a block
  };
  void* part(const std::vector<Part>& parts, std::int64_t layer, std::size_t which) const {
    return parts[static_cast<std::size_t>(layout_.place(layer)) * (layout_.fp8() ? 2 : 1) + which].data;
  }

  KvLayout layout_;
  std::int64_t slots_ = 0, capacity_ = 0, pages_ = 0;
  std::int64_t slot_pages_ = 0;      ///< entries of a slot in a group
  std::vector<Part> keys_, values_;  ///< of each place its array, in E4M3 followed by its scales
  std::int32_t* table_ = nullptr;    ///< device: [slots, groups, slot_pages_]
  std::int32_t* host_table_ = nullptr;
  std::array<std::int32_t*, 2> on_the_way_{};  ///< pinned: what is being uploaded, in turns
  std::size_t turn_ = 0;
  std::int64_t changed_from_ = 0, changed_to_ = 0;  ///< entries that are not uploaded yet
};

}  // namespace octet::model
