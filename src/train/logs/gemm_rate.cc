#include "logs/gemm_rate.h"

#include <algorithm>

#include "octet/base/clock.h"
#include "octet/ops/gemm.h"

namespace octet::train {

double gemm_rate(Device& device, DType dtype, GemmShape shape) {
  shape.rows = std::clamp<std::int64_t>(shape.rows, 1, 256);
  shape.cols = std::clamp<std::int64_t>(shape.cols, 1, 1024);
  shape.inner = std::clamp<std::int64_t>(shape.inner, 1, 1024);
  Arena arena(device);
  const std::unique_ptr<Stream> stream = device.make_stream({.name = "gemm rate"});
  const auto zeros = [&](std::int64_t rows, std::int64_t cols, DType type) {
    const auto bytes = static_cast<std::size_t>(rows * cols) * size_of(type);
    void* data = arena.reserve("gemm rate", bytes);
    device.zero(*stream, data, bytes);
    return data;
  };
  ops::GemmArgs args{.a = {.data = zeros(shape.rows, shape.inner, dtype),
                           .dtype = dtype,
                           .rows = shape.rows,
                           .cols = shape.inner},
                     .b = {.data = zeros(shape.cols, shape.inner, dtype),
                           .dtype = dtype,
                           .rows = shape.cols,
                           .cols = shape.inner},
                     .d = {.data = zeros(shape.rows, shape.cols, DType::f32),
                           .dtype = DType::f32,
                           .rows = shape.rows,
                           .cols = shape.cols,
                           .ld = shape.cols}};
  args.workspace.bytes = ops::gemm_workspace(device, args);
  args.workspace.data = arena.reserve("gemm rate", args.workspace.bytes);
  double best = 0;
  for (int round = 0; round < 4; ++round) {  // the first round includes starting threads
    const auto begin = Clock::now();
    ops::gemm(*stream, args);
    stream->synchronize();
    const double passed = seconds_since(begin);
    const double flops =
        2.0 * static_cast<double>(shape.rows * shape.cols) * static_cast<double>(shape.inner);
    if (passed > 0) best = std::max(best, flops / passed);
  }
  return best;
}

}  // namespace octet::train
