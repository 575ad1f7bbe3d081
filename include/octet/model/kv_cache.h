#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/ops/attention.h"

namespace octet::model {

/// Layout of the paged KV cache. A page holds the keys and values of `page_tokens` tokens of a sequence in
/// `page_blocks` blocks. Blocks with equal windows see the same tokens and form groups of `page_blocks`
/// blocks, so a page fits every group. A sequence has one page table per group. A windowed group can thus
/// free pages that left its window while other groups keep theirs. Without windows there is one group. If the
/// model is split into stages, the blocks of a group are spread over the stages as evenly as possible. All
/// ranks then have the same groups and page numbers, and each rank stores its blocks and heads. Blocks with a
/// delta rule have no pages and no group. Blocks of one group have heads of one shape. Each shape has its
/// arrays, so that a page has room for a group of each shape, and a group uses the arrays of its shape.
class KvLayout {
 public:
  /// `dtype`: f32, bf16 or E4M3. Throws std::logic_error for another dtype, and Error (usage) unless
  /// page_tokens is a power of two.
  KvLayout(const Architecture& architecture, DType dtype, std::int64_t page_tokens);
  DType dtype() const { return dtype_; }
  bool fp8() const { return dtype_ == DType::e4m3; }
  std::int64_t page_tokens() const { return page_tokens_; }
  /// Largest number of blocks of a group on one stage.
  std::int64_t page_blocks() const { return page_blocks_; }
  /// Number of arrays of keys in this rank's share: with one shape of heads, the largest number of blocks of
  /// a group.
  std::int64_t own_blocks() const { return own_blocks_; }
  /// [groups] the number of tokens that a group's blocks see, including the newest one; 0: all tokens.
  const std::vector<std::int64_t>& windows() const { return windows_; }
  std::int64_t groups() const { return static_cast<std::int64_t>(windows_.size()); }
  /// Bytes of the keys (or of the values) of a token in one block, and of their scales (0 unless E4M3).
  /// `place`: of a block with this place.
  std::size_t token_bytes(std::int64_t place = 0) const { return shape_at(place).token_bytes; }
  std::size_t scale_bytes(std::int64_t place = 0) const { return shape_at(place).scale_bytes; }
  /// Bytes of a page with page_blocks() blocks of each shape: the most that any rank stores.
  std::size_t page_bytes() const;
  static constexpr std::int64_t kNoGroup = -1;
  /// The group of a block, and the index of its arrays; kNoGroup for a block with a delta rule.
  std::int64_t group(std::int64_t layer) const { return group_[static_cast<std::size_t>(layer)]; }
  std::int64_t place(std::int64_t layer) const { return place_[static_cast<std::size_t>(layer)]; }

 private:
  /// Bytes of the keys of a token in a block with these heads.
  struct Shape {
    std::int64_t kv_heads = 0, head_dim = 0;
    std::size_t token_bytes = 0, scale_bytes = 0;
  };
  const Shape& shape_at(std::int64_t place) const {
    return shapes_[static_cast<std::size_t>(place / page_blocks_)];
  }
  /// Returns the index of the shape of a block's heads, which may be new.
  std::int64_t shape_of(const Architecture& architecture, std::int64_t layer);

  DType dtype_;
  std::int64_t page_tokens_, page_blocks_ = 0, own_blocks_ = 0;
  std::vector<std::int64_t> windows_, group_, place_;
  std::vector<Shape> shapes_;  ///< in the order of the model's blocks; one or more
};

/// Paged keys and values of the decoded sequences, in f32, in bf16, or in E4M3 with one scale per KV head for
/// each key and value (ops::CachedAttentionArgs). The caller assigns pages: call set_page(), then upload()
/// before the pass that reads the pages. A block with a delta rule has a state of fixed size for each slot
/// instead. It depends on all tokens of the slot's sequence, so sequences cannot share it.
class KvCache {
 public:
  /// Reserves `pages` pages, and page tables for `slots` sequences of up to `capacity` tokens. Throws Error
  /// (usage) for impossible sizes.
  KvCache(Arena& arena, const Architecture& architecture, const KvLayout& layout, std::int64_t slots,
          std::int64_t capacity, std::int64_t pages);
  const KvLayout& layout() const { return layout_; }
  std::int64_t slots() const { return slots_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t pages() const { return pages_; }
  /// Assigns `page` to the tokens [index * page_tokens, (index + 1) * page_tokens) of a slot, for the blocks
  /// of a group. No enqueued pass may read these tokens.
  void set_page(std::int64_t slot, std::int64_t group, std::int64_t index, std::int32_t page);
  /// Enqueues the copy of the changed entries to the device table. Its address is fixed. The two pinned
  /// staging buffers are used in turn: the copy of the second-to-last upload must be complete.
  void upload(Device& device, Stream& stream);
  /// Enqueues a copy of the first `tokens` tokens of page `from` to page `to`. The pages must differ.
  void copy_page(Device& device, Stream& stream, std::int32_t from, std::int32_t to, std::int64_t tokens);
  /// Keys and values of a block: [pages * page_tokens, kv_heads, head_dim].
  void* keys(std::int64_t layer) const { return part(keys_, layer, 0); }
  void* values(std::int64_t layer) const { return part(values_, layer, 0); }
  /// Scales of an E4M3 cache: [pages * page_tokens, kv_heads]; null for another dtype.
  float* key_scales(std::int64_t layer) const {
    return layout_.fp8() ? static_cast<float*>(part(keys_, layer, 1)) : nullptr;
  }
  float* value_scales(std::int64_t layer) const {
    return layout_.fp8() ? static_cast<float*>(part(values_, layer, 1)) : nullptr;
  }
  /// States of a block with a delta rule (ops::CachedDeltaRuleArgs::states).
  float* delta_states(std::int64_t layer) const { return states_[static_cast<std::size_t>(layer)].rule; }
  /// Earlier inputs of its convolution (ops::CachedDeltaInputsArgs::past).
  float* delta_inputs(std::int64_t layer) const { return states_[static_cast<std::size_t>(layer)].inputs; }
  /// The page tables of the block's group, in device memory.
  ops::CachePages table(std::int64_t layer) const;

 private:
  struct Part {
    void* data = nullptr;
    std::size_t token_bytes = 0;  ///< of a token in a block
  };
  /// Arrays of a block with a delta rule; null for other blocks.
  struct State {
    float *rule = nullptr, *inputs = nullptr;
  };
  void reserve_states(Arena& arena, const Architecture& architecture);
  void* part(const std::vector<Part>& parts, std::int64_t layer, std::size_t which) const {
    return parts[static_cast<std::size_t>(layout_.place(layer)) * (layout_.fp8() ? 2 : 1) + which].data;
  }

  KvLayout layout_;
  std::int64_t slots_ = 0, capacity_ = 0, pages_ = 0;
  std::int64_t slot_pages_ = 0;      ///< entries per slot and group
  std::vector<Part> keys_, values_;  ///< one array per place, in E4M3 followed by its scales
  std::vector<State> states_;        ///< [layers]
  std::int32_t* table_ = nullptr;    ///< device: [slots, groups, slot_pages_]
  std::int32_t* host_table_ = nullptr;
  std::array<std::int32_t*, 2> on_the_way_{};  ///< pinned staging buffers, used in turn
  std::size_t turn_ = 0;
  std::int64_t changed_from_ = 0, changed_to_ = 0;  ///< range of entries that are not uploaded yet
};

}  // namespace octet::model
