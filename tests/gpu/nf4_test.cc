// NF4 on the GPU: codes, scales and values have the bits of the CPU.
#include "octet/ops/nf4.h"

#include "gpu/sides.h"

namespace octet::ops {
namespace {

TEST(Nf4, QuantisedAndDecodedItHasTheBitsOfTheCpu) {
  // A half byte and a short block at the end; one and several blocks of scales; more than a thread block's.
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

}  // namespace
}  // namespace octet::ops
