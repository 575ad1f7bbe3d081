// Times the ops around the GEMMs of a training step on a GPU, and compares them with a copy of the same
// bytes. Each op runs alone, back to back for a fifth of a second, at the shapes of one micro-batch of
// Llama-3.1-8B (3 sequences of 4,096) or Llama-3.2-1B (6). Prints a line per op.
//
//   gpu_ops_bench [8b|1b] [part of an op's name]
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "octet/device/device.h"
#include "octet/ops/attention.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/optimizer.h"
#include "octet/ops/quantize.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"
#include "octet/ops/wire.h"

namespace octet::ops {
namespace {

struct Shape {
  std::int64_t hidden, intermediate, vocabulary, sequences;
  Heads heads;
  std::int64_t tokens() const { return sequences * 4096; }
};
Shape shape_of(const std::string& name) {
  if (name == "1b") {
    return {2048, 8192, 128256, 6, {.q_heads = 32, .kv_heads = 8, .head_dim = 64}};
  }
  return {4096, 14336, 128256, 3, {.q_heads = 32, .kv_heads = 8, .head_dim = 128}};
}

class Bench {
 public:
  Bench(Device& device, std::string wanted)
      : device_(device),
        stream_(device.make_stream({.name = "bench"})),
        arena_(device),
        wanted_(std::move(wanted)) {}
  Stream& stream() { return *stream_; }
  Device& device() { return device_; }

  /// Normal numbers; FP8 arrays get the bytes of bf16 ones.
  void* room(std::int64_t count, DType dtype, float deviation = 1.0f) {
    void* at = arena_.reserve("operand", static_cast<std::size_t>(count) * size_of(dtype));
    const bool bytes = is_fp8(dtype) || dtype == DType::u8;
    random_normal(*stream_, {.seed = 1,
                             .deviation = deviation,
                             .out = at,
                             .dtype = bytes ? DType::bf16 : dtype,
                             .count = bytes ? count / 2 : count});
    return at;
  }
  float* floats(std::int64_t count, float deviation = 1.0f) {
    return static_cast<float*>(room(count, DType::f32, deviation));
  }
  Matrix matrix(std::int64_t rows, std::int64_t cols) {
    return {room(rows * cols, DType::bf16), DType::bf16, rows, cols, cols};
  }
  std::uint8_t* codes(std::int64_t count) { return static_cast<std::uint8_t*>(room(count, DType::e4m3)); }
  template <typename T>
  T* put(const std::vector<T>& values) {
    auto* to = arena_.reserve_as<T>("values", values.size());
    device_.copy_to_device(*stream_, to, values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return to;
  }
  Workspace workspace(std::size_t bytes) { return {arena_.reserve("workspace", bytes), bytes}; }

  /// `gigabytes`: the bytes that the op must read and write.
  void time(const std::string& name, double gigabytes, const std::function<void()>& op) {
    if (!wants(name)) return;
    print(name, gigabytes, median(op));
    std::printf("\n");
  }
  /// Also prints the rate relative to `copy`, the gigabytes per second of a copy.
  void time_beside(double copy, const std::string& name, double gigabytes, const std::function<void()>& op) {
    if (!wants(name)) return;
    const double took = median(op);
    print(name, gigabytes, took);
    std::printf(" %5.2f of a copy\n", gigabytes / took / copy);
  }
  /// Seconds that the op takes.
  double median(const std::function<void()>& op) {
    const double once = seconds(op, 3);
    const int runs = std::max(3, static_cast<int>(0.2 / once));
    std::vector<double> took;
    for (int i = 0; i < 5; ++i) took.push_back(seconds(op, runs / 5 + 1));
    std::sort(took.begin(), took.end());
    return took[2];
  }

 private:
  bool wants(const std::string& name) const { return name.find(wanted_) != std::string::npos; }
  static void print(const std::string& name, double gigabytes, double took) {
    std::printf("%-34s %9.1f us %8.3f GB %6.2f TB/s", name.c_str(), took * 1e6, gigabytes,
                gigabytes / took / 1e3);
    std::fflush(stdout);
  }
  double seconds(const std::function<void()>& op, int runs) {
    auto begin = device_.make_timed_event(), end = device_.make_timed_event();
    stream_->record(*begin);
    for (int i = 0; i < runs; ++i) op();
    stream_->record(*end);
    stream_->synchronize();
    return device_.seconds_between(*begin, *end) / runs;
  }
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  std::string wanted_;
};

/// Scale and amax of an FP8 copy of [rows, cols], and the copy both ways.
QuantizeInto copies(Bench& b, std::int64_t rows, std::int64_t cols, DType format) {
  return {.format = format,
          .row = b.codes(rows * cols),
          .transposed = b.codes(rows * cols),
          .scale = b.put<float>({1.0f}),
          .amax = b.put<float>({0.0f})};
}

void time_optimizer(Bench& b) {
  constexpr std::int64_t count = 218'103'808;  // a block of Llama-3.1-8B
  void* master = b.room(count, DType::bf16, 0.02f);
  void* grad = b.room(count, DType::bf16, 1.0f);
  void* first = b.room(count, DType::bf16, 1e-4f);
  void* second = b.room(count, DType::bf16, 1e-8f);
  auto* limbs = b.put(std::vector<std::int64_t>(kExactLimbs + 1));
  StepScalars scalars{.learning_rate = 1e-5f, .max_grad_norm = 1.0f, .label_tokens = 24576, .noise = 7};
  scalars.grad_scale = 1.0f / 24576;
  auto* on_device = b.put(std::vector<StepScalars>{scalars});
  auto* amax = b.put(std::vector<float>(8));
  std::vector<AdamWSpan> spans;
  for (std::int64_t i = 0; i < 7; ++i) {
    spans.push_back({.begin = i * (count / 7 / 128 * 128),
                     .count = count / 7 / 128 * 128,
                     .amax_index = i,
                     .tensor = static_cast<std::uint32_t>(i)});
  }
  AdamWArgs args{.master = master,
                 .master_dtype = DType::bf16,
                 .grad = grad,
                 .grad_dtype = DType::bf16,
                 .exp_avg = first,
                 .exp_avg_sq = second,
                 .moment_dtype = DType::bf16,
                 .spans = spans,
                 .scalars = on_device};
  b.time("adamw", 14e-9 * count, [&] { adamw(b.stream(), args); });
  args.amax = amax;
  b.time("adamw, amax of weights", 14e-9 * count, [&] { adamw(b.stream(), args); });
  args.moment_dtype = DType::u8;
  args.exp_avg_scale = b.floats(count / kMomentBlock, 1e-6f);
  args.exp_avg_sq_scale = b.floats(count / kMomentBlock, 1e-9f);
  b.time("adamw, 8-bit moments", 10e-9 * count, [&] { adamw(b.stream(), args); });
  b.time("sum of squares", 2e-9 * count,
         [&] { square_sum(b.stream(), {.x = grad, .dtype = DType::bf16, .count = count, .limbs = limbs}); });
  b.time("copy", 8e-9 * count / 2, [&] { b.device().copy(b.stream(), first, second, count * 2); });
  const std::int64_t rows = 14336 * 2, cols = 4096;
  const QuantizeInto into = copies(b, rows, cols, DType::e4m3);
  b.time("weights to FP8 both ways", 4e-9 * rows * cols,
         [&] { quantize(b.stream(), ConstMatrix(master, DType::bf16, rows, cols, cols), into); });
}

void time_norms(Bench& b, const Shape& s) {
  const std::int64_t rows = s.tokens(), hidden = s.hidden;
  const double each = 1e-9 * static_cast<double>(rows * hidden);
  const Matrix residual = b.matrix(rows, hidden), delta = b.matrix(rows, hidden),
               sum = b.matrix(rows, hidden), out = b.matrix(rows, hidden);
  const float* weight = b.floats(hidden);
  float* rstd = b.floats(rows);
  float* d_weight = b.floats(hidden);
  RmsNormArgs forward{
      .residual = residual, .delta = delta, .sum = sum, .weight = weight, .out = out, .rstd = rstd};
  b.time("norm", 8 * each, [&] { rms_norm(b.stream(), forward); });
  forward.out = {};
  forward.quantize = copies(b, rows, hidden, DType::e4m3);
  b.time("norm to FP8 both ways", 8 * each, [&] { rms_norm(b.stream(), forward); });
  RmsNormBackwardArgs backward{
      .dy = delta,
      .x = residual,
      .rstd = rstd,
      .weight = weight,
      .d_residual = sum,
      .d_weight = d_weight,
      .workspace = b.workspace(rms_norm_backward_workspace(b.device(), rows, hidden))};
  b.time("norm backward", 8 * each, [&] { rms_norm_backward(b.stream(), backward); });
  backward.quantize = forward.quantize;
  backward.quantize.format = DType::e5m2;
  b.time("norm backward, FP8 both ways", 10 * each, [&] { rms_norm_backward(b.stream(), backward); });
  b.time("transpose of bytes", 2 * each, [&] {
    transpose(
        b.stream(),
        {.from = forward.quantize.row, .rows = rows, .cols = hidden, .to = forward.quantize.transposed});
  });
  b.time("values to FP8 both ways", 4 * each,
         [&] { quantize(b.stream(), ConstMatrix(out), forward.quantize); });
}

void time_activation(Bench& b, const Shape& s) {
  const std::int64_t rows = s.tokens(), width = s.intermediate;
  const double each = 1e-9 * static_cast<double>(rows * width);
  const Matrix gate_up = b.matrix(rows, 2 * width), out = b.matrix(rows, width);
  GatedActivationArgs forward{.gate_up = gate_up, .out = out};
  b.time("activation", 6 * each, [&] { gated_activation(b.stream(), forward); });
  forward.out = {};
  forward.quantize = copies(b, rows, width, DType::e4m3);
  b.time("activation to FP8 both ways", 6 * each, [&] { gated_activation(b.stream(), forward); });
  const Matrix d = b.matrix(rows, 2 * width);
  GatedActivationBackwardArgs backward{.gate_up = gate_up, .d_out = out, .d_gate_up = d};
  b.time("activation backward", 10 * each, [&] { gated_activation_backward(b.stream(), backward); });
  backward.d_gate_up = {};
  backward.quantize = copies(b, rows, 2 * width, DType::e5m2);
  b.time("activation backward to FP8", 10 * each, [&] { gated_activation_backward(b.stream(), backward); });
}

void time_attention(Bench& b, const Shape& s) {
  const std::int64_t rows = s.tokens(), wide = s.heads.qkv_width();
  const std::int64_t half = s.heads.head_dim / 2;
  std::vector<std::int32_t> starts, places(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i <= s.sequences; ++i) starts.push_back(static_cast<std::int32_t>(i * 4096));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i % 4096);
  const double each = 1e-9 * static_cast<double>(rows * wide);
  const Matrix qkv = b.matrix(rows, wide), d_qkv = b.matrix(rows, wide);
  const Matrix out = b.matrix(rows, s.heads.q_heads * s.heads.head_dim),
               d_out = b.matrix(rows, s.heads.q_heads * s.heads.head_dim);
  RopeArgs turn{.qkv = d_qkv,
                .heads = s.heads,
                .positions = b.put(places),
                .cosine = b.floats(4096 * half),
                .sine = b.floats(4096 * half)};
  const double flipped = static_cast<double>(s.heads.q_heads + s.heads.kv_heads) /
                         static_cast<double>(s.heads.q_heads + 2 * s.heads.kv_heads);
  b.time("rope", 4 * flipped * each, [&] { rope(b.stream(), turn); });
  turn.quantize = copies(b, rows, wide, DType::e5m2);
  turn.keep_values = false;
  turn.inverse = true;
  b.time("rope backward to FP8", 4 * each, [&] { rope(b.stream(), turn); });

  const Documents documents{.cu_seqlens = b.put(starts),
                            .host_cu_seqlens = starts.data(),
                            .count = s.sequences,
                            .max_length = 4096,
                            .tokens = rows};
  float* lse = b.floats(s.heads.q_heads * rows);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.heads.head_dim));
  const Workspace workspace = b.workspace(attention_workspace(b.device(), s.heads, DType::bf16, rows, 4096));
  // Both passes are bound by their products, half of the square: 4 and 10 a score and element of a head.
  const double scores = 1e-12 * static_cast<double>(s.heads.q_heads * s.heads.head_dim * rows) * 4096 / 2;
  std::printf("attention: %.3f TFLOP forward, %.3f backward\n", 4 * scores, 10 * scores);
  b.time("attention", each * 2, [&] {
    attention(b.stream(), {.qkv = qkv,
                           .heads = s.heads,
                           .documents = documents,
                           .scale = scale,
                           .out = out,
                           .lse = lse,
                           .workspace = workspace});
  });
  b.time("attention backward", each * 4, [&] {
    attention_backward(b.stream(), {.qkv = qkv,
                                    .out = out,
                                    .d_out = d_out,
                                    .lse = lse,
                                    .heads = s.heads,
                                    .documents = documents,
                                    .scale = scale,
                                    .d_qkv = d_qkv,
                                    .workspace = workspace});
  });
}

void time_loss(Bench& b, const Shape& s) {
  constexpr std::int64_t rows = 4096;
  const Matrix logits = b.matrix(rows, s.vocabulary);
  std::vector<std::int32_t> targets(rows);
  std::iota(targets.begin(), targets.end(), 17);
  const std::int32_t* on_device = b.put(targets);
  float* losses = b.floats(rows);
  b.time("loss", 4e-9 * static_cast<double>(rows * s.vocabulary),
         [&] { cross_entropy(b.stream(), {.logits = logits, .targets = on_device, .row_loss = losses}); });
}

// The work of one rank of eight on a large slice of an all-reduce, compared with a copy.
void time_wires(Bench& b) {
  constexpr std::int64_t count = std::int64_t{1} << 27;
  constexpr std::int64_t ranks = 8;
  const double each = 1e-9 * static_cast<double>(count);
  float* floats = b.floats(count);
  void* halves = b.room(count, DType::bf16);
  auto* residual = static_cast<std::uint16_t*>(b.room(count, DType::bf16, 1e-3f));
  float* to = b.floats(count);
  const double copy = 8 * each / b.median([&] { b.device().copy(b.stream(), to, floats, 4 * count); });
  std::printf("a copy of 0.5 GB: %.2f TB/s\n", copy / 1e3);
  const auto time = [&](const std::string& name, double gigabytes, const std::function<void()>& op) {
    b.time_beside(copy, name, gigabytes, op);
  };
  for (const auto& [wire, name] : {std::pair<Wire, std::string>{Wire::f32, "f32"},
                                   {Wire::bf16, "bf16"},
                                   {Wire::fp8, "fp8"},
                                   {Wire::int8, "int8"}}) {
    const auto bytes = static_cast<std::int64_t>(wire_bytes(wire, count));
    const double wide = 1e-9 * static_cast<double>(bytes);
    auto* memory = static_cast<std::byte*>(b.room(ranks * bytes / 4, DType::f32));
    std::vector<const void*> parts;
    std::vector<const float*> addends;
    for (std::int64_t r = 0; r < ranks; ++r) {
      parts.push_back(memory + r * bytes);
      addends.push_back(reinterpret_cast<const float*>(memory + r * bytes));
    }
    if (wire != Wire::f32) {
      EncodeArgs encode{.wire = wire, .from = floats, .count = count};
      for (std::int64_t r = ranks - 1; r >= 0; --r) {
        encode.to = memory + r * bytes;
        encode_values(b.stream(), encode);
      }
      time("encode f32 to " + name, 4 * each + wide, [&] { encode_values(b.stream(), encode); });
      encode.residual = residual;
      time("encode f32 to " + name + ", feedback", 8 * each + wide,
           [&] { encode_values(b.stream(), encode); });
      encode.from = halves;
      encode.dtype = DType::bf16;
      if (wire != Wire::bf16) {
        time("encode bf16 to " + name + ", feedback", 6 * each + wide,
             [&] { encode_values(b.stream(), encode); });
        encode.residual = nullptr;
        time("encode bf16 to " + name, 2 * each + wide, [&] { encode_values(b.stream(), encode); });
      }
      DecodeArgs decode{.wire = wire, .part = memory, .count = count, .to = to};
      time("decode " + name + " to f32", 4 * each + wide, [&] { decode_values(b.stream(), decode); });
      decode.dtype = DType::bf16;
      time("decode " + name + " to bf16", 2 * each + wide, [&] { decode_values(b.stream(), decode); });
    }
    SumPartsArgs sum{.wire = wire, .parts = parts, .to = to, .count = count};
    time("sum 8 of " + name + " to f32", 4 * each + 8 * wide, [&] { sum_parts(b.stream(), sum); });
    sum.to_dtype = DType::bf16;
    time("sum 8 of " + name + " to bf16", 2 * each + 8 * wide, [&] { sum_parts(b.stream(), sum); });
    sum = {.wire = wire, .parts = std::span(parts).first(2), .to = to, .count = count, .accumulate = true};
    time("add 2 of " + name + " to f32", 8 * each + 2 * wide, [&] { sum_parts(b.stream(), sum); });
    if (wire != Wire::f32) continue;
    const std::vector<int> merges = {0, 1, 0, 2, 0, 1, 0, 3};
    time("tree of 8", 4 * each + 8 * wide,
         [&] { sum_tree(b.stream(), {.addends = addends, .merges = merges, .to = to, .count = count}); });
  }
}

int measure(const std::string& name, const std::string& wanted) {
  const std::unique_ptr<Device> device = make_cuda_device();
  std::printf("%s, shapes of %s\n", device->description().c_str(), name.c_str());
  const Shape shape = shape_of(name);
  // One part at a time, so that its memory is released.
  const auto part = [&](const std::function<void(Bench&)>& body) {
    Bench bench(*device, wanted);
    body(bench);
  };
  part([](Bench& b) { time_optimizer(b); });
  part([&](Bench& b) { time_norms(b, shape); });
  part([&](Bench& b) { time_activation(b, shape); });
  part([&](Bench& b) { time_attention(b, shape); });
  part([&](Bench& b) { time_loss(b, shape); });
  part([](Bench& b) { time_wires(b); });
  return 0;
}

}  // namespace
}  // namespace octet::ops

int main(int argc, char** argv) {
  try {
    return octet::ops::measure(argc > 1 ? argv[1] : "8b", argc > 2 ? argv[2] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_ops_bench: %s\n", e.what());
    return 1;
  }
}
