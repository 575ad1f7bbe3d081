#include "octet/ops/dora.h"

#include "octet/base/dtype.h"
#include "ops/tensor.h"

namespace octet::ops::dora_test {
namespace {

/// A dense weight in any format, and its values.
struct StoredWeight {
  StoredWeight(DType format, std::int64_t out, std::int64_t in) : dtype(format), rows(out), cols(in) {
    bytes.resize(static_cast<std::size_t>(rows * cols) * size_of(dtype));
    const auto source = random_floats(rows * cols, 9);
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (dtype == DType::f32) {
        std::memcpy(&bytes[4 * i], &source[i], 4);
        values.push_back(static_cast<double>(source[i]));
      } else if (dtype == DType::bf16) {
        const std::uint16_t code = to_bf16(source[i]);
        std::memcpy(&bytes[2 * i], &code, 2);
        values.push_back(static_cast<double>(from_bf16(code)));
      } else {
        const std::uint8_t code = to_fp8(source[i] * 16, dtype);
        std::memcpy(&bytes[i], &code, 1);
        values.push_back(static_cast<double>(from_fp8(code, dtype)) / 16);
      }
    }
  }
  Operand operand() const {
    return {.data = bytes.data(), .dtype = dtype, .rows = rows, .cols = cols, .scale_inv = &scale_inv};
  }
  DType dtype;
  std::int64_t rows, cols;
  std::vector<std::byte> bytes;
  std::vector<double> values;
  float scale_inv = 1.0f / 16;
};

TEST(Dora, NormsAreThoseOfTheRowsOfTheAdaptedWeight) {
  for (const DType weight : {DType::f32, DType::bf16, DType::e4m3}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const auto& [out, in, rank] : {std::array<std::int64_t, 3>{5, 33, 3}, {17, 1100, 1}, {1, 1, 1}}) {
        const StoredWeight w(weight, out, in);
        const Tensor a = Tensor::random(dtype, rank, in, 1), b = Tensor::random(dtype, out, rank, 2);
        const auto magnitude = random_floats(out, 3);
        std::vector<float> scale(magnitude.size(), -1), norm(magnitude.size(), -1);
        CpuStream stream;
        dora_scale(stream, {.weight = w.operand(),
                            .a = a.matrix(),
                            .b = b.matrix(),
                            .factor = 0.75f,
                            .magnitude = magnitude.data(),
                            .scale = scale.data(),
                            .norm = norm.data()});
        for (std::int64_t j = 0; j < out; ++j) {
          double squares = 0;
          for (std::int64_t c = 0; c < in; ++c) {
            double value = w.values[static_cast<std::size_t>(j * in + c)];
            for (std::int64_t r = 0; r < rank; ++r) value += 0.75 * b.at(j, r) * a.at(r, c);
            squares += value * value;
          }
          const auto i = static_cast<std::size_t>(j);
          EXPECT_NEAR(norm[i], std::sqrt(squares), 1e-5 * std::sqrt(squares));
          EXPECT_NEAR(scale[i], static_cast<double>(magnitude[i]) / std::sqrt(squares),
                      1e-5 * std::abs(static_cast<double>(scale[i])));
        }
      }
    }
  }
}

TEST(Dora, ARowOfZerosIsScaledToZero) {
  const std::vector<float> w(8, 0.0f), magnitude = {2.0f};
  const Tensor a = Tensor::random(DType::f32, 2, 8, 1), b = Tensor::zeros(DType::f32, 1, 2);
  float scale = -1, norm = -1;
  CpuStream stream;
  dora_scale(stream, {.weight = {.data = w.data(), .dtype = DType::f32, .rows = 1, .cols = 8},
                      .a = a.matrix(),
                      .b = b.matrix(),
                      .magnitude = magnitude.data(),
                      .scale = &scale,
                      .norm = &norm});
  EXPECT_EQ(scale, 0.0f);
  EXPECT_EQ(norm, 0.0f);
}

TEST(Dora, ColumnsAreScaledWithBiasAndAddend) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {3, 520}) {
      const Tensor x = Tensor::random(dtype, 4, cols, 1), addend = Tensor::random(dtype, 4, cols, 2);
      const auto scale = random_floats(cols, 3), bias = random_floats(cols, 4);
      for (const bool more : {false, true}) {
        Tensor out(dtype, 4, cols), alias = more ? addend : x;
        CpuStream stream;
        ScaleColumnsArgs args{.x = x.matrix(), .scale = scale.data(), .out = out.matrix()};
        if (more) args.bias = bias.data(), args.addend = addend.matrix();
        scale_columns(stream, args);
        if (more) args.addend = alias.matrix();
        if (!more) args.x = alias.matrix();
        args.out = alias.matrix();
        scale_columns(stream, args);
        EXPECT_TRUE(alias == out) << "in place";
        for (std::int64_t r = 0; r < 4; ++r) {
          for (std::int64_t c = 0; c < cols; ++c) {
            const auto i = static_cast<std::size_t>(c);
            const double terms[] = {x.at(r, c) * static_cast<double>(scale[i]),
                                    more ? static_cast<double>(bias[i]) : 0.0, more ? addend.at(r, c) : 0.0};
            const double want = terms[0] + terms[1] + terms[2];
            const double size = std::abs(terms[0]) + std::abs(terms[1]) + std::abs(terms[2]);
            ASSERT_NEAR(out.at(r, c), want, std::abs(want) * out.rounding() + size * 1e-6);
          }
        }
        EXPECT_TRUE(out.margin_untouched());
      }
    }
  }
}

TEST(Dora, GemmsOfColumnsAreAddedUp) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {130, 67}, {0, 5}}) {
      const Tensor x = Tensor::random(dtype, rows, cols, 1), y = Tensor::random(dtype, rows, cols, 2);
      auto divisor = random_floats(cols, 3);
      divisor.back() = 0.0f;
      std::vector<float> sums(static_cast<std::size_t>(cols), 1.5f);
      CpuStream stream;
      dot_columns(stream, {.x = x.matrix(), .y = y.matrix(), .divisor = divisor.data(), .sums = sums.data()});
      for (std::int64_t c = 0; c < cols; ++c) {
        double sum = 0, size = 0;
        for (std::int64_t r = 0; r < rows; ++r) {
          sum += x.at(r, c) * y.at(r, c);
          size += std::abs(x.at(r, c) * y.at(r, c));
        }
        const auto by = static_cast<double>(divisor[static_cast<std::size_t>(c)]);
        const double want = 1.5 + (by == 0 ? 0 : sum / by);
        EXPECT_NEAR(sums[static_cast<std::size_t>(c)], want,
                    1e-6 * (2 + (by == 0 ? 0 : size / std::abs(by))));
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::dora_test
