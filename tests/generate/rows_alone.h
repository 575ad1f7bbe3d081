// Whether GEMMs of this processor give a row the same bits with any other rows in the batch. The library
// chooses kernels by shape. On some processors a single row is summed in another order than several rows.
// Then answers of different batches are equal except for rounding.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/device/device.h"
#include "octet/ops/gemm.h"

namespace octet::generate {

inline bool row_is_alone(Device& device, DType dtype, std::int64_t in, std::int64_t out) {
  constexpr std::int64_t most = 16;
  const std::size_t element = size_of(dtype);
  std::vector<std::byte> x(static_cast<std::size_t>(most * in) * element),
      w(static_cast<std::size_t>(out * in) * element);
  const auto fill = [&](std::vector<std::byte>& values) {
    for (std::size_t i = 0; i < values.size() / element; ++i) {
      const float value = std::sin(static_cast<float>(i % 997) * 0.37f);
      const std::uint16_t narrow = to_bf16(value);
      std::memcpy(values.data() + i * element, element == 4 ? static_cast<const void*>(&value) : &narrow,
                  element);
    }
  };
  fill(x), fill(w);
  const auto stream = device.make_stream({.name = "rows"});
  std::vector<float> alone(static_cast<std::size_t>(out));
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{7}, most}) {
    std::vector<float> d(static_cast<std::size_t>(rows * out));
    ops::GemmArgs args{.a = {.data = x.data(), .dtype = dtype, .rows = rows, .cols = in},
                       .b = {.data = w.data(), .dtype = dtype, .rows = out, .cols = in},
                       .d = {.data = d.data(), .dtype = DType::f32, .rows = rows, .cols = out, .ld = out}};
    std::vector<std::byte> scratch(ops::gemm_workspace(device, args));
    args.workspace = {scratch.data(), scratch.size()};
    ops::gemm(*stream, args);
    stream->synchronize();
    if (rows == 1) {
      alone = d;
    } else if (std::memcmp(alone.data(), d.data(), alone.size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

/// Checks the sizes of the test models.
inline bool rows_are_alone(Device& device) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {64, 64}, {64, 128}, {64, 50}, {128, 64}, {96, 64}, {32, 64}}) {
      if (!row_is_alone(device, dtype, in, out)) return false;
    }
  }
  return true;
}

/// Compares log-probabilities of answers from different batches. They have the same bits if rows are
/// independent. Otherwise they differ by rounding, which E4M3 may enlarge to one step of its values.
inline void expect_logprobs(const std::vector<double>& got, const std::vector<double>& want, bool alone,
                            DType compute, bool fp8, const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  if (alone) {
    EXPECT_EQ(got, want) << where;
    return;
  }
  const double bound = fp8 ? 0.15 : compute == DType::bf16 ? 0.05 : 2e-5;
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], bound) << where << ", token " << i;
}

}  // namespace octet::generate
