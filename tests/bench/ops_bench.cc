// Speed of products and attention at the shapes of a small model (hidden 256, intermediate 768, 8 query and 4
// KV heads of 32, vocabulary 4096, 4 x 256 tokens) and of longer sequences. The rate counts multiplications
// and additions; causal attention counts half the square, backward two and a half times forward. Threads: the
// last argument.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "octet/device/device.h"
#include "octet/ops/attention.h"
#include "octet/ops/gemm.h"

namespace octet::ops {
namespace {

DType dtype_of(std::int64_t argument) {
  return argument == 0 ? DType::f32 : argument == 1 ? DType::bf16 : DType::e4m3;
}

/// An array of sine values. The values do not affect the speed, but they must not be zero or subnormal.
void* waves(Arena& arena, std::int64_t count, DType dtype) {
  void* memory = arena.reserve("operand", static_cast<std::size_t>(count) * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = 2.0f + std::sin(0.37f * static_cast<float>(i));
    if (dtype == DType::f32) static_cast<float*>(memory)[i] = value;
    if (dtype == DType::bf16) static_cast<Bf16*>(memory)[i] = Bf16(value);
    if (is_fp8(dtype)) static_cast<std::uint8_t*>(memory)[i] = to_fp8(value, dtype);
  }
  return memory;
}

void rate(benchmark::State& state, double operations) {
  state.counters["FLOP/s"] = benchmark::Counter(operations, benchmark::Counter::kIsIterationInvariantRate,
                                                benchmark::Counter::kIs1000);
}

void gemm_speed(benchmark::State& state) {
  const auto gemm_kind = static_cast<GemmKind>(state.range(0));
  const std::int64_t tokens = 1024, out = state.range(1), in = state.range(2);
  const DType dtype = dtype_of(state.range(3));
  const auto device = make_cpu_device({.threads = static_cast<int>(state.range(4))});
  const auto stream = device->make_stream({.name = "compute"});
  Arena arena(*device);
  GemmArgs args;
  args.gemm_kind = gemm_kind;
  const auto operand = [&](std::int64_t rows, std::int64_t cols) {
    return Operand{.data = waves(arena, rows * cols, dtype), .dtype = dtype, .rows = rows, .cols = cols};
  };
  args.a = operand(tokens, gemm_kind == GemmKind::forward ? in : out);
  args.b = operand(gemm_kind == GemmKind::wgrad ? tokens : out, in);
  args.accumulate = gemm_kind == GemmKind::wgrad;
  args.d.rows = gemm_kind == GemmKind::wgrad ? out : tokens;
  args.d.cols = args.d.ld = gemm_kind == GemmKind::forward ? out : in;
  args.d.dtype = gemm_kind == GemmKind::wgrad || dtype == DType::f32 ? DType::f32 : DType::bf16;
  args.d.data = arena.reserve("d", static_cast<std::size_t>(args.d.rows * args.d.cols) * 4);
  args.workspace.bytes = gemm_workspace(*device, args);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  for (auto _ : state) gemm(*stream, args);
  stream->synchronize();
  rate(state, 2.0 * static_cast<double>(tokens) * static_cast<double>(out) * static_cast<double>(in));
}

void gemm_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"product", "out", "in", "dtype", "threads"});
  constexpr std::int64_t shapes[][2] = {{512, 256}, {256, 256}, {1536, 256}, {256, 768}, {4096, 256}};
  for (const std::int64_t dtype : {0, 1, 2}) {
    for (const auto& shape : shapes) {
      for (const std::int64_t gemm_kind : {0, 1, 2}) {
        for (const std::int64_t threads : {1, 2}) {
          bench->Args({gemm_kind, shape[0], shape[1], dtype, threads});
        }
      }
    }
  }
}
BENCHMARK(gemm_speed)->Apply(gemm_shapes)->UseRealTime();

void attention_speed(benchmark::State& state) {
  const std::int64_t documents = state.range(0), length = state.range(1), tokens = documents * length;
  const Heads heads{8, 4, state.range(2)};
  const DType dtype = dtype_of(state.range(3));
  const bool backward = state.range(5) != 0;
  const auto device = make_cpu_device({.threads = static_cast<int>(state.range(4))});
  const auto stream = device->make_stream({.name = "compute"});
  Arena arena(*device);
  const std::int64_t width = heads.q_heads * heads.head_dim;
  const auto matrix = [&](std::int64_t cols) {
    return Matrix{waves(arena, tokens * cols, dtype), dtype, tokens, cols, cols};
  };
  std::vector<std::int32_t> starts;
  for (std::int64_t d = 0; d <= documents; ++d) starts.push_back(static_cast<std::int32_t>(d * length));
  AttentionArgs args;
  args.qkv = matrix(heads.qkv_width());
  args.heads = heads;
  args.documents = {.cu_seqlens = starts.data(), .count = documents, .max_length = length, .tokens = tokens};
  args.scale = 1.0f / std::sqrt(static_cast<float>(heads.head_dim));
  args.out = matrix(width);
  args.lse = arena.reserve_as<float>("lse", static_cast<std::size_t>(heads.q_heads * tokens));
  args.workspace.bytes = attention_workspace(*device, heads, dtype, tokens, length);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  attention(*stream, args);
  AttentionBackwardArgs back;
  back.qkv = args.qkv;
  back.out = args.out;
  back.d_out = matrix(width);
  back.lse = args.lse;
  back.heads = heads;
  back.documents = args.documents;
  back.scale = args.scale;
  back.d_qkv = matrix(heads.qkv_width());
  back.workspace = args.workspace;
  for (auto _ : state) {
    if (backward) {
      attention_backward(*stream, back);
    } else {
      attention(*stream, args);
    }
  }
  stream->synchronize();
  rate(state, (backward ? 5.0 : 2.0) * static_cast<double>(tokens * length * width));
}

void attention_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"documents", "length", "head_dim", "dtype", "threads", "backward"});
  constexpr std::int64_t shapes[][3] = {{4, 256, 32}, {1, 1024, 64}, {1, 2048, 128}};
  for (const std::int64_t dtype : {0, 1}) {
    for (const auto& shape : shapes) {
      for (const std::int64_t backward : {0, 1}) {
        for (const std::int64_t threads : {1, 2}) {
          bench->Args({shape[0], shape[1], shape[2], dtype, threads, backward});
        }
      }
    }
  }
}
BENCHMARK(attention_speed)->Apply(attention_shapes)->UseRealTime();

}  // namespace
}  // namespace octet::ops
