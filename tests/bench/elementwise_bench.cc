// Row-wise ops on the CPU at the shapes of a tiny model: 1,024 tokens, hidden 256, intermediate 768,
// vocabulary 4,096. Bytes: each input and output once. ns/element: per element of the main input of the op.
// Arguments: dtype (0: f32, 1: bf16; convert: to f16 or bf16), threads. On a shared machine, compare the CPU
// time of one thread.
#include <benchmark/benchmark.h>

#include <vector>

#include "octet/device/cpu.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/embedding.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/optimizer.h"
#include "octet/ops/quantize.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"
#include "octet/ops/wire.h"
#include "ops/tensor.h"

namespace octet::ops {
namespace {

constexpr std::int64_t kTokens = 1024, kHidden = 256, kIntermediate = 768, kVocabulary = 4096;
constexpr std::int64_t kParameters = 4 << 20;

struct Bench {
  explicit Bench(benchmark::State& state)
      : dtype(state.range(0) == 1 ? DType::bf16 : DType::f32), stream(static_cast<int>(state.range(1))) {}
  void finish(benchmark::State& state, std::int64_t elements, double bytes_per_element) const {
    state.counters["GB/s"] = benchmark::Counter(static_cast<double>(elements) * bytes_per_element * 1e-9,
                                                benchmark::Counter::kIsIterationInvariantRate);
    state.counters["ns/element"] =
        benchmark::Counter(static_cast<double>(elements) * 1e-9,
                           benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  }
  double width() const { return static_cast<double>(size_of(dtype)); }
  DType dtype;
  CpuStream stream;
};

void rms_norm_forward(benchmark::State& state) {
  Bench b(state);
  Tensor x = Tensor::random(b.dtype, kTokens, kHidden, 1), delta = x, out = x;
  const std::vector<float> w = random_floats(kHidden, 2);
  std::vector<float> rstd(kTokens);
  for (auto _ : state) {
    rms_norm(b.stream, {.residual = x.matrix(),
                        .delta = delta.matrix(),
                        .sum = x.matrix(),
                        .weight = w.data(),
                        .out = out.matrix(),
                        .rstd = rstd.data()});
  }
  b.finish(state, kTokens * kHidden, 4 * b.width());
}

void rms_norm_with_fp8(benchmark::State& state) {
  Bench b(state);
  Tensor x = Tensor::random(b.dtype, kTokens, kHidden, 1);
  const std::vector<float> w = random_floats(kHidden, 2);
  std::vector<float> rstd(kTokens);
  Fp8Copy copy(DType::e4m3, kTokens, kHidden);
  QuantizeInto into = copy.into();
  into.transposed = nullptr;
  for (auto _ : state) {
    rms_norm(b.stream, {.residual = x.matrix(), .weight = w.data(), .rstd = rstd.data(), .quantize = into});
  }
  b.finish(state, kTokens * kHidden, b.width() + 1);
}

void rms_norm_back(benchmark::State& state) {
  Bench b(state);
  const Tensor dy = Tensor::random(b.dtype, kTokens, kHidden, 1), x = dy;
  Tensor d = Tensor::zeros(b.dtype, kTokens, kHidden);
  const std::vector<float> w = random_floats(kHidden, 2), rstd(kTokens, 1e-3f);
  std::vector<float> d_weight(kHidden);
  std::vector<std::byte> scratch(rms_norm_backward_workspace(b.stream.device(), kTokens, kHidden));
  for (auto _ : state) {
    rms_norm_backward(b.stream, {.dy = dy.matrix(),
                                 .x = x.matrix(),
                                 .rstd = rstd.data(),
                                 .weight = w.data(),
                                 .d_residual = d.matrix(),
                                 .d_weight = d_weight.data(),
                                 .workspace = {scratch.data(), scratch.size()}});
  }
  b.finish(state, kTokens * kHidden, 4 * b.width());
}

void rope_in_place(benchmark::State& state) {
  Bench b(state);
  const Heads heads{.q_heads = 4, .kv_heads = 2, .head_dim = 64};
  Tensor x = Tensor::random(b.dtype, kTokens, heads.qkv_width(), 1);
  const std::vector<float> table = random_floats(kTokens * 32, 2);
  std::vector<std::int32_t> positions(kTokens);
  for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<std::int32_t>(t);
  RopeArgs args{.qkv = x.matrix(), .heads = heads, .positions = positions.data()};
  std::vector<float> one(table.size(), 1.0f), zero(table.size(), 0.0f);
  args.cosine = one.data();
  args.sine = zero.data();
  for (auto _ : state) rope(b.stream, args);
  b.finish(state, kTokens * 6 * 64, 2 * b.width());
}

template <Activation activation>
void gated_forward(benchmark::State& state) {
  Bench b(state);
  const Tensor x = Tensor::random(b.dtype, kTokens, 2 * kIntermediate, 1);
  Tensor out(b.dtype, kTokens, kIntermediate);
  for (auto _ : state) {
    gated_activation(b.stream, {.gate_up = x.matrix(), .activation = activation, .out = out.matrix()});
  }
  b.finish(state, kTokens * kIntermediate, 3 * b.width());
}

template <Activation activation>
void gated_back(benchmark::State& state) {
  Bench b(state);
  const Tensor x = Tensor::random(b.dtype, kTokens, 2 * kIntermediate, 1);
  const Tensor dy = Tensor::random(b.dtype, kTokens, kIntermediate, 2);
  Tensor dx(b.dtype, kTokens, 2 * kIntermediate);
  for (auto _ : state) {
    gated_activation_backward(
        b.stream,
        {.gate_up = x.matrix(), .d_out = dy.matrix(), .activation = activation, .d_gate_up = dx.matrix()});
  }
  b.finish(state, kTokens * kIntermediate, 5 * b.width());
}

std::vector<std::int32_t> some_ids() {
  std::vector<std::int32_t> ids(kTokens);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const auto random = philox(1, RandomUse::data, t)[0];
    ids[t] = t % 4 == 0 ? 7 : static_cast<std::int32_t>(random % kVocabulary);
  }
  return ids;
}

void embedding_forward(benchmark::State& state) {
  Bench b(state);
  const Tensor table = Tensor::random(b.dtype, kVocabulary, kHidden, 1);
  Tensor out(b.dtype, kTokens, kHidden);
  const std::vector<std::int32_t> ids = some_ids();
  for (auto _ : state) {
    embedding(b.stream, {.ids = ids.data(), .table = table.matrix(), .scale = 2, .out = out.matrix()});
  }
  b.finish(state, kTokens * kHidden, 2 * b.width());
}

void embedding_back(benchmark::State& state) {
  Bench b(state);
  const Tensor d_out = Tensor::random(b.dtype, kTokens, kHidden, 1);
  Tensor d_table = Tensor::zeros(DType::f32, kVocabulary, kHidden);
  const std::vector<std::int32_t> ids = some_ids();
  std::vector<std::byte> scratch(embedding_backward_workspace(b.stream.device(), kTokens, kVocabulary));
  for (auto _ : state) {
    embedding_backward(b.stream, {.ids = ids.data(),
                                  .d_out = d_out.matrix(),
                                  .d_table = d_table.matrix(),
                                  .workspace = {scratch.data(), scratch.size()}});
  }
  b.finish(state, kTokens * kHidden, b.width() + 8);
}

void bias_back(benchmark::State& state) {
  Bench b(state);
  const Tensor dy = Tensor::random(b.dtype, kTokens, kIntermediate, 1);
  std::vector<float> d_bias(kIntermediate);
  for (auto _ : state) bias_backward(b.stream, dy.matrix(), d_bias.data());
  b.finish(state, kTokens * kIntermediate, b.width());
}

void cross_entropy_with_gradient(benchmark::State& state) {
  Bench b(state);
  Tensor x = Tensor::random(b.dtype, kTokens, kVocabulary, 1, 3);
  const std::vector<std::int32_t> targets = some_ids();
  std::vector<float> loss(kTokens);
  // Gradients become the next logits: harmless numbers at the same cost.
  for (auto _ : state) {
    cross_entropy(b.stream, {.logits = x.matrix(), .targets = targets.data(), .row_loss = loss.data()});
  }
  b.finish(state, kTokens * kVocabulary, 2 * b.width());
}

void quantize_with_amax(benchmark::State& state) {
  Bench b(state);
  const Tensor x = Tensor::random(b.dtype, kTokens, kIntermediate, 1);
  Fp8Copy copy(state.range(2) ? DType::e5m2 : DType::e4m3, kTokens, kIntermediate);
  QuantizeInto into = copy.into();
  into.transposed = nullptr;
  for (auto _ : state) quantize(b.stream, x.matrix(), into);
  b.finish(state, kTokens * kIntermediate, b.width() + 1);
}

void amax_alone(benchmark::State& state) {
  Bench b(state);
  const Tensor x = Tensor::random(b.dtype, kTokens, kIntermediate, 1);
  float found = 0;
  for (auto _ : state) amax(b.stream, x.matrix(), &found);
  b.finish(state, kTokens * kIntermediate, b.width());
}

void convert_from_f32(benchmark::State& state) {
  Bench b(state);
  const std::vector<float> x = random_floats(kParameters, 1);
  std::vector<std::uint16_t> to(x.size());
  const DType half = b.dtype == DType::bf16 ? DType::bf16 : DType::f16;
  for (auto _ : state) convert(b.stream, x.data(), DType::f32, to.data(), half, kParameters);
  b.finish(state, kParameters, 6);
}

void sum_of_four(benchmark::State& state) {
  Bench b(state);
  const Tensor x = Tensor::random(b.dtype, 4, kParameters, 1);
  std::vector<const void*> parts;
  const auto* data = static_cast<const std::byte*>(x.matrix().data);
  for (std::int64_t p = 0; p < 4; ++p) {
    parts.push_back(data + static_cast<std::size_t>(p * (kParameters + 3)) * size_of(b.dtype));
  }
  std::vector<float> to(kParameters);
  for (auto _ : state) {
    sum_parts(
        b.stream,
        {.wire = wire_of_values(Wire::f32, b.dtype), .parts = parts, .to = to.data(), .count = kParameters});
  }
  b.finish(state, kParameters, 4 * b.width() + 4);
}

void add_into(benchmark::State& state) {
  Bench b(state);
  const Tensor x = Tensor::random(b.dtype, 1, kParameters, 1);
  std::vector<float> to(kParameters);
  for (auto _ : state) add(b.stream, x.matrix().data, b.dtype, to.data(), kParameters);
  b.finish(state, kParameters, b.width() + 8);
}

void square_sum_exact(benchmark::State& state) {
  Bench b(state);
  const Tensor x = Tensor::random(b.dtype, 1, kParameters, 1);
  std::vector<std::int64_t> limbs(kExactLimbs + 1);
  for (auto _ : state) {
    square_sum(b.stream,
               {.x = x.matrix().data, .dtype = b.dtype, .count = kParameters, .limbs = limbs.data()});
  }
  b.finish(state, kParameters, b.width());
}

void adamw_with_copy(benchmark::State& state) {
  Bench b(state);
  std::vector<float> w = random_floats(kParameters, 1), grad = random_floats(kParameters, 2);
  std::vector<float> m(w.size()), v(w.size(), 1.0f);
  std::vector<std::byte> copy(w.size() * 4);
  StepScalars scalars;
  scalars.learning_rate = 1e-4f;
  scalars.grad_scale = 1;
  float found = 0;
  const AdamWSpan spans[] = {{.begin = 0, .count = kParameters, .amax_index = 0}};
  for (auto _ : state) {
    adamw(b.stream, {.master = w.data(),
                     .grad = grad.data(),
                     .exp_avg = m.data(),
                     .exp_avg_sq = v.data(),
                     .spans = spans,
                     .scalars = &scalars,
                     .copy = copy.data(),
                     .copy_dtype = b.dtype,
                     .amax = &found});
  }
  b.finish(state, kParameters, 28 + b.width());
}

#define OCTET_BENCH(f) BENCHMARK(f)->ArgsProduct({{0, 1}, {1, 2}})->Unit(benchmark::kMicrosecond)->MinTime(0.01)
OCTET_BENCH(rms_norm_forward);
OCTET_BENCH(rms_norm_with_fp8);
OCTET_BENCH(rms_norm_back);
OCTET_BENCH(rope_in_place);
OCTET_BENCH(gated_forward<Activation::silu>);
OCTET_BENCH(gated_back<Activation::silu>);
OCTET_BENCH(gated_forward<Activation::gelu_tanh>);
OCTET_BENCH(gated_back<Activation::gelu_tanh>);
OCTET_BENCH(embedding_forward);
OCTET_BENCH(embedding_back);
OCTET_BENCH(bias_back);
OCTET_BENCH(cross_entropy_with_gradient);
BENCHMARK(quantize_with_amax)
    ->ArgsProduct({{0, 1}, {1, 2}, {0, 1}})
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.01);
OCTET_BENCH(amax_alone);
OCTET_BENCH(convert_from_f32);
OCTET_BENCH(sum_of_four);
OCTET_BENCH(add_into);
OCTET_BENCH(square_sum_exact);
OCTET_BENCH(adamw_with_copy);

}  // namespace
}  // namespace octet::ops
