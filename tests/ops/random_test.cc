#include "octet/ops/elementwise.h"

#include "ops/tensor.h"

namespace octet::ops::random_test {
namespace {

TEST(RandomNormal, GivesTheNumbersOfTheGeneratorInAnyPieces) {
  constexpr std::int64_t kCount = 100001;  // more than one thread's work
  constexpr std::uint64_t kFirst = 5000000000;
  CpuStream stream;
  std::vector<float> whole(kCount);
  random_normal(stream,
                {.seed = 9, .first = kFirst, .deviation = 0.02f, .out = whole.data(), .count = kCount});
  for (std::int64_t i = 0; i < kCount; i += 97) {
    const float expected = 0.02f * normal(9, RandomUse::init, kFirst + static_cast<std::uint64_t>(i));
    ASSERT_EQ(whole[static_cast<std::size_t>(i)], expected) << i;
  }
  std::vector<float> piece(777, -1.0f);
  random_normal(stream,
                {.seed = 9, .first = kFirst + 333, .deviation = 0.02f, .out = piece.data(), .count = 776});
  for (std::size_t i = 0; i < 776; ++i) ASSERT_EQ(piece[i], whole[i + 333]) << i;
  EXPECT_EQ(piece[776], -1.0f);
  random_normal(stream, {.out = nullptr, .count = 0});
}

TEST(RandomNormal, MakesColumnsOfAMatrixAtOnce) {
  constexpr std::int64_t kRows = 300, kCols = 401, kBegin = 17, kWidth = 93;
  CpuStream stream;
  std::vector<float> whole(kRows * kCols), part(kRows * kWidth);
  random_normal(stream, {.seed = 5, .out = whole.data(), .count = kRows * kCols});
  // In pieces that begin and end inside of a row.
  for (std::int64_t from = 0; from < kRows * kWidth; from += 9999) {
    const std::int64_t row = from / kWidth, column = from % kWidth;
    random_normal(stream, {.seed = 5,
                           .first = static_cast<std::uint64_t>(row * kCols + kBegin + column),
                           .width = kWidth,
                           .pitch = kCols,
                           .column = column,
                           .out = part.data() + from,
                           .count = std::min<std::int64_t>(9999, kRows * kWidth - from)});
  }
  for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
    const std::int64_t at = i / kWidth * kCols + kBegin + i % kWidth;
    ASSERT_EQ(part[static_cast<std::size_t>(i)], whole[static_cast<std::size_t>(at)]) << i;
  }
}

TEST(RandomNormal, RoundsOnceToBf16) {
  CpuStream stream;
  std::vector<float> wide(1000);
  std::vector<std::uint16_t> narrow(1000);
  random_normal(stream, {.seed = 3, .deviation = 0.5f, .out = wide.data(), .count = 1000});
  random_normal(stream,
                {.seed = 3, .deviation = 0.5f, .out = narrow.data(), .dtype = DType::bf16, .count = 1000});
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(narrow[i], to_bf16(wide[i])) << i;
}

TEST(RandomNormal, HasTheMomentsAndTheTailOfANormalDistribution) {
  constexpr std::int64_t kCount = 400000;
  CpuStream stream;
  std::vector<float> x(kCount);
  random_normal(stream, {.seed = 4, .out = x.data(), .count = kCount});
  double sum = 0, squares = 0, most = 0;
  std::int64_t beyond_two = 0;
  for (const float v : x) {
    sum += v, squares += static_cast<double>(v) * v;
    most = std::max(most, std::abs(static_cast<double>(v)));
    beyond_two += std::abs(v) > 2 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kCount, 0, 4 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 4 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(static_cast<double>(beyond_two) / kCount, 0.0455, 0.0014);
  EXPECT_GT(most, 4.0);
}

}  // namespace
}  // namespace octet::ops::random_test
