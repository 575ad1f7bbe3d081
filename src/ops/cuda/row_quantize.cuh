// E4M3 copies with a scale per row (Scaling::whole_rows). The block that computes the values of a row also
// computes its scale.
#pragma once

#include "block_scale.h"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {

/// The destination of the copy of a [rows, cols] matrix.
struct RowCopy {
  std::uint8_t* codes = nullptr;  ///< [rows, cols], dense
  float* scale_inv = nullptr;     ///< [rows]
  std::int64_t rows = 0, cols = 0;
  bool vector = false;  ///< packs of the copy are aligned to 8 bytes
};
inline RowCopy row_copy(std::uint8_t* codes, float* scale_inv, std::int64_t rows, std::int64_t cols) {
  return {.codes = codes,
          .scale_inv = scale_inv,
          .rows = rows,
          .cols = cols,
          .vector = cols % kPack == 0 && reinterpret_cast<std::uintptr_t>(codes) % kPack == 0};
}

/// Writes the first `n` elements of a pack, multiplied by `scale`.
__device__ inline void write_codes(const RowCopy& to, const float (&y)[kPack], float scale, std::int64_t row,
                                   std::int64_t col, int n) {
  std::uint8_t* at = to.codes + row * to.cols + col;
  if (to.vector && n == kPack) {
    *reinterpret_cast<uint2*>(at) = to_fp8_pack(y, scale, true);
  } else {
    for (int i = 0; i < n; ++i) at[i] = to_fp8_device(y[i] * scale, true);
  }
}

inline constexpr int kRowThreads = 512;

/// Packs that a thread keeps in registers: all packs for rows of up to 16,384 values.
inline constexpr int kKeptPacks = 4;

/// Block (row). values(row, col, at, y) computes a rounded pack of the row. It is called once for packs in
/// registers, and twice for later packs: first for the scale, then for the codes. `vector`: whole packs of
/// its inputs are aligned to 16 bytes.
template <typename Values>
__global__ void __launch_bounds__(kRowThreads) row_quantize_kernel(Values values, RowCopy to, bool vector) {
  __shared__ unsigned shared[kWarp];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(blockDim.x) * kPack;
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * kPack;
  float kept[kKeptPacks][kPack];
  const auto each_kept = [&](auto&& act) {
#pragma unroll
    for (int k = 0; k < kKeptPacks; ++k) {
      const std::int64_t col = first + k * stride;
      if (col < to.cols) act(col, pack_at(col, to.cols, vector), kept[k]);
    }
  };
  const auto each_other = [&](auto&& act) {
    for (std::int64_t col = first + kKeptPacks * stride; col < to.cols; col += stride) {
      const PackAt at = pack_at(col, to.cols, vector);
      float y[kPack];
      values(row, col, at, y);
      act(col, at.n, y);
    }
  };
  unsigned most = 0;
  each_kept([&](std::int64_t col, const PackAt& at, float(&y)[kPack]) { values(row, col, at, y); });
  each_kept([&](std::int64_t, const PackAt& at, const float(&y)[kPack]) { raise_most(y, at.n, most); });
  each_other([&](std::int64_t, int n, const float(&y)[kPack]) { raise_most(y, n, most); });
  const std::int32_t e = block_exponent(block_reduce(most, shared, Max{}));
  if (threadIdx.x == 0) to.scale_inv[row] = power_of_two(e);
  each_kept([&](std::int64_t col, const PackAt& at, const float(&y)[kPack]) {
    write_codes(to, y, power_of_two(-e), row, col, at.n);
  });
  each_other([&](std::int64_t col, int n, const float(&y)[kPack]) {
    write_codes(to, y, power_of_two(-e), row, col, n);
  });
}

template <typename Values>
void launch_rows(Stream& stream, const Values& values, const RowCopy& to, bool vector, const char* op) {
  if (to.rows == 0 || to.cols == 0) return;
  const std::int64_t packs = ceil_div(to.cols, kPack);
  const auto threads = static_cast<int>(packs < kRowThreads ? ceil_div(packs, kWarp) * kWarp : kRowThreads);
  launch_early_if(few_rows(to.rows), row_quantize_kernel<Values>, dim3(static_cast<unsigned>(to.rows)),
                  threads, 0, octet::cuda::native(stream), op, values, to, vector);
}

}  // namespace octet::ops::cuda
