#include "octet/model/kv_cache.h"

#include <algorithm>
#include <map>

#include "octet/base/error.h"
#include "octet/ops/delta_inputs.h"

namespace octet::model {
namespace {

using BlocksByWindow = std::map<std::int64_t, std::int64_t>;

std::vector<BlocksByWindow> blocks_by_stage(const Architecture& a) {
  std::vector<BlocksByWindow> stages;
  Share share = a.share;
  for (share.stage = 0; share.stage < share.stages; ++share.stage) {
    BlocksByWindow& blocks = stages.emplace_back();
    for (std::int64_t layer = share.first_block(a.layers); layer < share.last_block(a.layers); ++layer) {
      if (!a.block(layer).delta_rule) ++blocks[a.block(layer).window];
    }
  }
  return stages;
}

/// Returns the number of blocks per group for which one page of each group takes the least memory in total.
/// If several numbers do, returns the largest. With one stage this is the greatest common divisor of the
/// blocks per window, and no place is empty.
std::int64_t best_page_blocks(const std::vector<BlocksByWindow>& stages) {
  std::int64_t most = 0;
  for (const BlocksByWindow& blocks : stages) {
    for (const auto& [window, count] : blocks) most = std::max(most, count);
  }
  std::int64_t best = 1, least = 0;
  for (std::int64_t size = 1; size <= most; ++size) {
    BlocksByWindow groups;
    for (const BlocksByWindow& blocks : stages) {
      for (const auto& [window, count] : blocks)
        groups[window] = std::max(groups[window], (count + size - 1) / size);
    }
    std::int64_t places = 0;
    for (const auto& [window, count] : groups) places += count * size;
    if (size > 1 && places > least) continue;
    best = size;
    least = places;
  }
  return best;
}

}  // namespace

KvLayout::KvLayout(const Architecture& a, DType dtype, std::int64_t page_tokens)
    : dtype_(dtype), page_tokens_(page_tokens) {
  check(dtype == DType::f32 || dtype == DType::bf16 || fp8(), "a KV cache is f32, bf16 or E4M3");
  if (page_tokens < 1 || (page_tokens & (page_tokens - 1)) != 0) {
    throw Error({.what = "a page of the KV cache cannot have this size",
                 .expected = "a power of two of tokens",
                 .found = std::to_string(page_tokens),
                 .fix = "give a kv_page_tokens of 64 or another power of two",
                 .code = ExitCode::usage});
  }
  const auto heads = static_cast<std::size_t>(heads_of_share(a).kv_heads);
  token_bytes_ = heads * static_cast<std::size_t>(a.heads.head_dim) * size_of(dtype);
  scale_bytes_ = fp8() ? heads * sizeof(float) : 0;
  page_blocks_ = best_page_blocks(blocks_by_stage(a));
  std::map<std::int64_t, std::vector<std::int64_t>> groups_of;  // groups of each window, ascending
  Share share = a.share;
  for (share.stage = 0; share.stage < share.stages; ++share.stage) {
    std::map<std::int64_t, std::int64_t> before;  // blocks of this stage, by window
    for (std::int64_t layer = share.first_block(a.layers); layer < share.last_block(a.layers); ++layer) {
      if (a.block(layer).delta_rule) {
        group_.push_back(kNoGroup);
        place_.push_back(kNoGroup);
        continue;
      }
      const std::int64_t window = a.block(layer).window, number = before[window]++;
      std::vector<std::int64_t>& of_window = groups_of[window];
      if (number / page_blocks_ == std::ssize(of_window)) {
        of_window.push_back(groups());
        windows_.push_back(window);
      }
      group_.push_back(of_window[static_cast<std::size_t>(number / page_blocks_)]);
      place_.push_back(number % page_blocks_);
      if (share == a.share) own_blocks_ = std::max(own_blocks_, place_.back() + 1);
    }
  }
}

std::size_t KvLayout::page_bytes() const {
  return static_cast<std::size_t>(2 * page_blocks_ * page_tokens_) * (token_bytes_ + scale_bytes_);
}

KvCache::KvCache(Arena& arena, const Architecture& a, const KvLayout& layout, std::int64_t slots,
                 std::int64_t capacity, std::int64_t pages)
    : layout_(layout), slots_(slots), capacity_(capacity), pages_(pages) {
  const std::int64_t page_tokens = layout.page_tokens();
  std::int64_t elements = 0, entries = 0;
  if (slots < 1 || capacity < 1 || pages < 1 || pages > INT32_MAX || capacity > INT32_MAX ||
      __builtin_mul_overflow(pages, page_tokens, &elements) ||
      __builtin_mul_overflow(elements, a.heads.kv_heads * a.heads.head_dim * 8, &elements) ||
      __builtin_mul_overflow(slots, layout.groups() * (capacity / page_tokens + 1) * 8, &entries)) {
    throw Error({.what = "a KV cache of this size is impossible",
                 .expected = "at least one sequence of one token that fits memory",
                 .found = std::to_string(slots) + " sequences of " + std::to_string(capacity) +
                          " tokens in " + std::to_string(pages) + " pages of " + std::to_string(page_tokens),
                 .fix = "lower --batch, --max-length or --kv-cache-bytes",
                 .code = ExitCode::usage});
  }
  const auto rows = static_cast<std::size_t>(pages * page_tokens);
  const auto reserve = [&](std::vector<Part>& parts) {
    for (const std::size_t token : {layout.token_bytes(), layout.scale_bytes()}) {
      if (token > 0) parts.push_back({.data = arena.reserve("KV cache", rows * token), .token_bytes = token});
    }
  };
  for (std::int64_t place = 0; place < layout.own_blocks(); ++place) {
    reserve(keys_);
    reserve(values_);
  }
  reserve_states(arena, a);
  slot_pages_ = (capacity + page_tokens - 1) / page_tokens;
  const auto count = static_cast<std::size_t>(slots * layout.groups() * slot_pages_);
  table_ = arena.reserve_as<std::int32_t>("KV page table", count);
  host_table_ = arena.reserve_as<std::int32_t>("KV page table", count, MemoryKind::host);
  for (std::int32_t*& table : on_the_way_)
    table = arena.reserve_as<std::int32_t>("KV page table", count, MemoryKind::pinned);
}

void KvCache::reserve_states(Arena& arena, const Architecture& a) {
  const ops::DeltaHeads& heads = a.delta.heads;
  states_.resize(static_cast<std::size_t>(a.layers));
  for (std::int64_t layer = a.share.first_block(a.layers); layer < a.share.last_block(a.layers); ++layer) {
    if (!a.block(layer).delta_rule) continue;
    const auto floats = [&](std::int64_t count) {
      return arena.reserve_as<float>("states of delta rules", static_cast<std::size_t>(slots_ * count));
    };
    states_[static_cast<std::size_t>(layer)] = {.rule = floats(heads.values() * heads.key_dim),
                                                .inputs = floats((ops::kDeltaTaps - 1) * heads.qkv_width())};
  }
}

void KvCache::set_page(std::int64_t slot, std::int64_t group, std::int64_t index, std::int32_t page) {
  check(slot >= 0 && slot < slots_ && group >= 0 && group < layout_.groups() && index >= 0 &&
            index < slot_pages_ && page >= 0 && page < pages_,
        "a page of the cache holds tokens of a slot");
  const std::int64_t at = (slot * layout_.groups() + group) * slot_pages_ + index;
  host_table_[at] = page;
  const bool none = changed_from_ == changed_to_;
  changed_from_ = none ? at : std::min(changed_from_, at);
  changed_to_ = none ? at + 1 : std::max(changed_to_, at + 1);
}

// Makes one copy from the first change to the last: tables are small, and each copy has a start-up cost. The
// source is a staging buffer, because set_page() may run before the copy is complete.
void KvCache::upload(Device& device, Stream& stream) {
  if (changed_from_ == changed_to_) return;
  std::int32_t* const there = on_the_way_[turn_++ % on_the_way_.size()];
  std::copy(host_table_ + changed_from_, host_table_ + changed_to_, there + changed_from_);
  device.copy_to_device(stream, table_ + changed_from_, there + changed_from_,
                        static_cast<std::size_t>(changed_to_ - changed_from_) * sizeof(std::int32_t));
  changed_from_ = changed_to_ = 0;
}

void KvCache::copy_page(Device& device, Stream& stream, std::int32_t from, std::int32_t to,
                        std::int64_t tokens) {
  check(from != to && from >= 0 && to >= 0 && from < pages_ && to < pages_ && tokens >= 0 &&
            tokens <= layout_.page_tokens(),
        "tokens are copied between two pages");
  for (const auto* parts : {&keys_, &values_}) {
    for (const Part& part : *parts) {
      const std::size_t page = static_cast<std::size_t>(layout_.page_tokens()) * part.token_bytes;
      auto* base = static_cast<std::byte*>(part.data);
      device.copy(stream, base + static_cast<std::size_t>(to) * page,
                  base + static_cast<std::size_t>(from) * page,
                  static_cast<std::size_t>(tokens) * part.token_bytes);
    }
  }
}

ops::CachePages KvCache::table(std::int64_t layer) const {
  return {.table = table_ + layout_.group(layer) * slot_pages_,
          .pitch = layout_.groups() * slot_pages_,
          .tokens = layout_.page_tokens()};
}

}  // namespace octet::model
