// Shared code of tests of row-wise ops: f32 or bf16 matrices with a margin that must stay unchanged, read as
// doubles, and a CPU device with its stream.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "octet/base/random.h"
#include "octet/device/cpu.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// A matrix [rows, cols] with three unused columns, in host memory.
class Tensor {
 public:
  /// `gap`: elements between two rows. With 0, kernels can load whole packs.
  Tensor(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap = 3)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        ld_(cols + gap),
        bytes_(static_cast<std::size_t>(rows * ld_) * size_of(dtype), std::byte{0x5A}) {}

  static Tensor random(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                       double scale = 1, std::int64_t gap = 3) {
    Tensor t(dtype, rows, cols, gap);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const double x = normal(seed, RandomUse::data, static_cast<std::uint64_t>(r * cols + c));
        t.set(r, c, scale * x);
      }
    }
    return t;
  }
  /// Returns values with magnitudes that differ between places by up to 2^40, like outliers.
  static Tensor uneven(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    Tensor t = random(dtype, rows, cols, seed);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        t.set(r, c, std::ldexp(t.at(r, c), static_cast<int>((r / 3 * 7 + c / 50 * 11) % 40) - 20));
      }
    }
    return t;
  }
  static Tensor zeros(DType dtype, std::int64_t rows, std::int64_t cols) {
    Tensor t(dtype, rows, cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) t.set(r, c, 0);
    }
    return t;
  }

  double at(std::int64_t r, std::int64_t c) const {
    if (dtype_ == DType::bf16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &bytes_[index(r, c) * 2], 2);
      return static_cast<double>(from_bf16(bits));
    }
    float x = 0;
    std::memcpy(&x, &bytes_[index(r, c) * 4], 4);
    return static_cast<double>(x);
  }
  void set(std::int64_t r, std::int64_t c, double value) {
    const auto x = static_cast<float>(value);
    const std::uint16_t bits = to_bf16(x);
    if (dtype_ == DType::bf16) {
      std::memcpy(&bytes_[index(r, c) * 2], &bits, 2);
    } else {
      std::memcpy(&bytes_[index(r, c) * 4], &x, 4);
    }
  }
  /// Returns a float rounded to the tensor's dtype.
  double kept(float x) const {
    return dtype_ == DType::bf16 ? static_cast<double>(from_bf16(to_bf16(x))) : static_cast<double>(x);
  }
  /// Largest relative error of one rounding. bf16: half a unit of 8 bits, with a margin for double rounding
  /// from fp32. f32: eight units of 24 bits, with room for errors of the computation.
  double rounding() const { return dtype_ == DType::bf16 ? 0x1.01p-8 : 0x1p-21; }

  Matrix matrix() { return {bytes_.data(), dtype_, rows_, cols_, ld_}; }
  ConstMatrix matrix() const { return {bytes_.data(), dtype_, rows_, cols_, ld_}; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  bool margin_untouched() const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::size_t b = index(r, cols_) * size_of(dtype_); b < index(r + 1, 0) * size_of(dtype_); ++b) {
        if (bytes_[b] != std::byte{0x5A}) return false;
      }
    }
    return true;
  }
  bool operator==(const Tensor& other) const { return bytes_ == other.bytes_; }

 private:
  std::size_t index(std::int64_t r, std::int64_t c) const { return static_cast<std::size_t>(r * ld_ + c); }

  DType dtype_;
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t ld_;
  std::vector<std::byte> bytes_;
};

inline std::vector<float> random_floats(std::int64_t count, std::uint64_t seed, double scale = 1) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(scale * static_cast<double>(normal(seed, RandomUse::data, i, 1)));
  }
  return x;
}

/// A stream that completes work before the call returns, with `threads` threads per op.
class CpuStream {
 public:
  explicit CpuStream(int threads = 2) : device_(make_cpu_device({.threads = threads})) {
    octet::cpu::set_op_threads(threads);
    stream_ = device_->make_stream({.name = "test"});
  }
  operator Stream&() { return *stream_; }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

/// Returns the expected counts of a matrix's casts: its values times scale(r, c), each cast to `format`.
template <typename At, typename ScaleAt>
Fp8Seen seen_of(std::int64_t rows, std::int64_t cols, DType format, const At& at, const ScaleAt& scale) {
  Fp8Seen want{};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto value = static_cast<float>(at(r, c));
      const float scaled = value * scale(r, c);
      if (std::isnan(value) || std::abs(value) > want.amax) want.amax = std::abs(value);
      ++want.values;
      const double size = std::abs(static_cast<double>(scaled));
      want.saturated += format == DType::e4m3 ? size > 464 : size >= 61440;
      want.lost += value != 0 && from_fp8(to_fp8(scaled, format), format) == 0.0f ? 1 : 0;
    }
  }
  return want;
}
inline void expect_seen(const Fp8Seen& found, const Fp8Seen& want) {
  EXPECT_TRUE(found.amax == want.amax || (std::isnan(found.amax) && std::isnan(want.amax)))
      << found.amax << " for " << want.amax;
  EXPECT_EQ(found.scale, want.scale);
  EXPECT_EQ(found.values, want.values);
  EXPECT_EQ(found.saturated, want.saturated);
  EXPECT_EQ(found.lost, want.lost);
}

/// An FP8 copy requested from an op. Its expected bits are octet::to_fp8 of the op's output.
struct Fp8Copy {
  Fp8Copy(DType f, std::int64_t rows, std::int64_t cols)
      : format(f),
        row(static_cast<std::size_t>(rows * cols), 0xEE),
        transposed(static_cast<std::size_t>(rows * cols), 0xEE) {}
  QuantizeInto into() { return {format, row.data(), transposed.data(), &scale, &amax, &seen}; }

  void expect_copy_of(const Tensor& y) const {
    double most = 0;
    for (std::int64_t r = 0; r < y.rows(); ++r) {
      for (std::int64_t c = 0; c < y.cols(); ++c) {
        const auto value = static_cast<float>(y.at(r, c));
        const std::uint8_t code = to_fp8(value * scale, format);
        ASSERT_EQ(row[static_cast<std::size_t>(r * y.cols() + c)], code) << r << " " << c;
        ASSERT_EQ(transposed[static_cast<std::size_t>(c * y.rows() + r)], code) << r << " " << c;
        most = std::max(most, std::abs(y.at(r, c)));
      }
    }
    EXPECT_EQ(static_cast<double>(amax), most);
    Fp8Seen want = seen_of(
        y.rows(), y.cols(), format, [&](auto r, auto c) { return y.at(r, c); },
        [&](auto, auto) { return scale; });
    want.scale = want.values > 0 ? scale : 0;
    expect_seen(seen, want);
  }

  DType format;
  std::vector<std::uint8_t> row;
  std::vector<std::uint8_t> transposed;
  float scale = 13.7f;
  float amax = 0;
  Fp8Seen seen{};
};

inline constexpr std::int64_t kRows[] = {0, 1, 127, 129};
inline constexpr std::int64_t kHiddenSizes[] = {1, 7, 64, 80, 257, 768, 1300};
inline constexpr DType kComputeTypes[] = {DType::f32, DType::bf16};

}  // namespace octet::ops
