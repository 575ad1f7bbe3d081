// NF4 on the GPU: codes, scales and values have the bits of the CPU.
#include "octet/ops/nf4.h"

#include <algorithm>
#include <array>

#include "gpu/sides.h"
#include "support/nf4_series.h"

namespace octet::ops::nf4_test {
namespace {

/// Returns `count` bytes of a pattern that marks unwritten memory.
std::vector<std::uint8_t> untouched(std::int64_t count) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), 0xEE);
}

TEST(Nf4, QuantisedAndDecodedItHasTheBitsOfTheCpu) {
  // An odd half byte and a short block at the end; one and several blocks of scales; more than one thread
  // block.
  for (const std::int64_t count : {1, 64, 1961, 64 * 257 + 8, 1 << 20}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      both(
          [&](Side& s) {
            const Tensor x = Tensor::uneven(dtype, 1, count, 5);
            const auto bytes = static_cast<std::size_t>(nf4_code_bytes(count));
            const auto blocks = nf4_blocks(count);
            auto* codes = s.put(std::vector<std::uint8_t>(bytes, 0xEE));
            auto* scales = s.put(std::vector<float>(static_cast<std::size_t>(blocks), 7.0f));
            auto* small = s.put(std::vector<std::uint8_t>(static_cast<std::size_t>(blocks), 0xEE));
            auto* nested = s.put(std::vector<float>(static_cast<std::size_t>(nf4_scale_blocks(count)), 7.0f));
            auto* mean = s.put(std::vector<float>{7.0f});
            nf4_quantize(
                s, {.x = s.put(x).data, .dtype = dtype, .count = count, .codes = codes, .scales = scales});
            nf4_quantize_scales(
                s, {.scales = scales, .blocks = blocks, .codes = small, .nested = nested, .mean = mean});
            s.out("codes", codes, nf4_code_bytes(count), DType::u8);
            s.out("scales", scales, blocks, DType::f32);
            s.out("codes of scales", small, blocks, DType::u8);
            s.out("scales of scales", nested, nf4_scale_blocks(count), DType::f32);
            s.out("mean", mean, 1, DType::f32);
            const std::int64_t begin = count > 128 ? 64 : 0;
            for (const DType to : {DType::f32, DType::bf16}) {
              for (const Nf4Scales& from :
                   {Nf4Scales{.plain = scales}, Nf4Scales{.codes = small, .nested = nested, .mean = mean}}) {
                auto* values = s.put(std::vector<float>(static_cast<std::size_t>(count - begin), 7.0f));
                nf4_decode(s, {.codes = codes,
                               .scales = from,
                               .begin = begin,
                               .count = count - begin,
                               .to = values,
                               .dtype = to});
                s.out("values", Matrix{values, to, 1, count - begin, count - begin});
              }
            }
          },
          {});
    }
  }
}

TEST(Nf4, CastToFp8ItHasTheBitsOfTheCpu) {
  // Whole tiles, tiles with missing rows, a pitch for several matrices, and shapes without tiles.
  for (const auto& [rows, cols, ld] : {std::array<std::int64_t, 3>{1, 1, 1},
                                       {7, 9, 12},
                                       {33, 130, 33},
                                       {16, 128, 16},
                                       {48, 256, 112},
                                       {128, 384, 128},
                                       {200, 128, 208},
                                       {272, 1024, 512},
                                       {17, 128, 32}}) {
    for (const DType through : {DType::f32, DType::bf16}) {
      for (const DType format : {DType::e4m3, DType::e5m2}) {
        both(
            [&](Side& s) {
              const std::int64_t count = rows * cols, blocks = nf4_blocks(count);
              const Tensor x = Tensor::uneven(DType::bf16, 1, count, 6);
              auto* codes = s.put(untouched(nf4_code_bytes(count)));
              auto* scales = s.put(std::vector<float>(static_cast<std::size_t>(blocks), 7.0f));
              auto* small = s.put(untouched(blocks));
              auto* nested =
                  s.put(std::vector<float>(static_cast<std::size_t>(nf4_scale_blocks(count)), 7.0f));
              auto* mean = s.put(std::vector<float>{7.0f});
              auto* scale = s.put(std::vector<float>{61.5f});
              nf4_quantize(s, {.x = s.put(x).data,
                               .dtype = DType::bf16,
                               .count = count,
                               .codes = codes,
                               .scales = scales});
              nf4_quantize_scales(
                  s, {.scales = scales, .blocks = blocks, .codes = small, .nested = nested, .mean = mean});
              for (const Nf4Scales& from :
                   {Nf4Scales{.plain = scales}, Nf4Scales{.codes = small, .nested = nested, .mean = mean}}) {
                for (const int layouts : {1, 2, 3}) {
                  auto* row = s.put(untouched(count));
                  auto* flipped = s.put(untouched(cols * ld));
                  nf4_to_fp8(s, {.codes = codes,
                                 .scales = from,
                                 .rows = rows,
                                 .cols = cols,
                                 .through = through,
                                 .format = format,
                                 .scale = scale,
                                 .row = layouts % 2 == 1 ? row : nullptr,
                                 .transposed = layouts / 2 == 1 ? flipped : nullptr,
                                 .transposed_ld = ld});
                  s.out("rows", row, count, DType::u8);
                  s.out("transposed", flipped, cols * ld, DType::u8);
                }
              }
            },
            {});
      }
    }
  }
}

// Experts are decoded together. Whole tiles, missing rows, and shapes without tiles.
TEST(Nf4, ASeriesHasTheBitsOfTheCpu) {
  constexpr std::int64_t tensors = 5;
  for (const auto& [rows, cols] : {std::array<std::int64_t, 2>{7, 9}, {16, 128}, {200, 256}, {33, 130}}) {
    const StoredNf4 x(tensors, rows, cols);
    const std::int64_t count = rows * cols, ld = 2 * rows;
    for (const bool twice : {false, true}) {
      both(
          [&](Side& s) {
            const std::uint8_t* const base = s.put(x.data);
            const Nf4Series series{
                .tensors = tensors, .bytes = x.bytes, .elements = count, .transposed = cols * ld, .scale = 1};
            auto* values = s.put(std::vector<float>(static_cast<std::size_t>(tensors * count), 7.0f));
            nf4_decode(s, {.codes = base,
                           .scales = twice ? x.twice(base) : x.plain(base),
                           .count = count,
                           .to = values,
                           .series = series});
            s.out("values", values, tensors * count, DType::f32);
            auto* row = s.put(untouched(tensors * count));
            auto* flipped = s.put(untouched(tensors * cols * ld));
            nf4_to_fp8(s, {.codes = base,
                           .scales = twice ? x.twice(base) : x.plain(base),
                           .rows = rows,
                           .cols = cols,
                           .through = DType::bf16,
                           .scale = s.put(std::vector<float>{61.5f, 3.0f, 9.0f, 100.0f, 1.5f}),
                           .row = row,
                           .transposed = flipped,
                           .transposed_ld = ld,
                           .series = series});
            s.out("rows", row, tensors * count, DType::u8);
            s.out("transposed", flipped, tensors * cols * ld, DType::u8);
          },
          {});
    }
  }
}

}  // namespace
}  // namespace octet::ops::nf4_test
