#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/dtype.h"

namespace octet::dtype_test {
namespace {

// Nearest representable value by search over all codes, ties to the even code: an independent statement of
// saturating round-to-nearest-even.
std::uint8_t nearest_by_search(float x, DType type) {
  if (std::isnan(x)) return 0x7F;
  const int max_code = type == DType::e4m3 ? 0x7E : 0x7B;
  const double target = std::min<double>(std::abs(x), fp8_max(type));
  int best = 0;
  for (int code = 0; code <= max_code; ++code) {
    const double here = std::abs(double(from_fp8(std::uint8_t(code), type)) - target);
    const double there = std::abs(double(from_fp8(std::uint8_t(best), type)) - target);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return std::uint8_t(best | (std::signbit(x) ? 0x80 : 0));
}

class Fp8 : public testing::TestWithParam<DType> {};

TEST_P(Fp8, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = from_fp8(std::uint8_t(code), GetParam());
    if (std::isnan(value)) {
      EXPECT_EQ(to_fp8(value, GetParam()) & 0x7F, 0x7F);
    } else if (std::isinf(value)) {
      EXPECT_EQ(to_fp8(value, GetParam()), (code & 0x80) | 0x7B) << "infinity saturates";
    } else {
      EXPECT_EQ(to_fp8(value, GetParam()), code);
    }
  }
}

TEST_P(Fp8, MidpointsAndNeighboursRoundToNearestEven) {
  const int max_code = GetParam() == DType::e4m3 ? 0x7E : 0x7B;
  for (int code = 0; code < max_code; ++code) {
    const float low = from_fp8(std::uint8_t(code), GetParam());
    const float high = from_fp8(std::uint8_t(code + 1), GetParam());
    const float middle = (low + high) / 2;  // exact: one more bit than the format has
    for (const float x : {middle, std::nextafter(middle, low), std::nextafter(middle, high), low, high}) {
      for (const float signed_x : {x, -x}) {
        EXPECT_EQ(to_fp8(signed_x, GetParam()), nearest_by_search(signed_x, GetParam())) << signed_x;
      }
    }
  }
  for (const float x :
       {fp8_max(GetParam()), fp8_max(GetParam()) * 1.01f, 1e30f, INFINITY, 1e-30f, 0.0f, -0.0f}) {
    EXPECT_EQ(to_fp8(x, GetParam()), nearest_by_search(x, GetParam())) << x;
  }
}

TEST_P(Fp8, EveryNaNBecomesTheOneOfCudaFp8WithoutItsSign) {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0xFFFFFFFFu}) {
    EXPECT_EQ(to_fp8(std::bit_cast<float>(bits), GetParam()), 0x7F) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8, testing::Values(DType::e4m3, DType::e5m2));

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecials) {
  EXPECT_EQ(to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(to_bf16(INFINITY), 0x7F80);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(NAN))));
  EXPECT_EQ(to_bf16(3.4e38f), 0x7F80) << "rounds up to infinity";
}

TEST(F16, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 65536; ++code) {
    const float value = from_f16(std::uint16_t(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(to_f16(value), code);
  }
  EXPECT_EQ(to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(to_f16(0x1p-25f), 0) << "tie to even";
  EXPECT_EQ(to_f16(0x1.8p-25f), 1);
}

}  // namespace
}  // namespace octet::dtype_test
