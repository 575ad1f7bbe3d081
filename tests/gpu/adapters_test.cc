// The ops of adapters other than GEMMs, on the GPU. Dropout and the scaling of columns have the bits of the
// CPU. Each side sums DoRA in a different order, so these sums agree within the accuracy of fp32.
#include <array>
#include <cstring>

#include "gpu/sides.h"
#include "octet/base/dtype.h"
#include "octet/ops/dora.h"
#include "octet/ops/dropout.h"

namespace octet::ops::adapters_test {
namespace {

std::vector<std::uint64_t> names_of(std::int64_t tokens) {
  std::vector<std::uint64_t> names;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto bits = philox(3, RandomUse::data, static_cast<std::uint64_t>(t));
    names.push_back(std::uint64_t{bits[0]} << 32 | bits[1]);
  }
  return names;
}

TEST(Dropout, DropsTheElementsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [tokens, cols] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 7}, {33, 515}, {130, 4096}}) {
      for (const float rate : {0.0f, 0.05f, 0.5f}) {
        both(
            [&](Side& s) {
              const Matrix x = s.put(Tensor::random(dtype, tokens, cols, 1));
              const Matrix sum = s.put(Tensor::random(dtype, tokens, cols, 2));
              const Matrix out = s.put(Tensor::random(dtype, tokens, cols, 3));
              auto* names = s.put(names_of(tokens));
              DropoutArgs args{.x = x, .names = names, .key = 0x123456789ABCDEFull, .rate = rate, .out = out};
              dropout(s, args);
              args.out = sum, args.accumulate = true;
              dropout(s, args);
              args.out = x, args.accumulate = false;
              dropout(s, args);
              s.out("dropped", out);
              s.out("added", sum);
              s.out("in place", x);
            },
            {});
      }
    }
  }
}

TEST(Dora, NormsAndScalesAreNearTheCpus) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DType weight : {DType::f32, DType::bf16, DType::e4m3}) {
      for (const auto& [out, in, rank] : {std::array<std::int64_t, 3>{1, 1, 1},
                                          {5, 33, 3},
                                          {17, 1100, 16},
                                          {264, 4096, 8},
                                          {9, 300, 150}}) {
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(out * in) * size_of(weight));
        const std::vector<float> values = random_floats(out * in, 9);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::uint16_t narrow = to_bf16(values[i]);
          const std::uint8_t code = to_fp8(values[i] * 16, DType::e4m3);
          if (weight == DType::f32) std::memcpy(&bytes[4 * i], &values[i], 4);
          if (weight == DType::bf16) std::memcpy(&bytes[2 * i], &narrow, 2);
          if (weight == DType::e4m3) bytes[i] = code;
        }
        both(
            [&](Side& s) {
              auto* scale = s.put(std::vector<float>(static_cast<std::size_t>(out), -1));
              auto* norm = s.put(std::vector<float>(static_cast<std::size_t>(out), -1));
              dora_scale(s, {.weight = {.data = s.put(bytes),
                                        .dtype = weight,
                                        .rows = out,
                                        .cols = in,
                                        .scale_inv = s.put(std::vector<float>{1.0f / 16})},
                             .a = s.put(Tensor::random(dtype, rank, in, 1)),
                             .b = s.put(Tensor::random(dtype, out, rank, 2)),
                             .factor = 0.75f,
                             .magnitude = s.put(random_floats(out, 3)),
                             .scale = scale,
                             .norm = norm});
              s.out("scale", scale, out, DType::f32);
              s.out("norm", norm, out, DType::f32);
            },
            {.relative = 1e-5});
      }
    }
  }
}

TEST(Dora, ColumnsAreScaledWithTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 3}, {4, 520}, {65, 4099}}) {
      both(
          [&](Side& s) {
            const Matrix x = s.put(Tensor::random(dtype, rows, cols, 1));
            const Matrix addend = s.put(Tensor::random(dtype, rows, cols, 2));
            const Matrix out = s.put(Tensor::random(dtype, rows, cols, 5));
            auto* scale = s.put(random_floats(cols, 3));
            auto* bias = s.put(random_floats(cols, 4));
            scale_columns(s, {.x = x, .scale = scale, .out = out});
            s.out("scaled", out);
            scale_columns(s, {.x = x, .scale = scale, .bias = bias, .addend = addend, .out = addend});
            s.out("scaled and added", addend);
          },
          {});
    }
  }
}

TEST(Dora, GemmsOfColumnsAreNearTheCpus) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {130, 67}, {1000, 520}, {0, 5}}) {
      both(
          [&](Side& s) {
            auto divisor = random_floats(cols, 3);
            for (float& d : divisor) d = 1.0f + d * d;
            divisor.back() = 0.0f;
            auto* sums = s.put(std::vector<float>(static_cast<std::size_t>(cols), 1.5f));
            dot_columns(s, {.x = s.put(Tensor::random(dtype, rows, cols, 1)),
                            .y = s.put(Tensor::random(dtype, rows, cols, 2)),
                            .divisor = s.put(divisor),
                            .sums = sums});
            s.out("sums", sums, cols, DType::f32);
          },
          {.relative = 1e-5, .absolute = 1e-4});
    }
  }
}

}  // namespace
}  // namespace octet::ops::adapters_test
