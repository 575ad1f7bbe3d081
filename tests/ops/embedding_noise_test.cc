#include "octet/ops/embedding_noise.h"

#include "ops/tensor.h"

namespace octet::ops::embedding_noise_test {
namespace {

std::vector<std::uint64_t> names_of(std::int64_t tokens) {
  std::vector<std::uint64_t> names;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto bits = philox(3, RandomUse::data, static_cast<std::uint64_t>(t));
    names.push_back(std::uint64_t{bits[0]} << 32 | bits[1]);
  }
  return names;
}

TEST(EmbeddingNoise, IsBoundedByTheLengthOfTheDocument) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t cols : {1, 7, 515}) {
      const std::vector<std::int32_t> begins = {0, 2, 9, 10};
      const auto names = names_of(10);
      const Tensor before = Tensor::random(dtype, 10, cols, 4);
      Tensor x = before;
      CpuStream stream;
      embedding_noise(stream, {.x = x.matrix(),
                               .names = names.data(),
                               .cu_seqlens = begins.data(),
                               .documents = 3,
                               .alpha = 5.0f});
      for (std::int64_t r = 0; r < 10; ++r) {
        const double length = r < 2 ? 2 : r < 9 ? 7 : 1;
        const double most = 5 / std::sqrt(length * static_cast<double>(cols));
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto bits =
              philox_rounds<7>(static_cast<std::uint32_t>(names[static_cast<std::size_t>(r)]),
                               static_cast<std::uint32_t>(names[static_cast<std::size_t>(r)] >> 32),
                               static_cast<std::uint32_t>(c / 4), 7, 0, 0);
          const double u = 2 * static_cast<double>(uniform(bits[static_cast<std::size_t>(c % 4)])) - 1;
          const double want = before.at(r, c) + most * u;
          ASSERT_NEAR(x.at(r, c), want, std::abs(want) * x.rounding() + 1e-6) << r << " " << c;
        }
      }
      EXPECT_TRUE(x.margin_untouched());
    }
  }
}

TEST(EmbeddingNoise, FollowsTheNameOfTheTokenAndHasNoMean) {
  constexpr std::int64_t cols = 20000;
  const std::uint64_t names[] = {17, 99, 17};
  const std::int32_t begins[] = {0, 1, 2, 3};
  Tensor x = Tensor::zeros(DType::f32, 3, cols);
  CpuStream stream;
  embedding_noise(stream, {.x = x.matrix(),
                           .names = names,
                           .cu_seqlens = begins,
                           .documents = 3,
                           .alpha = std::sqrt(static_cast<float>(cols))});
  double mean = 0, square = 0;
  std::int64_t equal = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    ASSERT_EQ(x.at(0, c), x.at(2, c));
    equal += x.at(0, c) == x.at(1, c) ? 1 : 0;
    mean += x.at(0, c) / cols, square += x.at(0, c) * x.at(0, c) / cols;
  }
  EXPECT_LT(equal, 5);
  EXPECT_NEAR(mean, 0, 0.02);
  EXPECT_NEAR(square, 1.0 / 3, 0.01);
}

}  // namespace
}  // namespace octet::ops::embedding_noise_test
