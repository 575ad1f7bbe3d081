// Compares attention through a cache on the GPU with the CPU side, one token at a time.
#include <algorithm>
#include <limits>

#include "gpu/device_arrays.h"
#include "octet/ops/attention.h"

namespace octet::ops::cached_attention_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16};

/// Two sequences with a prompt each, followed by single tokens.
HostArray decode(Bench& bench, DType dtype, const Heads& heads, float soft_cap, std::int64_t window) {
  constexpr std::int64_t capacity = 300, slots = 3;
  const std::int64_t width = heads.q_heads * heads.head_dim, kv = heads.kv_heads * heads.head_dim;
  const std::size_t cache_bytes = static_cast<std::size_t>(slots * capacity * kv) * size_of(dtype);
  void* k_cache = bench.room(cache_bytes);
  void* v_cache = bench.room(cache_bytes);
  std::mt19937 random(11);
  HostArray all(0, dtype);
  std::int32_t next[slots] = {0, 0, 0};
  for (const std::vector<std::int32_t>& counts :
       {std::vector<std::int32_t>{129, 0, 127}, {1, 0, 1}, {1, 0, 0}, {0, 0, 1}, {100, 1, 64}}) {
    std::vector<std::int32_t> slot_of, position;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      for (std::int32_t i = 0; i < counts[static_cast<std::size_t>(slot)]; ++i) {
        slot_of.push_back(slot);
        position.push_back(next[slot]++);
      }
    }
    const auto tokens = static_cast<std::int64_t>(slot_of.size());
    HostArray qkv(tokens * heads.qkv_width(), dtype), out(tokens * width, dtype);
    qkv.fill(random, 1.5f);
    void* to = bench.put(out);
    cached_attention(bench.stream(),
                     {.qkv = ConstMatrix(bench.put(qkv), dtype, tokens, heads.qkv_width(), heads.qkv_width()),
                      .heads = heads,
                      .slots = bench.put(slot_of),
                      .positions = bench.put(position),
                      .k_cache = k_cache,
                      .v_cache = v_cache,
                      .capacity = capacity,
                      .scale = 0.1f,
                      .soft_cap = soft_cap,
                      .window = window,
                      .out = Matrix{to, dtype, tokens, width, width}});
    bench.get(out, to);
    all.bytes.insert(all.bytes.end(), out.bytes.begin(), out.bytes.end());
  }
  return all;
}

TEST(GpuAttention, DecodingAgreesWithTheCpu) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t head_dim : {1, 33, 64, 80, 128, 256}) {
      for (const std::int64_t window : {0, 50}) {
        const Heads heads{4, 2, head_dim};
        const float cap = window > 0 ? 20.0f : 0.0f;
        Bench gpu(make_cuda_device()), cpu(make_cpu_device());
        const HostArray there = decode(gpu, dtype, heads, cap, window);
        const HostArray here = decode(cpu, dtype, heads, cap, window);
        EXPECT_LT(relative_distance([&](std::int64_t i) { return there[i]; },
                                    [&](std::int64_t i) { return here[i]; }, there.count()),
                  dtype == DType::bf16 ? 4e-3 : 3e-6)
            << head_dim << " window " << window;
      }
    }
  }
}

/// One call of cached_attention with caches that earlier calls have filled.
struct Decoding {
  Heads heads = {4, 2, 64};
  DType dtype = DType::bf16;
  std::int64_t capacity = 300;
  std::vector<std::int32_t> slots, positions;  ///< slots and positions of the new tokens
  std::int64_t alone = 0;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  std::int64_t ld_margin = 0;        ///< padding elements after each row of qkv
  std::int64_t workspace_rows = -1;  ///< number of tokens with pieces in the workspace; -1: as planned
  bool fixed_order = false;
  std::string name() const {
    return "heads " + std::to_string(heads.q_heads) + "/" + std::to_string(heads.kv_heads) + " of " +
           std::to_string(heads.head_dim) + ", " + std::to_string(slots.size()) + " tokens, " +
           std::to_string(alone) + " alone, first at " + std::to_string(positions[0]) + ", window " +
           std::to_string(window) + ", cap " + std::to_string(soft_cap) + ", " + std::string(name_of(dtype));
  }
};

/// Returns the bytes of the pieces of a single token.
std::size_t pieces_of_a_token(Device& device, const Decoding& d) {
  return cached_attention_workspace(device, d.heads, 1, d.capacity);
}

/// Returns the output, followed by the complete caches.
HostArray decode_once(Bench& bench, const Decoding& d) {
  const std::int64_t tokens = static_cast<std::int64_t>(d.slots.size());
  const std::int64_t width = d.heads.q_heads * d.heads.head_dim, kv = d.heads.kv_heads * d.heads.head_dim;
  const std::int64_t slots = *std::max_element(d.slots.begin(), d.slots.end()) + 1;
  HostArray keys(slots * d.capacity * kv, d.dtype), values = keys;  // NaN in unwritten elements
  // The values of a token do not depend on later tokens.
  std::mt19937 of_rows(7);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    std::mt19937 random(static_cast<unsigned>(d.heads.head_dim + d.positions[0] + 1000 * slot));
    std::normal_distribution<float> normal;
    std::int64_t before = -1;
    for (std::int64_t t = tokens - 1; t >= 0; --t) {
      const auto at = static_cast<std::size_t>(t);
      if (d.slots[at] == slot) before = d.positions[at];
    }
    for (std::int64_t i = slot * d.capacity * kv; i < (slot * d.capacity + before) * kv; ++i) {
      keys.set(i, 1.5f * normal(random));
      values.set(i, 1.5f * normal(random));
    }
  }
  const std::int64_t ld = d.heads.qkv_width() + d.ld_margin;
  HostArray qkv(tokens * ld, d.dtype), out(tokens * width, d.dtype);
  qkv.fill(of_rows, 1.5f);
  void* to = bench.put(out);
  void* k_cache = bench.put(keys);
  void* v_cache = bench.put(values);
  Workspace workspace;
  workspace.bytes =
      d.workspace_rows < 0
          ? cached_attention_workspace(bench.device(), d.heads, tokens, d.capacity, d.fixed_order)
          : static_cast<std::size_t>(d.workspace_rows) * pieces_of_a_token(bench.device(), d);
  if (workspace.bytes > 0) workspace.data = bench.room(workspace.bytes);
  cached_attention(bench.stream(),
                   {.qkv = ConstMatrix(bench.put(qkv), d.dtype, tokens, d.heads.qkv_width(), ld),
                    .heads = d.heads,
                    .slots = bench.put(d.slots),
                    .positions = bench.put(d.positions),
                    .k_cache = k_cache,
                    .v_cache = v_cache,
                    .capacity = d.capacity,
                    .scale = 0.1f,
                    .soft_cap = d.soft_cap,
                    .window = d.window,
                    .out = Matrix{to, d.dtype, tokens, width, width},
                    .alone = d.alone,
                    .fixed_order = d.fixed_order,
                    .workspace = workspace});
  bench.get(out, to);
  bench.get(keys, k_cache);
  bench.get(values, v_cache);
  for (const HostArray* cache : {&keys, &values}) {
    for (std::int64_t i = 0; i < cache->count(); ++i) {
      if (!std::isfinite((*cache)[i])) continue;
      const std::size_t size = size_of(d.dtype), at = static_cast<std::size_t>(i) * size;
      out.bytes.insert(out.bytes.end(), cache->bytes.begin() + static_cast<std::ptrdiff_t>(at),
                       cache->bytes.begin() + static_cast<std::ptrdiff_t>(at + size));
    }
  }
  return out;
}

HostArray decode_on_gpu(const Decoding& d) {
  Bench gpu(make_cuda_device());
  return decode_once(gpu, d);
}

void check_decoding(const Decoding& d) {
  Bench cpu(make_cpu_device());
  const HostArray there = decode_on_gpu(d), here = decode_once(cpu, d);
  // The caches, which follow the output, have the same bits. They are excluded so that they do not hide
  // errors.
  const std::int64_t count = static_cast<std::int64_t>(d.slots.size()) * d.heads.q_heads * d.heads.head_dim;
  ASSERT_EQ(there.bytes.size(), here.bytes.size()) << d.name();
  const auto caches = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * size_of(d.dtype));
  EXPECT_TRUE(std::equal(there.bytes.begin() + caches, there.bytes.end(), here.bytes.begin() + caches))
      << d.name() << ": the caches differ";
  // Compare each token separately, so that one wrong token is noticed.
  const std::int64_t a_token = d.heads.q_heads * d.heads.head_dim;
  for (std::int64_t t = 0; t < count; t += a_token) {
    const double far = relative_distance([&](std::int64_t i) { return there[t + i]; },
                                         [&](std::int64_t i) { return here[t + i]; }, a_token);
    EXPECT_LT(far, d.dtype == DType::bf16 ? 8e-3 : 1e-5) << d.name() << ", token " << t / a_token;
  }
  EXPECT_EQ(there.bytes, decode_on_gpu(d).bytes) << d.name() << ": two runs gave different bits";
}

/// Returns `count` sequences with one new token each, at positions up to `longest`. The first is at
/// `longest`.
Decoding single_tokens(std::int64_t count, std::int32_t longest, const Heads& heads, DType dtype) {
  Decoding d{.heads = heads, .dtype = dtype, .capacity = longest + 1, .alone = count};
  for (std::int64_t i = 0; i < count; ++i) {
    d.slots.push_back(static_cast<std::int32_t>(count - 1 - i));
    d.positions.push_back(static_cast<std::int32_t>((longest + 97 * i) % (longest + 1)));
  }
  return d;
}

/// Adds tokens [from, to) of a sequence.
void add_piece(Decoding& d, std::int32_t slot, std::int32_t from, std::int32_t to) {
  for (std::int32_t position = from; position < to; ++position) {
    d.slots.push_back(slot);
    d.positions.push_back(position);
  }
}

TEST(GpuCachedAttention, LoneTokensAgreeWithTheCpu) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t head_dim : {64, 80, 128, 256}) {
      for (const std::int64_t group : {1, 4, 7, 8}) {
        check_decoding(single_tokens(1, 0, {2 * group, 2, head_dim}, dtype));
        check_decoding(single_tokens(33, 300, {group, 1, head_dim}, dtype));
      }
    }
    check_decoding(single_tokens(5, 4999, {8, 2, 128}, dtype));
    check_decoding(single_tokens(3, 20000, {4, 1, 64}, dtype));
    check_decoding(single_tokens(3, 700, {40, 2, 64}, dtype));
    // The own key of each token is the last of 16 keys that a warp reads at once. At small positions it is in
    // the first group of its warp.
    Decoding last = {.heads = {8, 2, 128}, .dtype = dtype, .capacity = 600};
    for (const std::int32_t position : {15, 31, 63, 79, 271, 319, 527})
      add_piece(last, static_cast<std::int32_t>(last.slots.size()), position, position + 1);
    last.alone = static_cast<std::int64_t>(last.slots.size());
    check_decoding(last);
    for (const std::int64_t window : {1, 64, 300}) {
      Decoding d = single_tokens(5, 1500, {8, 2, 128}, dtype);
      d.window = window;
      d.soft_cap = 20.0f;
      check_decoding(d);
    }
  }
}

TEST(GpuCachedAttention, PromptsAndMixturesAgreeWithTheCpu) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t head_dim : {64, 80, 96, 128, 256}) {
      for (const std::int64_t group : {1, 4, 7, 8}) {
        Decoding piece{.heads = {2 * group, 2, head_dim}, .dtype = dtype};
        add_piece(piece, 0, 40, 73);
        check_decoding(piece);
        // Three single tokens, then parts of four sequences. One part has one token.
        Decoding mixed = single_tokens(3, 299, {group, 1, head_dim}, dtype);
        add_piece(mixed, 5, 0, 20);
        add_piece(mixed, 4, 90, 93);
        add_piece(mixed, 3, 250, 251);
        add_piece(mixed, 6, 100, 170);
        check_decoding(mixed);
        mixed.window = 30;
        mixed.soft_cap = 5.0f;
        check_decoding(mixed);
      }
    }
    Decoding whole{.heads = {8, 2, 128}, .dtype = dtype, .capacity = 700};
    add_piece(whole, 1, 0, 513);
    check_decoding(whole);
    Decoding late{.heads = {8, 2, 128}, .dtype = dtype, .capacity = 5000};
    add_piece(late, 0, 4967, 5000);
    check_decoding(late);
  }
}

TEST(GpuCachedAttention, RowsOffTheirBoundariesAgreeToo) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t head_dim : {1, 33, 66})
      check_decoding(single_tokens(3, 300, {4, 2, head_dim}, dtype));
    Decoding d = single_tokens(3, 300, {4, 2, 64}, dtype);
    d.ld_margin = 3;
    check_decoding(d);
    d.ld_margin = 8;
    check_decoding(d);
  }
}

TEST(GpuCachedAttention, LongCachesAreReadInPiecesWhateverTheWorkspaceHolds) {
  for (const DType dtype : dtypes) {
    const Decoding planned = single_tokens(9, 3000, {8, 2, 128}, dtype);
    const HostArray bits = decode_on_gpu(planned);
    Decoding few = planned;
    for (const std::int64_t rows : {1, 4}) {
      few.workspace_rows = rows;
      EXPECT_EQ(decode_on_gpu(few).bytes, bits.bytes) << rows;
    }
    few.workspace_rows = 0;
    EXPECT_NE(decode_on_gpu(few).bytes, bits.bytes) << "one piece has another order of sums";
    check_decoding(few);
    Decoding in_a_row = planned;
    in_a_row.alone = 0;
    EXPECT_NE(decode_on_gpu(in_a_row).bytes, bits.bytes);
    check_decoding(in_a_row);
  }
}

TEST(GpuCachedAttention, NeighboursDoNotChangeATokensBits) {
  for (const DType dtype : dtypes) {
    Decoding all = single_tokens(3, 1000, {8, 2, 128}, dtype);
    add_piece(all, 3, 100, 170);
    const HostArray together = decode_on_gpu(all);
    Decoding less = single_tokens(3, 1000, {8, 2, 128}, dtype);
    const HostArray alone = decode_on_gpu(less);
    const auto bytes = static_cast<std::ptrdiff_t>(3 * 8 * 128 * size_of(dtype));
    EXPECT_TRUE(std::equal(alone.bytes.begin(), alone.bytes.begin() + bytes, together.bytes.begin()));
  }
}

// With more single tokens, caches are split into fewer pieces. From a certain number on, the kernel has other
// block sizes. Seven pieces are joined unevenly.
TEST(GpuCachedAttention, ManyLoneTokensAgreeWithTheCpu) {
  for (const DType dtype : dtypes) {
    for (const auto& [head_dim, window] : {std::pair{64, 0}, {64, 700}, {128, 0}, {256, 0}}) {
      for (const std::int32_t count : {66, 270}) {
        Decoding many = single_tokens(3, 1700, {8, 2, head_dim}, dtype);
        many.window = window;
        for (std::int32_t slot = 3; slot < count; ++slot) add_piece(many, slot, slot, slot + 1);
        many.alone = count;
        check_decoding(many);
      }
    }
  }
}

// With fixed_order, a single token uses a separate kernel, with the bits of a token in a prompt.
void check_one_order(Decoding d) {
  d.fixed_order = true;
  const HostArray alone = decode_on_gpu(d);
  check_decoding(d);
  d.alone = 0;
  EXPECT_EQ(alone.bytes, decode_on_gpu(d).bytes) << d.name();
}

TEST(GpuCachedAttention, InOneOrderLoneTokensHaveTheBitsOfPrompts) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t head_dim : {40, 64, 80, 96, 128, 256}) {
      for (const std::int64_t group : {1, 4, 7, 16, 40}) {
        check_one_order(single_tokens(1, 0, {2 * group, 2, head_dim}, dtype));
        check_one_order(single_tokens(33, 300, {group, 1, head_dim}, dtype));
      }
    }
    check_one_order(single_tokens(5, 4999, {8, 2, 128}, dtype));
    check_one_order(single_tokens(150, 700, {8, 2, 128}, dtype));
    for (const std::int64_t window : {1, 64, 100, 300}) {
      Decoding d = single_tokens(20, 1500, {8, 2, 128}, dtype);
      d.window = window;
      d.soft_cap = 20.0f;
      check_one_order(d);
    }
  }
}

// The own key of the token is the last or the first key of a tile, in one of the first tiles or later.
TEST(GpuCachedAttention, InOneOrderAtTheEdgesOfTilesToo) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t head_dim : {64, 256}) {
      Decoding edges{.heads = {8, 2, head_dim}, .dtype = dtype, .capacity = 600};
      for (const std::int32_t position : {1, 62, 63, 64, 127, 128, 191, 192, 255, 256, 511, 512, 599})
        add_piece(edges, static_cast<std::int32_t>(edges.slots.size()), position, position + 1);
      edges.alone = static_cast<std::int64_t>(edges.slots.size());
      check_one_order(edges);
    }
  }
}

TEST(GpuCachedAttention, WhatIsOutsideTheCacheBecomesNanAndTouchesNothing) {
  for (const DType dtype : dtypes) {
    Decoding good = single_tokens(3, 290, {8, 2, 64}, dtype);
    add_piece(good, 3, 10, 60);
    Decoding bad = good;
    bad.slots[1] = -1;
    bad.positions[20] = 291;  // in the part of a sequence
    const HostArray want = decode_on_gpu(good), got = decode_on_gpu(bad);
    for (std::int64_t i = 0; i < 53 * 8 * 64; ++i) {
      const std::int64_t token = i / (8 * 64);
      if (token == 1 || token == 20) {
        ASSERT_TRUE(std::isnan(got[i])) << token;
      } else if (token < 3) {  // tokens of the part are read together, and later tokens lack a key
        ASSERT_EQ(got[i], want[i]) << token;
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::cached_attention_test
