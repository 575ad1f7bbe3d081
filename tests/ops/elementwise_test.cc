#include "octet/ops/elementwise.h"

#include "ops/tensor.h"

namespace octet::ops::elementwise_test {
namespace {

std::vector<float> every_exponent() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000u; high += 0x4u) {
    for (const std::uint32_t low : {0x0u, 0x1u, 0x0FFFu, 0x1000u, 0x1001u, 0x8000u, 0x8001u, 0x3FFFFu}) {
      values.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  return values;
}

TEST(Convert, FromF32GivesTheBitsOfTheScalarCasts) {
  const std::vector<float> x = every_exponent();
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint16_t> bf16(x.size()), f16(x.size());
  CpuStream stream;
  convert(stream, x.data(), DType::f32, bf16.data(), DType::bf16, n);
  convert(stream, x.data(), DType::f32, f16.data(), DType::f16, n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(bf16[i], to_bf16(x[i])) << x[i];
    ASSERT_EQ(f16[i], to_f16(x[i])) << x[i];
  }
}

TEST(Convert, AllHalvesWidenExactly) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> from_half(all.size()), from_brain(all.size());
  std::vector<std::uint16_t> back(all.size()), brain(all.size());
  CpuStream stream;
  convert(stream, all.data(), DType::f16, from_half.data(), DType::f32, 0x10000);
  convert(stream, all.data(), DType::bf16, from_brain.data(), DType::f32, 0x10000);
  convert(stream, all.data(), DType::f16, brain.data(), DType::bf16, 0x10000);
  convert(stream, all.data(), DType::bf16, back.data(), DType::bf16, 0x10000);
  EXPECT_EQ(back, all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint16_t code = all[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_brain[i]), std::bit_cast<std::uint32_t>(from_bf16(code)));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(from_half[i]), std::bit_cast<std::uint32_t>(octet::from_f16(code)))
        << code;
    ASSERT_EQ(brain[i], to_bf16(octet::from_f16(code))) << code;
  }
}

TEST(Add, IsOneRoundedSumAnElement) {
  for (const std::int64_t n : {0, 1, 127, 5000}) {
    const std::vector<float> from = random_floats(n, 1), start = random_floats(n, 2);
    std::vector<std::uint16_t> narrow;
    for (const float x : from) narrow.push_back(to_bf16(x));
    std::vector<float> a = start, b = start;
    CpuStream stream;
    add(stream, from.data(), DType::f32, a.data(), n);
    add(stream, narrow.data(), DType::bf16, b.data(), n);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i], start[i] + from[i]);
      ASSERT_EQ(b[i], start[i] + from_bf16(narrow[i]));
    }
  }
}

TEST(Fill, SetsEveryElement) {
  std::vector<float> x(70000, 1.0f);
  CpuStream stream;
  fill(stream, x.data(), -2.5f, 69999);
  EXPECT_EQ(x.back(), 1.0f);
  x.pop_back();
  EXPECT_EQ(x, std::vector<float>(69999, -2.5f));
}

TEST(Elementwise, WrongArgumentsAreRefused) {
  CpuStream stream;
  float x[2] = {};
  EXPECT_THROW(convert(stream, x, DType::e4m3, x, DType::f32, 1), std::logic_error);
  EXPECT_THROW(convert(stream, x, DType::f32, nullptr, DType::f32, 1), std::logic_error);
  EXPECT_THROW(add(stream, x, DType::f16, x, 1), std::logic_error);
}

TEST(ScaleBy, IsOneRoundedProductOfEachElement) {
  const float factor = 0.3f;
  CpuStream stream;
  for (const std::int64_t cols : {1, 7, 300}) {
    std::vector<float> wide = random_floats(3 * cols, 1), expected = wide;
    std::vector<std::uint16_t> narrow, expected_narrow;
    for (float& x : expected) {
      narrow.push_back(to_bf16(x));
      expected_narrow.push_back(to_bf16(from_bf16(narrow.back()) * factor));
      x *= factor;
    }
    scale_by(stream, {.data = wide.data(), .dtype = DType::f32, .rows = 3, .cols = cols, .ld = cols},
             &factor);
    scale_by(stream, {.data = narrow.data(), .dtype = DType::bf16, .rows = 3, .cols = cols, .ld = cols},
             &factor);
    EXPECT_EQ(wide, expected);
    EXPECT_EQ(narrow, expected_narrow);
  }
  float x[4] = {};
  const Matrix strided{.data = x, .dtype = DType::f32, .rows = 2, .cols = 1, .ld = 2};
  EXPECT_THROW(scale_by(stream, strided, &factor), std::logic_error);
  EXPECT_THROW(scale_by(stream, {.data = x, .dtype = DType::f32, .rows = 1, .cols = 4, .ld = 4}, nullptr),
               std::logic_error);
}

}  // namespace
}  // namespace octet::ops::elementwise_test
