#include "cuda/gemm/gemm_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

constexpr int kBlock = 256;

unsigned blocks(std::int64_t items) {
  const std::int64_t wanted = (items + kBlock - 1) / kBlock;
  return static_cast<unsigned>(wanted < 65536 ? wanted : 65536);
}

__global__ void gather_kernel(GemmScalars* to, const float* a, const float* b, bool accumulate) {
  const float x = a != nullptr ? *a : 1.0f, y = b != nullptr ? *b : 1.0f;
  to->a_scale = x;
  to->b_scale = y;
  to->factors[0] = x * y;
  to->factors[1] = accumulate ? 1.0f : 0.0f;
}

__device__ void convert(std::uint8_t from, DType type, float scale, __nv_bfloat16& to) {
  const auto format = type == DType::e4m3 ? __NV_E4M3 : __NV_E5M2;
  to = __float2bfloat16_rn(__half2float(__half(__nv_cvt_fp8_to_halfraw(from, format))) * scale);
}
__device__ void convert(std::uint8_t from, DType, float /*scale*/, std::uint8_t& to) {
  to = from;
}

template <typename To>
__global__ void __launch_bounds__(kBlock) widen_kernel(const Widening args) {
  const auto* from = static_cast<const std::uint8_t*>(args.from);
  auto* to = static_cast<To*>(args.to);
  const std::int64_t count = args.rows * args.to_ld, step = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / args.to_ld, column = i % args.to_ld;
    float scale = 1.0f;
    if (args.scales != nullptr && column < args.cols) {
      scale = args.scales[scale_index(args.scaling, args.scale_rows, args.ld, args.first_row + row,
                                      args.first_col + column)];
    }
    // A code of zero bits is zero in every format.
    convert(column < args.cols ? from[row * args.ld + column] : std::uint8_t{0}, args.from_type, scale,
            to[i]);
  }
}

__global__ void __launch_bounds__(kBlock)
    round_kernel(const float* from, __nv_bfloat16* to, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += step) {
    to[i] = __float2bfloat16_rn(from[i]);
  }
}

__device__ float number(float x) {
  return x;
}
__device__ float number(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ void put(float& to, float x) {
  to = x;
}
__device__ void put(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}

template <typename T>
__global__ void __launch_bounds__(kBlock) bias_kernel(const Matrix d, const float* bias, bool clear) {
  auto* to = static_cast<T*>(d.data);
  const std::int64_t count = d.rows * d.cols, step = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += step) {
    T& element = to[i / d.cols * d.ld + i % d.cols];
    const float before = clear ? 0.0f : number(element);
    put(element, before + (bias != nullptr ? bias[i % d.cols] : 0.0f));
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlock) scale_kernel(const GemmScaling args) {
  const std::int64_t cols = args.d.cols, count = args.d.rows * cols;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / cols, col = i % cols, at = row * args.d.ld + col;
    T& element = static_cast<T*>(args.d.data)[at];
    float x = number(element) * args.row_scales[row] * args.col_scales[col];
    if (args.bias != nullptr) x += args.bias[col];
    if (args.addend != nullptr) x += number(static_cast<const T*>(args.addend)[at]);
    put(element, x);
  }
}

}  // namespace

void gather_scalars(cudaStream_t stream, GemmScalars* to, const float* a, const float* b, bool accumulate) {
  gather_kernel<<<1, 1, 0, stream>>>(to, a, b, accumulate);
  octet::cuda::check_launch("gemm");
}

void widen(cudaStream_t stream, const Widening& args) {
  const unsigned grid = blocks(args.rows * args.to_ld);
  if (args.decode) {
    widen_kernel<__nv_bfloat16><<<grid, kBlock, 0, stream>>>(args);
  } else {
    widen_kernel<std::uint8_t><<<grid, kBlock, 0, stream>>>(args);
  }
  octet::cuda::check_launch("gemm");
}

void round_bias(cudaStream_t stream, const float* from, void* to, std::int64_t count) {
  round_kernel<<<blocks(count), kBlock, 0, stream>>>(from, static_cast<__nv_bfloat16*>(to), count);
  octet::cuda::check_launch("gemm");
}

void add_bias(cudaStream_t stream, const Matrix& d, const float* bias, bool clear) {
  const unsigned grid = blocks(d.rows * d.cols);
  if (d.dtype == DType::f32) {
    bias_kernel<float><<<grid, kBlock, 0, stream>>>(d, bias, clear);
  } else {
    bias_kernel<__nv_bfloat16><<<grid, kBlock, 0, stream>>>(d, bias, clear);
  }
  octet::cuda::check_launch("gemm");
}

void scale_gemm(cudaStream_t stream, const GemmScaling& args) {
  const unsigned grid = blocks(args.d.rows * args.d.cols);
  if (args.d.dtype == DType::f32) {
    scale_kernel<float><<<grid, kBlock, 0, stream>>>(args);
  } else {
    scale_kernel<__nv_bfloat16><<<grid, kBlock, 0, stream>>>(args);
  }
  octet::cuda::check_launch("gemm");
}

}  // namespace octet::ops::cuda
