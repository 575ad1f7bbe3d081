#include "octet/model/kv_cache.h"

#include <algorithm>
#include <array>
#include <map>

#include "octet/base/error.h"
#include "octet/ops/delta_inputs.h"

namespace octet::model {
namespace {

/// What blocks of one group have in common: the window, the number of KV heads, and their size.
using Kind = std::array<std::int64_t, 3>;
using BlocksByKind = std::map<Kind, std::int64_t>;

Kind kind_of(const Architecture& a, std::int64_t layer) {
  const ops::Heads heads = a.heads_of(layer);
  return {a.block(layer).window, heads.kv_heads, heads.head_dim};
}

std::vector<BlocksByKind> blocks_by_stage(const Architecture& a) {
  std::vector<BlocksByKind> stages;
  Share share = a.share;
  for (share.stage = 0; share.stage < share.stages; ++share.stage) {
    BlocksByKind& blocks = stages.emplace_back();
    for (std::int64_t layer = share.first_block(a.layers); layer < share.last_block(a.layers); ++layer) {
      if (!a.block(layer).delta_rule) ++blocks[kind_of(a, layer)];
    }
  }
  return stages;
}

/// Returns the number of blocks per group for which one page of each group takes the least memory in total.
/// If several numbers do, returns the largest. With one stage this is the greatest common divisor of the
/// blocks per kind, and no place is empty.
std::int64_t best_page_blocks(const std::vector<BlocksByKind>& stages) {
  std::int64_t most = 0;
  for (const BlocksByKind& blocks : stages) {
    for (const auto& [kind, count] : blocks) most = std::max(most, count);
  }
  std::int64_t best = 1, least = 0;
  for (std::int64_t size = 1; size <= most; ++size) {
    BlocksByKind groups;
    for (const BlocksByKind& blocks : stages) {
      for (const auto& [kind, count] : blocks)
        groups[kind] = std::max(groups[kind], (count + size - 1) / size);
    }
    std::int64_t places = 0;
    for (const auto& [kind, count] : groups) places += count * size;
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
  page_blocks_ = best_page_blocks(blocks_by_stage(a));
  std::map<Kind, std::vector<std::int64_t>> groups_of;  // groups of each kind, ascending
  Share share = a.share;
  for (share.stage = 0; share.stage < share.stages; ++share.stage) {
    BlocksByKind before;  // blocks of this stage
    for (std::int64_t layer = share.first_block(a.layers); layer < share.last_block(a.layers); ++layer) {
      if (a.block(layer).delta_rule) {
        group_.push_back(kNoGroup);
        place_.push_back(kNoGroup);
        continue;
      }
      const Kind kind = kind_of(a, layer);
      const std::int64_t number = before[kind]++;
      std::vector<std::int64_t>& of_kind = groups_of[kind];
      if (number / page_blocks_ == std::ssize(of_kind)) {
        of_kind.push_back(groups());
        windows_.push_back(a.block(layer).window);
      }
      group_.push_back(of_kind[static_cast<std::size_t>(number / page_blocks_)]);
      place_.push_back(shape_of(a, layer) * page_blocks_ + number % page_blocks_);
      if (share == a.share) own_blocks_ = std::max(own_blocks_, place_.back() + 1);
    }
  }
}

std::int64_t KvLayout::shape_of(const Architecture& a, std::int64_t layer) {
  const ops::Heads heads = heads_of_share(a, layer);
  const auto same = std::ranges::find_if(shapes_, [&](const Shape& shape) {
    return shape.kv_heads == heads.kv_heads && shape.head_dim == heads.head_dim;
  });
  if (same != shapes_.end()) return same - shapes_.begin();
  const auto count = static_cast<std::size_t>(heads.kv_heads);
  shapes_.push_back({.kv_heads = heads.kv_heads,
                     .head_dim = heads.head_dim,
                     .token_bytes = count * static_cast<std::size_t>(heads.head_dim) * size_of(dtype_),
                     .scale_bytes = fp8() ? count * sizeof(float) : 0});
  return std::ssize(shapes_) - 1;
}

std::size_t KvLayout::page_bytes() const {
  std::size_t token = 0;
  for (const Shape& shape : shapes_) token += shape.token_bytes + shape.scale_bytes;
  return static_cast<std::size_t>(2 * page_blocks_ * page_tokens_) * token;
}

KvCache::KvCache(Arena& arena, const Architecture& a, const KvLayout& layout, std::int64_t slots,
                 std::int64_t capacity, std::int64_t pages)
    : layout_(layout), slots_(slots), capacity_(capacity), pages_(pages) {
  const std::int64_t page_tokens = layout.page_tokens();
  std::int64_t elements = 0, entries = 0;
  if (slots < 1 || capacity < 1 || pages < 1 || pages > INT32_MAX || capacity > INT32_MAX ||
      __builtin_mul_overflow(pages, page_tokens, &elements) ||
      __builtin_mul_overflow(pages, static_cast<std::int64_t>(layout.page_bytes()), &elements) ||
      __builtin_mul_overflow(slots, layout.groups() * (capacity / page_tokens + 1) * 8, &entries)) {
    throw Error({.what = "a KV cache of this size is impossible",
                 .expected = "at least one sequence of one token that fits memory",
                 .found = std::to_string(slots) + " sequences of " + std::to_string(capacity) +
                          " tokens in " + std::to_string(pages) + " pages of " + std::to_string(page_tokens),
                 .fix = "lower --batch, --max-length or --kv-cache-bytes",
                 .code = ExitCode::usage});
  }
  const auto rows = static_cast<std::size_t>(pages * page_tokens);
  const auto reserve = [&](std::vector<Part>& parts, std::int64_t place) {
    for (const std::size_t token : {layout.token_bytes(place), layout.scale_bytes(place)}) {
      if (token > 0) parts.push_back({.data = arena.reserve("KV cache", rows * token), .token_bytes = token});
    }
  };
  for (std::int64_t place = 0; place < layout.own_blocks(); ++place) {
    reserve(keys_, place);
    reserve(values_, place);
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
