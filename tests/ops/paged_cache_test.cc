// Attention through a paged cache has the bits of attention through a contiguous cache. attention_test and
// fp8_cache_test check the latter against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "octet/device/cpu.h"
#include "octet/ops/attention.h"
#include "ops/attention_problem.h"

namespace octet::ops::paged_cache_test {
namespace {

constexpr std::int64_t kCapacity = 90, kSlots = 2;

struct Setting {
  DType dtype = DType::f32;
  bool fp8 = false;
  std::int64_t page_tokens = 0, window = 0;  ///< 0: no pages
};

/// Returns a page table in shuffled order, from the page that contains `first`. Page 0 contains NaN and
/// belongs to no sequence.
std::vector<std::int32_t> table_of(const Setting& s, const std::int64_t* first, const std::int64_t* end,
                                   std::int64_t pitch) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(kSlots * pitch), 0);
  for (std::int64_t slot = 0; slot < kSlots; ++slot) {
    for (std::int64_t i = first[slot] / s.page_tokens; i * s.page_tokens < end[slot]; ++i) {
      table[static_cast<std::size_t>(slot * pitch + i)] =
          static_cast<std::int32_t>((pitch - 1 - i) * kSlots + (slot + i) % kSlots);
    }
  }
  return table;
}

/// Decodes both sequences in pieces and returns the outputs.
std::vector<std::uint8_t> decode(const Setting& s) {
  const Heads heads{4, 2, 40};
  const auto device = make_cpu_device({.threads = 2});
  const auto stream = device->make_stream({.name = "compute"});
  const std::int64_t unit = std::max<std::int64_t>(1, s.page_tokens), pitch = kCapacity / unit + 2;
  const std::int64_t rows = s.page_tokens > 0 ? kSlots * pitch * unit : kSlots * kCapacity;
  const std::int64_t width = heads.q_heads * heads.head_dim, kv = heads.kv_heads * heads.head_dim;
  const auto bytes = static_cast<std::size_t>(rows * kv) * (s.fp8 ? 1 : size_of(s.dtype));
  std::vector<std::uint8_t> keys(bytes, 0xFF), values = keys, all;
  std::vector<float> key_scales(static_cast<std::size_t>(rows * heads.kv_heads)), value_scales = key_scales;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::int64_t next[kSlots] = {};
  for (const auto& counts : {std::vector<std::int64_t>{40, 3}, {1, 1}, {1, 30}, {1, 0}, {33, 1}, {1, 1}}) {
    std::vector<std::int32_t> slots, positions;
    std::int64_t first[kSlots];
    for (std::int64_t slot = 0; slot < kSlots; ++slot) {
      first[slot] = s.window > 0 ? std::max<std::int64_t>(0, next[slot] + 1 - s.window) : 0;
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(slot)]; ++i) {
        slots.push_back(static_cast<std::int32_t>(slot));
        positions.push_back(static_cast<std::int32_t>(next[slot]++));
      }
    }
    const auto tokens = static_cast<std::int64_t>(slots.size());
    Array qkv(tokens, heads.qkv_width(), s.dtype), out(tokens, width, s.dtype);
    for (std::int64_t i = 0; i < tokens * heads.qkv_width(); ++i) qkv.set(i, normal(random));
    std::vector<std::int32_t> table;
    CachePages pages;
    if (s.page_tokens > 0) {
      table = table_of(s, first, next, pitch);
      pages = {table.data(), pitch, s.page_tokens};
    }
    cached_attention(
        *stream, {.qkv = ConstMatrix(qkv.bytes.data(), s.dtype, tokens, heads.qkv_width(), heads.qkv_width()),
                  .heads = heads,
                  .slots = slots.data(),
                  .positions = positions.data(),
                  .k_cache = keys.data(),
                  .v_cache = values.data(),
                  .k_scale_inv = s.fp8 ? key_scales.data() : nullptr,
                  .v_scale_inv = s.fp8 ? value_scales.data() : nullptr,
                  .pages = pages,
                  .capacity = kCapacity,
                  .scale = 0.2f,
                  .window = s.window,
                  .out = Matrix{out.bytes.data(), s.dtype, tokens, width, width}});
    stream->synchronize();
    all.insert(all.end(), out.bytes.begin(), out.bytes.end());
  }
  return all;
}

TEST(PagedCache, HasTheBitsOfOneInOnePiece) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool fp8 : {false, true}) {
      for (const std::int64_t window : {0, 9, 33}) {
        const auto want = decode({dtype, fp8, 0, window});
        for (const std::int64_t page_tokens : {1, 4, 16, 64, 128})
          EXPECT_EQ(decode({dtype, fp8, page_tokens, window}), want)
              << name_of(dtype) << (fp8 ? " in E4M3" : "") << ", window " << window << ", pages of "
              << page_tokens;
      }
    }
  }
}

TEST(PagedCache, PagesThatCannotBeAreRefused) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  std::vector<float> qkv(48), cache(64), out(16);
  const std::int32_t slot = 0, position = 0, page = 0;
  const auto run = [&](const CachePages& pages) {
    cached_attention(*stream, {.qkv = ConstMatrix(qkv.data(), DType::f32, 1, 48, 48),
                               .heads = {1, 1, 16},
                               .slots = &slot,
                               .positions = &position,
                               .k_cache = cache.data(),
                               .v_cache = cache.data(),
                               .pages = pages,
                               .capacity = 4,
                               .out = Matrix{out.data(), DType::f32, 1, 16, 16}});
  };
  run({&page, 1, 4});
  EXPECT_THROW(run({&page, 1, 3}), std::logic_error);
  EXPECT_THROW(run({&page, 1, 0}), std::logic_error);
  EXPECT_THROW(run({&page, 1, 2}), std::logic_error) << "a sequence of four tokens has one page of two";
}

}  // namespace
}  // namespace octet::ops::paged_cache_test
