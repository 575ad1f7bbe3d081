#include "octet/ops/dropout.h"

#include "ops/tensor.h"

namespace octet::ops::dropout_test {
namespace {

std::vector<std::uint64_t> names_of(std::int64_t tokens, std::uint64_t seed = 1) {
  std::vector<std::uint64_t> names;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto bits = philox(seed, RandomUse::data, static_cast<std::uint64_t>(t));
    names.push_back(std::uint64_t{bits[0]} << 32 | bits[1]);
  }
  return names;
}

// The contract's result, computed from the random generator.
TEST(Dropout, DropsByTheNumberOfNameKeyAndElement) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {1, 7, 64, 515, 1030}) {
      const Tensor x = Tensor::random(dtype, 5, cols, 3);
      const auto names = names_of(5);
      constexpr std::uint64_t key = 0x123456789ABCDEFull;
      Tensor out(dtype, 5, cols), sum = Tensor::random(dtype, 5, cols, 4);
      const Tensor before = sum;
      CpuStream stream;
      DropoutArgs args{.x = x.matrix(), .names = names.data(), .key = key, .rate = 0.3f, .out = out.matrix()};
      dropout(stream, args);
      args.out = sum.matrix();
      args.accumulate = true;
      dropout(stream, args);
      for (std::int64_t r = 0; r < 5; ++r) {
        const std::uint64_t name = names[static_cast<std::size_t>(r)];
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto bits =
              philox_rounds<7>(static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32),
                               static_cast<std::uint32_t>(c / 4), 4, static_cast<std::uint32_t>(key),
                               static_cast<std::uint32_t>(key >> 32));
          const bool kept = bits[static_cast<std::size_t>(c % 4)] >= 0.3f * 0x1p32;
          const double want = kept ? x.at(r, c) / 0.7 : 0.0;
          ASSERT_NEAR(out.at(r, c), want, std::abs(want) * out.rounding()) << r << " " << c;
          ASSERT_TRUE(kept || out.at(r, c) == 0.0);
          const double added = before.at(r, c) + want;
          ASSERT_NEAR(sum.at(r, c), added, (std::abs(added) + std::abs(want) * 1e-6) * out.rounding() + 1e-7);
        }
      }
      EXPECT_TRUE(out.margin_untouched() && sum.margin_untouched());
    }
  }
}

TEST(Dropout, LosesItsShareAndKeepsTheMean) {
  constexpr std::int64_t rows = 300, cols = 1000;
  Tensor x(DType::f32, rows, cols), out(DType::f32, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) x.set(r, c, 1);
  }
  const auto names = names_of(rows);
  CpuStream stream;
  for (const float rate : {0.0f, 0.05f, 0.5f, 0.9f}) {
    dropout(stream, {.x = x.matrix(), .names = names.data(), .key = 5, .rate = rate, .out = out.matrix()});
    double sum = 0, dropped = 0, apart = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        sum += out.at(r, c), dropped += out.at(r, c) == 0;
        apart += r > 0 && (out.at(r, c) == 0) != (out.at(r - 1, c) == 0);
      }
    }
    const double count = rows * cols, p = static_cast<double>(rate);
    EXPECT_NEAR(dropped / count, p, 5 * std::sqrt(p * (1 - p) / count) + 1e-12);
    EXPECT_NEAR(sum / count, 1, 5 * std::sqrt(p / (1 - p) / count) + 1e-6);
    // Different tokens drop different elements.
    EXPECT_NEAR(apart / (count - cols), 2 * p * (1 - p), 0.01);
  }
}

TEST(Dropout, NoiseFollowsTheTokenAndTheModule) {
  const Tensor x = Tensor::random(DType::f32, 6, 40, 8);
  const auto names = names_of(6);
  CpuStream stream;
  const auto run = [&](std::uint64_t key, const std::vector<std::uint64_t>& of) {
    Tensor out(DType::f32, 6, 40);
    dropout(stream, {.x = x.matrix(), .names = of.data(), .key = key, .rate = 0.5f, .out = out.matrix()});
    return out;
  };
  const Tensor one = run(1, names);
  EXPECT_TRUE(run(1, names) == one);
  EXPECT_FALSE(run(2, names) == one);
  EXPECT_FALSE(run(1, names_of(6, 2)) == one);
  Tensor alias = x;
  dropout(stream,
          {.x = alias.matrix(), .names = names.data(), .key = 1, .rate = 0.5f, .out = alias.matrix()});
  EXPECT_TRUE(alias == one) << "in place";
  EXPECT_THROW(dropout(stream, {.x = x.matrix(), .names = names.data(), .rate = 1.0f, .out = alias.matrix()}),
               std::logic_error);
}

}  // namespace
}  // namespace octet::ops::dropout_test
