// FP8 with block scales on the GPU: copies have the bits of the CPU, and GEMMs have its values.
#include "octet/ops/block_quantize.h"

#include "gpu/sides.h"
#include "octet/ops/gemm.h"

namespace octet::ops::block_quantize_test {
namespace {

/// The copies of a matrix on a side, with their scales.
struct Blocks {
  Blocks(Side& s, const Tensor& x, Scaling scaling) {
    const std::int64_t rows = x.rows(), cols = x.cols(), count = rows * cols;
    const std::vector<std::uint8_t> poison(static_cast<std::size_t>(count), 0xEE);
    const auto scales = [&](std::int64_t r, std::int64_t c) {
      return s.put(std::vector<float>(static_cast<std::size_t>(scale_count(scaling, r, c)), 7.0f));
    };
    auto *row = s.put(poison), *transposed = s.put(poison);
    float *scale = scales(rows, cols), *flipped = scales(cols, rows);
    auto* seen = s.put(std::vector<Fp8Seen>{Fp8Seen{}});
    block_quantize(s, {s.put(x), scaling, row, scale, transposed, flipped, seen});
    s.out("seen", reinterpret_cast<const std::uint8_t*>(seen), sizeof *seen, DType::u8);
    s.out("codes", row, count, DType::u8);
    s.out("transposed codes", transposed, count, DType::u8);
    s.out("scales", scale, scale_count(scaling, rows, cols), DType::f32);
    s.out("transposed scales", flipped, scale_count(scaling, cols, rows), DType::f32);
    operand = {.data = row,
               .transposed = transposed,
               .dtype = DType::e4m3,
               .rows = rows,
               .cols = cols,
               .scale_inv = scale,
               .scaling = scaling,
               .transposed_scale_inv = flipped};
  }
  Operand operand;
};

TEST(BlockQuantize, CopiesHaveTheBitsOfTheCpu) {
  constexpr std::int64_t shapes[][2] = {{1, 8}, {1, 300}, {127, 129}, {128, 128}, {144, 256}, {260, 384}};
  for (const auto& shape : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Tensor x = Tensor::uneven(dtype, shape[0], shape[1], 3);
      x.set(shape[0] / 2, shape[1] / 2, std::numeric_limits<double>::infinity());
      for (const Scaling scaling : {Scaling::rows, Scaling::squares}) {
        both([&](Side& s) { Blocks(s, x, scaling); }, {});
      }
    }
  }
}

// The second shape is decoded. The first and the last shape are multiplied in FP8.
TEST(BlockQuantize, GemmsHaveTheValuesOfTheCpu) {
  for (const auto& [tokens, in, out] :
       {std::array<std::int64_t, 3>{256, 384, 512}, {127, 200, 129}, {400, 1024, 256}}) {
    for (const DType d : {DType::bf16, DType::f32}) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(std::to_string(tokens) + " tokens into " + std::string(name_of(d)));
        // Sums on the tensor cores keep about 14 bits of 128 terms.
        both(
            [&](Side& s) {
              const Operand x = Blocks(s, Tensor::random(DType::bf16, tokens, in, 1), Scaling::rows).operand;
              const Operand w = Blocks(s, Tensor::random(DType::bf16, out, in, 2), Scaling::squares).operand;
              const Operand dy =
                  Blocks(s, Tensor::random(DType::bf16, tokens, out, 3), Scaling::rows).operand;
              const auto multiply = [&](GemmKind gemm_kind, const Operand& a, const Operand& b,
                                        std::int64_t rows, std::int64_t cols) {
                const Tensor start = Tensor::random(d, rows, cols, 4);
                GemmArgs args{.gemm_kind = gemm_kind, .a = a, .b = b, .accumulate = accumulate};
                args.d = s.put(start);
                // Rows of D are aligned, like gradients and activations.
                args.d.ld = args.d.cols;
                args.workspace = s.workspace(gemm_workspace(s.device(), args));
                const GemmOutcome outcome = gemm(s, args);
                const bool emulated = s.device().kind() == DeviceKind::cpu;
                const GemmWay there = tokens == 127 ? GemmWay::decoded : GemmWay::fp8;
                EXPECT_EQ(outcome.way, emulated ? GemmWay::emulated : there) << text_of(outcome.reason);
                s.out("product " + std::to_string(static_cast<int>(gemm_kind)), args.d);
              };
              multiply(GemmKind::forward, x, w, tokens, out);
              multiply(GemmKind::dgrad, dy, w, tokens, in);
              multiply(GemmKind::wgrad, dy, x, out, in);
            },
            {.relative = 1e-3, .absolute = 0.05, .bf16_steps = 2.01});
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::block_quantize_test
