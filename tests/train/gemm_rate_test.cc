// The measured GEMM rate of a device, for the expected time of a run.
#include "../src/train/start/start_notes.h"

#include <gtest/gtest.h>

#include <chrono>

namespace octet::train::gemm_rate_test {
namespace {

TEST(GemmRate, IsMeasuredInAMomentForEveryShapeAndType) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const GemmShape& shape : {GemmShape{1, 1, 1}, GemmShape{64, 256, 128},
                                   GemmShape{std::int64_t{1} << 20, std::int64_t{1} << 17, 1 << 14}}) {
      const auto begin = std::chrono::steady_clock::now();
      const double rate = gemm_rate(*device, dtype, shape);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      // The largest timed GEMM has 5.4e8 operations.
      EXPECT_GT(rate, 0);
      EXPECT_LT(passed.count(), 10) << shape.rows;
      if (shape.rows > 256) {
        EXPECT_GT(rate * passed.count(), 5.3e8);
      }
    }
  }
}

}  // namespace
}  // namespace octet::train::gemm_rate_test
