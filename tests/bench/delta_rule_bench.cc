// Times the ops of gated delta rules on a GPU, at the shape of a layer of Qwen3.5-9B: 16 key heads and 32
// value heads of 128, and 16,384 tokens in bf16. The floor is the time to read the inputs and write the
// results once at 4.8 TB/s. TFLOP/s count each operation of the chunked form (ops/delta_rule.h) once. Columns
// are grouped by key head, like in Qwen3-Next.
//
//   delta_rule_bench [documents] [part of an op's name]      4 documents, if not given
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/device.h"
#include "octet/ops/delta_inputs.h"
#include "octet/ops/delta_rule.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/gated_norm.h"
#include "octet/ops/output_gate.h"

namespace octet::ops {
namespace {

constexpr std::int64_t kTokens = 16384;
constexpr DeltaHeads kHeads{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
constexpr double kBandwidth = 4.8e12;

class Bench {
 public:
  Bench(Device& device, std::string wanted)
      : device_(device),
        stream_(device.make_stream({.name = "bench"})),
        arena_(device),
        wanted_(std::move(wanted)) {}
  Stream& stream() { return *stream_; }
  Device& device() { return device_; }

  void* room(std::int64_t count, DType dtype, float deviation = 1.0f) {
    void* const at = arena_.reserve("operand", static_cast<std::size_t>(count) * size_of(dtype));
    random_normal(*stream_, {.seed = 1, .deviation = deviation, .out = at, .dtype = dtype, .count = count});
    return at;
  }
  float* floats(std::int64_t count) { return static_cast<float*>(room(count, DType::f32)); }
  Matrix matrix(std::int64_t rows, std::int64_t cols) {
    return {room(rows * cols, DType::bf16), DType::bf16, rows, cols, cols};
  }
  template <typename T>
  T* put(const std::vector<T>& values) {
    auto* const to = arena_.reserve_as<T>("values", values.size());
    device_.copy_to_device(*stream_, to, values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return to;
  }
  Workspace workspace(std::size_t bytes) { return {arena_.reserve("workspace", bytes), bytes}; }

  /// Prints the time of an op on `tokens` tokens. `bytes`: its inputs and results. Returns its seconds, or 0
  /// if the op is not wanted.
  double time(const std::string& name, std::int64_t tokens, double bytes, double operations,
              const std::function<void()>& op) {
    if (name.find(wanted_) == std::string::npos) return 0;
    const double took = median(op);
    print(name, tokens, bytes, operations, took);
    return took;
  }
  static void print(const std::string& name, std::int64_t tokens, double bytes, double operations,
                    double took) {
    std::printf("%-28s %9.1f us %7.1f M tokens/s %6.2f TB/s, floor %7.1f us, share %.3f", name.c_str(),
                took * 1e6, static_cast<double>(tokens) / took * 1e-6, bytes / took * 1e-12,
                bytes / kBandwidth * 1e6, bytes / kBandwidth / took);
    if (operations > 0) std::printf(" %6.1f TFLOP/s", operations / took * 1e-12);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  double median(const std::function<void()>& op) {
    const int runs = std::max(2, static_cast<int>(0.1 / seconds(op, 3)));
    std::vector<double> took;
    for (int i = 0; i < 5; ++i) took.push_back(seconds(op, runs));
    std::sort(took.begin(), took.end());
    return took[2];
  }
  double seconds(const std::function<void()>& op, int runs) {
    const auto begin = device_.make_timed_event(), end = device_.make_timed_event();
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

/// Log decays of a trained layer are between about -0.7 and 0. Betas are between 0 and 1.
std::vector<float> gates(std::int64_t count, float most) {
  std::vector<float> all(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& x : all) {
    state = state * 1664525u + 1013904223u;
    x = most * static_cast<float>(state >> 8) * 0x1p-24f;
  }
  return all;
}

Documents documents_of(Bench& b, std::int64_t count) {
  std::vector<std::int32_t> starts;
  for (std::int64_t d = 0; d <= count; ++d) {
    starts.push_back(static_cast<std::int32_t>(kTokens * d / count));
  }
  return {.cu_seqlens = b.put(starts),
          .count = count,
          .max_length = (kTokens + count - 1) / count,
          .tokens = kTokens};
}

void time_rule(Bench& b, std::int64_t count) {
  const double heads = kHeads.value_heads, keys = kHeads.key_dim, values = kHeads.value_dim;
  const double shared = static_cast<double>(kHeads.key_heads) / heads, chunk = kDeltaChunk;
  const double rows = kTokens * heads;
  const double state = 2 * static_cast<double>(delta_states(kTokens)) * heads * keys * values;
  const double qkv_bytes = 2.0 * kTokens * static_cast<double>(kHeads.qkv_width());
  const double out_bytes = 2.0 * kTokens * static_cast<double>(kHeads.values()), gate_bytes = 8 * rows;
  const double forward_bytes = qkv_bytes + out_bytes + gate_bytes + state;
  const double backward_bytes = 2 * qkv_bytes + out_bytes + 2 * gate_bytes + state;
  const double forward_work = rows * (6 * keys * values + 4 * chunk * values + 4 * shared * chunk * keys);
  const double backward_work =
      rows * (14 * keys * values + 10 * chunk * values + 8 * chunk * keys + 8 * shared * chunk * keys);
  const Matrix qkv = b.matrix(kTokens, kHeads.qkv_width()), d_qkv = b.matrix(kTokens, kHeads.qkv_width()),
               out = b.matrix(kTokens, kHeads.values());
  const Documents documents = documents_of(b, count);
  const std::int64_t numbers = kTokens * kHeads.value_heads;
  const float *log_decay = b.put(gates(numbers, -0.7f)), *beta = b.put(gates(numbers, 1.0f));
  void* const states =
      b.room(delta_states(kTokens) * kHeads.value_heads * kHeads.key_dim * kHeads.value_dim, DType::bf16);
  const Workspace workspace = b.workspace(delta_rule_workspace(b.device(), kHeads, DType::bf16, kTokens));
  DeltaRuleArgs forward{.qkv = qkv,
                        .log_decay = log_decay,
                        .beta = beta,
                        .heads = kHeads,
                        .documents = documents,
                        .out = out,
                        .workspace = workspace};
  b.time("delta_rule without states", kTokens, forward_bytes - state, forward_work,
         [&] { delta_rule(b.stream(), forward); });
  forward.states = states;
  delta_rule(b.stream(), forward);  // backward reads its states
  const double ahead =
      b.time("delta_rule", kTokens, forward_bytes, forward_work, [&] { delta_rule(b.stream(), forward); });
  const DeltaRuleBackwardArgs backward{.qkv = qkv,
                                       .log_decay = log_decay,
                                       .beta = beta,
                                       .states = states,
                                       .d_out = b.matrix(kTokens, kHeads.values()),
                                       .heads = kHeads,
                                       .documents = documents,
                                       .d_qkv = d_qkv,
                                       .d_log_decay = b.floats(numbers),
                                       .d_beta = b.floats(numbers),
                                       .workspace = workspace};
  const double back = b.time("delta_rule_backward", kTokens, backward_bytes, backward_work,
                             [&] { delta_rule_backward(b.stream(), backward); });
  if (ahead > 0 && back > 0) {
    Bench::print("both", kTokens, forward_bytes + backward_bytes, forward_work + backward_work, ahead + back);
  }
}

void time_inputs(Bench& b, std::int64_t count) {
  const DeltaColumns columns{.heads = kHeads, .groups = 16};
  const std::int64_t width = kHeads.qkv_width(), numbers = kTokens * kHeads.value_heads;
  const double each = 2.0 * kTokens * static_cast<double>(width),
               gate_bytes = 12.0 * static_cast<double>(numbers);
  const Matrix projected = b.matrix(kTokens, columns.width()),
               d_projected = b.matrix(kTokens, columns.width()), qkv = b.matrix(kTokens, width);
  const Documents documents = documents_of(b, count);
  const float *taps = b.floats(width * kDeltaTaps), *a_log = b.floats(kHeads.value_heads),
              *dt_bias = b.floats(kHeads.value_heads);
  float *log_decay = b.floats(numbers), *beta = b.floats(numbers);
  b.time("delta_inputs", kTokens, 2 * each + gate_bytes, 0, [&] {
    delta_inputs(b.stream(), {.projected = projected,
                              .columns = columns,
                              .documents = documents,
                              .taps = taps,
                              .a_log = a_log,
                              .dt_bias = dt_bias,
                              .qkv = qkv,
                              .log_decay = log_decay,
                              .beta = beta});
  });
  const DeltaInputsBackwardArgs backward{
      .projected = projected,
      .columns = columns,
      .documents = documents,
      .taps = taps,
      .a_log = a_log,
      .dt_bias = dt_bias,
      .d_qkv = qkv,
      .d_log_decay = log_decay,
      .d_beta = beta,
      .d_projected = d_projected,
      .d_taps = b.floats(width * kDeltaTaps),
      .d_a_log = b.floats(kHeads.value_heads),
      .d_dt_bias = b.floats(kHeads.value_heads),
      .workspace = b.workspace(delta_inputs_workspace(b.device(), columns, kTokens))};
  b.time("delta_inputs_backward", kTokens, 3 * each + gate_bytes, 0,
         [&] { delta_inputs_backward(b.stream(), backward); });
}

void time_gates(Bench& b) {
  const DeltaColumns columns{.heads = kHeads, .groups = 16};
  const double each = 2.0 * kTokens * static_cast<double>(kHeads.values());
  const Matrix o = b.matrix(kTokens, kHeads.values()), out = b.matrix(kTokens, kHeads.values()),
               projected = b.matrix(kTokens, columns.width()),
               d_projected = b.matrix(kTokens, columns.width());
  const float* weight = b.floats(kHeads.value_dim);
  b.time("gated_norm", kTokens, 3 * each, 0, [&] {
    gated_norm(b.stream(),
               {.o = o, .projected = projected, .columns = columns, .weight = weight, .out = out});
  });
  const GatedNormBackwardArgs backward{
      .o = o,
      .projected = projected,
      .columns = columns,
      .weight = weight,
      .d_out = out,
      .d_o = b.matrix(kTokens, kHeads.values()),
      .d_projected = d_projected,
      .d_weight = b.floats(kHeads.value_dim),
      .workspace = b.workspace(gated_norm_workspace(b.device(), kHeads, kTokens))};
  b.time("gated_norm_backward", kTokens, 5 * each, 0, [&] { gated_norm_backward(b.stream(), backward); });

  const Heads heads{.q_heads = 16, .kv_heads = 4, .head_dim = 256};
  const Matrix gated = b.matrix(kTokens, heads.qkv_width() + heads.q_heads * heads.head_dim),
               d_gated = b.matrix(kTokens, gated.cols), qkv = b.matrix(kTokens, heads.qkv_width());
  b.time("take_output_gates", kTokens, 4.0 * kTokens * static_cast<double>(heads.qkv_width()), 0,
         [&] { take_output_gates(b.stream(), {.projected = gated, .heads = heads, .qkv = qkv}); });
  b.time("output_gate", kTokens, 3 * each, 0,
         [&] { output_gate(b.stream(), {.attended = o, .projected = gated, .heads = heads, .out = out}); });
  b.time("output_gate_backward", kTokens, 5 * each, 0, [&] {
    output_gate_backward(b.stream(), {.attended = o,
                                      .projected = gated,
                                      .d_out = out,
                                      .heads = heads,
                                      .d_attended = backward.d_o,
                                      .d_projected = d_gated});
  });
}

/// Decoding: one token of each sequence.
void time_decoding(Bench& b) {
  for (const std::int64_t sequences : {1, 64}) {
    const std::int64_t numbers = sequences * kHeads.value_heads;
    const std::int64_t count = numbers * kHeads.key_dim * kHeads.value_dim;
    std::vector<std::int32_t> slots, positions;
    for (std::int64_t i = 0; i < sequences; ++i) {
      slots.push_back(static_cast<std::int32_t>(i));
      positions.push_back(100);
    }
    const CachedDeltaRuleArgs args{.qkv = b.matrix(sequences, kHeads.qkv_width()),
                                   .log_decay = b.put(gates(numbers, -0.7f)),
                                   .beta = b.put(gates(numbers, 1.0f)),
                                   .heads = kHeads,
                                   .slots = b.put(slots),
                                   .positions = b.put(positions),
                                   .states = b.floats(count),
                                   .out = b.matrix(sequences, kHeads.values())};
    b.time("cached_delta_rule of " + std::to_string(sequences), sequences, 8.0 * static_cast<double>(count),
           0, [&] { cached_delta_rule(b.stream(), args); });
  }
}

int measure(std::int64_t documents, const std::string& wanted) {
  const std::unique_ptr<Device> device = make_cuda_device();
  std::printf("%s, %lld documents\n", device->description().c_str(), static_cast<long long>(documents));
  // One part at a time, so that its memory is released.
  const auto part = [&](const std::function<void(Bench&)>& body) {
    Bench bench(*device, wanted);
    body(bench);
  };
  part([&](Bench& b) { time_rule(b, documents); });
  part([&](Bench& b) { time_inputs(b, documents); });
  part([](Bench& b) { time_gates(b); });
  part([](Bench& b) { time_decoding(b); });
  return 0;
}

}  // namespace
}  // namespace octet::ops

int main(int argc, char** argv) {
  try {
    const std::int64_t documents = argc > 1 ? std::atoll(argv[1]) : 4;
    if (documents < 1 || documents > octet::ops::kTokens) {
      std::fprintf(stderr, "delta_rule_bench: give a number of documents from 1 to 16384\n");
      return 2;
    }
    return octet::ops::measure(documents, argc > 2 ? argv[2] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "delta_rule_bench: %s\n", e.what());
    return 1;
  }
}
