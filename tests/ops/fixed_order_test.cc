// The guarantee of a fixed order: a token has the same bits in single-token decoding, in a batch and in a
// micro-batch. Tested for GEMMs and for attention with and without a cache.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "octet/ops/block_quantize.h"
#include "octet/ops/gemm.h"
#include "ops/attention_problem.h"

namespace octet::ops::fixed_order_test {
namespace {

struct Kind {
  DType operands = DType::f32, result = DType::f32;
  std::int64_t n = 1, k = 1;
  bool blocks = false;  ///< operands are E4M3 with block scales
  bool bias = false, accumulate = false, addend = false;
  std::int64_t a_gap = 0;  ///< columns between the rows of A
};

/// Arrays of a GEMM with `rows` tokens.
struct Arrays {
  Arrays(const Kind& p, std::int64_t rows) : p_(p) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    a_ld_ = p.k + p.a_gap;
    const DType a_type = p.blocks ? DType::e4m3 : p.operands;
    const auto fill = [&](std::vector<std::byte>& to, std::int64_t count, DType dtype) {
      to.resize(static_cast<std::size_t>(count) * size_of(dtype));
      for (std::int64_t i = 0; i < count; ++i) {
        const float x = normal(random);
        if (dtype == DType::f32) {
          std::memcpy(to.data() + 4 * i, &x, 4);
        } else if (dtype == DType::bf16) {
          const std::uint16_t narrow = to_bf16(x);
          std::memcpy(to.data() + 2 * i, &narrow, 2);
        } else {
          to[static_cast<std::size_t>(i)] = static_cast<std::byte>(random() % 0x70 + (random() % 2) * 0x80);
        }
      }
    };
    fill(a_, rows * a_ld_, a_type);
    fill(b_, p.n * p.k, a_type);
    fill(d_, rows * p.n, p.result);
    fill(addend_, rows * p.n, p.result);
    for (std::int64_t i = 0; i < p.n; ++i) bias_.push_back(normal(random));
    for (std::int64_t i = 0; i < scale_count(Scaling::rows, rows, p.k); ++i)
      a_scales_.push_back(std::ldexp(1.0f, i % 5 - 2));
    for (std::int64_t i = 0; i < scale_count(Scaling::squares, p.n, p.k); ++i)
      b_scales_.push_back(std::ldexp(1.0f, i % 3));
  }
  /// Computes rows [first, first + count) of D in a separate call.
  std::vector<std::byte> rows(Device& device, std::int64_t first, std::int64_t count) const {
    const auto stream = device.make_stream({.name = "compute"});
    const DType a_type = p_.blocks ? DType::e4m3 : p_.operands;
    const std::size_t d_row = static_cast<std::size_t>(p_.n) * size_of(p_.result);
    const auto part = [&](const std::vector<std::byte>& of) {
      const auto begin = of.begin() + first * static_cast<std::int64_t>(d_row);
      return std::vector<std::byte>(begin, begin + count * static_cast<std::int64_t>(d_row));
    };
    std::vector<std::byte> d = part(d_), addend = part(addend_);
    GemmArgs args{.a = {.data = a_.data() + static_cast<std::size_t>(first * a_ld_) * size_of(a_type),
                        .dtype = a_type,
                        .rows = count,
                        .cols = p_.k},
                  .b = {.data = b_.data(), .dtype = a_type, .rows = p_.n, .cols = p_.k},
                  .d = {.data = d.data(), .dtype = p_.result, .rows = count, .cols = p_.n, .ld = p_.n},
                  .accumulate = p_.accumulate,
                  .a_ld = p_.a_gap > 0 ? a_ld_ : 0,
                  .bias = p_.bias ? bias_.data() : nullptr,
                  .fixed_order = true};
    std::vector<float> scales;
    if (p_.blocks) {
      // [blocks, rows]: scale_index.
      const std::int64_t blocks = (p_.k + 127) / 128, all = std::ssize(a_scales_) / blocks;
      scales.resize(static_cast<std::size_t>(blocks * count));
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t c = 0; c < p_.k; c += 128)
          scales[static_cast<std::size_t>(scale_index(Scaling::rows, count, p_.k, r, c))] =
              a_scales_[static_cast<std::size_t>((c / 128) * all + first + r)];
      }
      args.a.scale_inv = scales.data(), args.a.scaling = Scaling::rows;
      args.b.scale_inv = b_scales_.data(), args.b.scaling = Scaling::squares;
    }
    if (p_.addend) args.addend = {addend.data(), p_.result, count, p_.n, p_.n};
    std::vector<std::byte> scratch(gemm_workspace(device, args) + 256);
    auto* at = scratch.data() + (256 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 256) % 256;
    args.workspace = {at, scratch.size() - 256};
    gemm(*stream, args);
    stream->synchronize();
    return d;
  }

 private:
  Kind p_;
  std::int64_t a_ld_ = 0;
  std::vector<std::byte> a_, b_, d_, addend_;
  std::vector<float> bias_, a_scales_, b_scales_;
};

std::vector<Kind> gemms() {
  std::vector<Kind> all;
  for (const auto& [n, k] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 7}, {50, 64}, {64, 300}, {96, 128}, {130, 1000}, {1100, 64}, {300, 2048}}) {
    all.push_back({.n = n, .k = k});
    all.push_back({.operands = DType::bf16, .result = DType::bf16, .n = n, .k = k, .bias = n % 4 == 0});
    all.push_back({.operands = DType::bf16, .n = n, .k = k});
    all.push_back({.result = DType::bf16, .n = n, .k = k, .blocks = true});
  }
  all.push_back({.n = 96, .k = 80, .accumulate = true});
  all.push_back({.operands = DType::bf16, .result = DType::bf16, .n = 96, .k = 80, .addend = true});
  all.push_back({.n = 96, .k = 80, .bias = true, .a_gap = 5});
  return all;
}

TEST(FixedOrder, RowsOfAProductDoNotDependOnThoseBesideThem) {
  constexpr std::int64_t kRows = 300;
  for (const Kind& p : gemms()) {
    const Arrays arrays(p, kRows);
    const auto device = make_cpu_device({.threads = 2});
    const std::vector<std::byte> whole = arrays.rows(*device, 0, kRows);
    const auto row = static_cast<std::int64_t>(static_cast<std::size_t>(p.n) * size_of(p.result));
    for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1},
                                                                                         {17, 1},
                                                                                         {299, 1},
                                                                                         {3, 2},
                                                                                         {5, 15},
                                                                                         {40, 16},
                                                                                         {1, 17},
                                                                                         {100, 64},
                                                                                         {33, 100},
                                                                                         {2, 256},
                                                                                         {7, 290}}) {
      const auto other = make_cpu_device({.threads = static_cast<int>(1 + count % 3)});
      const std::vector<std::byte> part = arrays.rows(*other, first, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * row))
          << name_of(p.operands) << " into " << name_of(p.result) << (p.blocks ? " in blocks" : "") << ", "
          << p.n << " x " << p.k << ": " << count << " rows from " << first;
    }
  }
}

// --- attention -----------------------------------------------------------------------------------------

struct Problem {
  Heads heads;
  DType dtype = DType::f32;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
};

const std::vector<std::int32_t> kLengths{1, 64, 130, 3, 200, 65};

Matrix matrix_of(Array& x, std::int64_t rows, std::int64_t cols) {
  return {x.bytes.data(), x.dtype, rows, cols, cols};
}

/// Computes all documents in one packed call.
Array packed(const Problem& p, Device& device, Array& qkv, std::int64_t tokens) {
  const auto stream = device.make_stream({.name = "compute"});
  std::vector<std::int32_t> starts{0};
  for (const std::int32_t length : kLengths) starts.push_back(starts.back() + length);
  Array out(tokens, p.heads.q_heads * p.heads.head_dim, p.dtype);
  const std::size_t bytes = attention_workspace(device, p.heads, p.dtype, tokens, 200, true);
  std::vector<std::byte> scratch(bytes + 256);
  auto* at = scratch.data() + (256 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 256) % 256;
  attention(*stream, {.qkv = matrix_of(qkv, tokens, p.heads.qkv_width()),
                      .heads = p.heads,
                      .documents = {.cu_seqlens = starts.data(),
                                    .count = std::ssize(kLengths),
                                    .max_length = 200,
                                    .tokens = tokens},
                      .scale = 0.3f,
                      .soft_cap = p.soft_cap,
                      .window = p.window,
                      .out = matrix_of(out, tokens, p.heads.q_heads * p.heads.head_dim),
                      .fixed_order = true,
                      .workspace = {at, bytes}});
  stream->synchronize();
  return out;
}

/// Like packed(), but through a cache with scattered pages. A call decodes pieces of several documents.
Array through_cache(const Problem& p, Device& device, const Array& qkv, std::int64_t tokens,
                    std::int64_t page_tokens, unsigned seed) {
  const auto stream = device.make_stream({.name = "compute"});
  constexpr std::int64_t capacity = 256;
  const std::int64_t width = p.heads.q_heads * p.heads.head_dim, kv = p.heads.kv_heads * p.heads.head_dim;
  const auto slots = std::ssize(kLengths);
  const std::int64_t pitch = capacity / page_tokens;
  std::vector<std::int32_t> table;
  for (std::int64_t i = 0; i < slots * pitch; ++i)
    table.push_back(static_cast<std::int32_t>(slots * pitch - 1 - i));
  // Unwritten cache contents are NaN.
  std::vector<std::uint8_t> keys(static_cast<std::size_t>(slots * capacity * kv) * size_of(p.dtype), 0xFF);
  std::vector<std::uint8_t> values = keys;
  Array out(tokens, width, p.dtype);
  std::mt19937 random(seed);
  std::vector<std::int32_t> next(kLengths.size()), start{0};
  for (const std::int32_t length : kLengths) start.push_back(start.back() + length);
  const std::size_t bytes = cached_attention_workspace(device, p.heads, tokens, capacity, true);
  std::vector<std::byte> scratch(bytes + 256);
  auto* at = scratch.data() + (256 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 256) % 256;
  for (bool more = true; more;) {
    std::vector<std::int32_t> slot_of, position, single_slots, single_positions;
    for (std::size_t s = 0; s < kLengths.size(); ++s) {
      const std::int32_t left = kLengths[s] - next[s];
      const int kind = static_cast<int>(random() % 3);
      const std::int32_t count =
          kind == 0 ? 0
                    : std::min<std::int32_t>(left, kind == 1 ? 1 : static_cast<std::int32_t>(random() % 90));
      for (std::int32_t i = 0; i < count; ++i) {
        (count == 1 ? single_slots : slot_of).push_back(static_cast<std::int32_t>(s));
        (count == 1 ? single_positions : position).push_back(next[s]++);
      }
    }
    const auto alone = std::ssize(single_slots);
    single_slots.insert(single_slots.end(), slot_of.begin(), slot_of.end());
    single_positions.insert(single_positions.end(), position.begin(), position.end());
    const auto count = std::ssize(single_slots);
    Array piece(std::max<std::int64_t>(1, count), p.heads.qkv_width(), p.dtype),
        got(count + 1, width, p.dtype);
    const std::size_t row = static_cast<std::size_t>(p.heads.qkv_width()) * size_of(p.dtype);
    const std::size_t out_row = static_cast<std::size_t>(width) * size_of(p.dtype);
    const auto token_of = [&](std::int64_t t) {
      const auto i = static_cast<std::size_t>(t);
      return static_cast<std::size_t>(start[static_cast<std::size_t>(single_slots[i])] + single_positions[i]);
    };
    for (std::int64_t t = 0; t < count; ++t)
      std::memcpy(piece.bytes.data() + static_cast<std::size_t>(t) * row,
                  qkv.bytes.data() + token_of(t) * row, row);
    cached_attention(*stream, {.qkv = matrix_of(piece, count, p.heads.qkv_width()),
                               .heads = p.heads,
                               .slots = single_slots.data(),
                               .positions = single_positions.data(),
                               .k_cache = keys.data(),
                               .v_cache = values.data(),
                               .pages = {table.data(), pitch, page_tokens},
                               .capacity = capacity,
                               .scale = 0.3f,
                               .soft_cap = p.soft_cap,
                               .window = p.window,
                               .out = matrix_of(got, count, width),
                               .alone = alone,
                               .fixed_order = true,
                               .workspace = {at, bytes}});
    stream->synchronize();
    for (std::int64_t t = 0; t < count; ++t)
      std::memcpy(out.bytes.data() + token_of(t) * out_row,
                  got.bytes.data() + static_cast<std::size_t>(t) * out_row, out_row);
    more = !std::ranges::equal(next, kLengths);
  }
  return out;
}

TEST(FixedOrder, AttentionThroughACacheHasTheBitsOfPackedDocuments) {
  std::int64_t tokens = 0;
  for (const std::int32_t length : kLengths) tokens += length;
  for (const Problem& p :
       {Problem{{4, 2, 16}}, Problem{{4, 4, 40}, DType::bf16}, Problem{{8, 1, 128}, DType::bf16},
        Problem{{4, 2, 32}, DType::f32, 20.0f, 16}, Problem{{4, 2, 32}, DType::bf16, 0.0f, 70},
        Problem{{2, 1, 300}, DType::f32, 5.0f}}) {
    std::mt19937 random(9);
    Array qkv(tokens, p.heads.qkv_width(), p.dtype);
    qkv.fill(random, 1.3f);
    const auto device = make_cpu_device({.threads = 2});
    const Array want = packed(p, *device, qkv, tokens);
    unsigned seed = 1;
    for (const std::int64_t page_tokens : {1, 16, 64, 256}) {
      const auto other = make_cpu_device({.threads = static_cast<int>(1 + seed % 3)});
      EXPECT_EQ(through_cache(p, *other, qkv, tokens, page_tokens, seed++).bytes, want.bytes)
          << name_of(p.dtype) << ", heads of " << p.heads.head_dim << ", window " << p.window << ", pages of "
          << page_tokens;
    }
  }
}

TEST(FixedOrder, OfACacheInE4m3IsRefused) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  std::vector<float> qkv(48), cache(64), out(16), scale(4);
  const std::int32_t zero = 0;
  EXPECT_THROW(cached_attention(*stream, {.qkv = ConstMatrix(qkv.data(), DType::f32, 1, 48, 48),
                                          .heads = {1, 1, 16},
                                          .slots = &zero,
                                          .positions = &zero,
                                          .k_cache = cache.data(),
                                          .v_cache = cache.data(),
                                          .k_scale_inv = scale.data(),
                                          .v_scale_inv = scale.data(),
                                          .capacity = 4,
                                          .out = Matrix{out.data(), DType::f32, 1, 16, 16},
                                          .fixed_order = true}),
               std::logic_error);
}

}  // namespace
}  // namespace octet::ops::fixed_order_test
