// Scores of rows as losses, and their gradients.
#include "octet/ops/score_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/tensor.h"

namespace octet::ops::score_rows_test {
namespace {

TEST(ScoreRows, AreLossesWithTheOtherSign) {
  std::vector<float> scores{0.5f, -2.0f, 3.25f}, losses(3);
  const std::vector<float> factors{0.25f, -1.0f, 0.0f};
  CpuStream stream;
  const Matrix matrix{.data = scores.data(), .dtype = DType::f32, .rows = 3, .cols = 1, .ld = 1};
  score_rows(stream, {.scores = matrix, .row_loss = losses.data()});
  EXPECT_EQ(losses, (std::vector<float>{-0.5f, 2.0f, -3.25f}));
  EXPECT_EQ(scores, (std::vector<float>{0.5f, -2.0f, 3.25f}));
  score_rows(stream, {.scores = matrix, .row_factors = factors.data()});
  EXPECT_EQ(scores, (std::vector<float>{-0.25f, 1.0f, 0.0f}));
  std::vector<std::uint16_t> narrow{to_bf16(0.5f), to_bf16(-2.0f)};
  score_rows(stream, {.scores = {.data = narrow.data(), .dtype = DType::bf16, .rows = 2, .cols = 1, .ld = 1},
                      .row_loss = losses.data(),
                      .row_factors = factors.data()});
  EXPECT_EQ(losses[1], 2.0f);
  EXPECT_EQ(from_bf16(narrow[0]), -0.25f);
}

}  // namespace
}  // namespace octet::ops::score_rows_test
