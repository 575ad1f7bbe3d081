#include "layers/buffers.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::model {
namespace {

/// Buffers inside a region have the alignment of reservations.
constexpr std::size_t kBufferAlignment = 256;

/// FP8 GEMMs read whole multiples of 16 tokens.
std::int64_t fp8_rows(std::int64_t rows) {
  return (rows + 15) / 16 * 16;
}

}  // namespace

std::size_t bytes_of(std::int64_t rows, std::int64_t cols, DType dtype) {
  std::size_t bytes = 0;
  const bool overflow =
      __builtin_mul_overflow(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), &bytes) ||
      __builtin_mul_overflow(bytes, size_of(dtype), &bytes);
  if (overflow) {
    throw Error({.what = "an activation is too large for the address space",
                 .found = std::to_string(rows) + " x " + std::to_string(cols) + " elements",
                 .fix = "use smaller micro-batches"});
  }
  return bytes;
}

bool BlockBuffers::own(Kept kept) const {
  if (!options_.training || !kept_ || kept == Kept::never) return false;
  if (kept == Kept::stream) return true;
  if (options_.recompute == Recompute::full) return false;
  return kept == Kept::activations || options_.recompute != Recompute::qkv;
}

void BlockBuffers::reserve(int first, int last, const std::function<void(int)>& reserve) {
  for (const bool learning : {true, false}) {
    learning_ = learning;
    for (int block = first; block < last; ++block) {
      for (auto& [name, region] : regions_) region.used = 0;
      reserve(block);
    }
    if (!learning) return;
    for (auto& [name, region] : regions_) {
      region.data = static_cast<std::byte*>(arena_.reserve(name, region.largest));
    }
  }
}

void* BlockBuffers::take(const char* name, std::size_t bytes, Kept kept) {
  if (own(kept)) return learning_ ? nullptr : arena_.reserve(name, bytes);
  Region& region = regions_[name];
  const std::size_t begin = region.used;
  region.used += (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  region.largest = std::max(region.largest, region.used);
  return learning_ ? nullptr : region.data + begin;
}

ops::Matrix BlockBuffers::matrix(const char* name, std::int64_t cols, Kept kept) {
  return rows(name, options_.max_tokens, cols, kept);
}

ops::Matrix BlockBuffers::rows(const char* name, std::int64_t rows, std::int64_t cols, Kept kept) {
  return {.data = take(name, bytes_of(rows, cols, dtype_), kept),
          .dtype = dtype_,
          .rows = rows,
          .cols = cols,
          .ld = cols};
}

float* BlockBuffers::floats(const char* name, std::int64_t cols, Kept kept) {
  return static_cast<float*>(take(name, bytes_of(options_.max_tokens, cols, DType::f32), kept));
}

precision::Fp8Copy take_copy(const CopyShape& shape, const std::function<void*(std::size_t)>& take) {
  precision::Fp8Copy copy;
  const std::int64_t rows = fp8_rows(shape.rows);
  const std::size_t bytes = bytes_of(rows, shape.cols, DType::u8);
  if (shape.row) copy.row = static_cast<std::uint8_t*>(take(bytes));
  if (shape.transposed) copy.transposed = static_cast<std::uint8_t*>(take(bytes));
  if (shape.scaling == ops::Scaling::tensor) return copy;
  const auto scales = [&](std::int64_t r, std::int64_t c) {
    const auto count = static_cast<std::size_t>(ops::scale_count(shape.scaling, r, c));
    return static_cast<float*>(take(count * sizeof(float)));
  };
  if (shape.row) copy.scales = scales(rows, shape.cols);
  if (shape.transposed) copy.transposed_scales = scales(shape.cols, rows);
  return copy;
}

}  // namespace octet::model
