// Rates of the GEMMs of experts in training (expert_gemm.h) on a GPU, as shares of one dense GEMM with the
// same number of operations. Shape of Qwen3-30B-A3B: 128 experts, 8 for each of 16,384 tokens. Prints a line
// for each GEMM and load.
//
//   expert_gemm_bench [tokens]            weights of experts
//   expert_gemm_bench adapters [tokens]   adapters of experts (expert_low_rank.h), as shares of the bandwidth
//                                         of a copy in device memory, and of 4,800 GB/s
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/device.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/expert_gemm.h"
#include "octet/ops/expert_low_rank.h"
#include "octet/ops/quantize.h"

namespace octet::ops {
namespace {

constexpr std::int64_t kExperts = 128, kTaken = 8;

/// First rows of experts with a load of 1 / (e + 1)^skew.
std::vector<std::int32_t> begins_of(std::int64_t rows, double skew) {
  std::vector<double> share(kExperts);
  double all = 0;
  for (std::int64_t e = 0; e < kExperts; ++e)
    all += share[static_cast<std::size_t>(e)] = std::pow(static_cast<double>(e + 1), -skew);
  std::vector<std::int32_t> begins{0};
  double sum = 0;
  for (const double one : share) {
    sum += one;
    begins.push_back(static_cast<std::int32_t>(std::lround(static_cast<double>(rows) * sum / all)));
  }
  return begins;
}

class Bench {
 public:
  explicit Bench(Device& device)
      : device_(device), stream_(device.make_stream({.name = "bench"})), arena_(device) {}

  Matrix matrix(std::int64_t rows, std::int64_t cols, DType dtype = DType::bf16) {
    void* const at = arena_.reserve("operand", static_cast<std::size_t>(rows * cols) * size_of(dtype));
    random_normal(*stream_, {.seed = 1, .deviation = 1.0f, .out = at, .dtype = dtype, .count = rows * cols});
    return {at, dtype, rows, cols, cols};
  }
  /// FP8 values of random numbers, with a copy that serves as transposed one.
  Operand fp8(DType dtype, std::int64_t rows, std::int64_t cols, const float* scale) {
    const auto bytes = static_cast<std::size_t>(rows * cols);
    auto* const to = arena_.reserve_as<std::uint8_t>("operand", bytes);
    auto* const flipped = arena_.reserve_as<std::uint8_t>("operand", bytes);
    const Matrix values = matrix(rows, cols);
    quantize(*stream_, values, {.format = dtype, .row = to, .transposed = flipped, .scale = scale});
    return {
        .data = to, .transposed = flipped, .dtype = dtype, .rows = rows, .cols = cols, .scale_inv = scale};
  }
  /// Memory of the first call's size.
  void* room(std::size_t bytes) {
    if (room_ == nullptr) room_ = arena_.reserve("room", bytes);
    return room_;
  }
  const float* scale() {
    auto* const to = arena_.reserve_as<float>("scale", 4);
    const float one[4] = {1, 1, 1, 1};
    device_.copy_to_device(*stream_, to, one, sizeof(one));
    stream_->synchronize();
    return to;
  }
  std::int32_t* put(const std::vector<std::int32_t>& values) {
    auto* const to = arena_.reserve_as<std::int32_t>("values", values.size());
    device_.copy_to_device(*stream_, to, values.data(), values.size() * sizeof(values[0]));
    stream_->synchronize();
    return to;
  }
  /// The median of five rounds, after a warm-up.
  double seconds(const std::function<void(Stream&)>& op) {
    const double once = round(op, 3);
    std::vector<double> took;
    for (int i = 0; i < 5; ++i) took.push_back(round(op, std::max(2, static_cast<int>(0.1 / once))));
    std::sort(took.begin(), took.end());
    return took[2];
  }
  double dense(GemmArgs args) {
    const std::size_t bytes = gemm_workspace(device_, args);
    args.workspace = {arena_.reserve("workspace", bytes), bytes};
    return seconds([&](Stream& stream) { gemm(stream, args); });
  }

 private:
  double round(const std::function<void(Stream&)>& op, int runs) {
    const auto begin = device_.make_timed_event(), end = device_.make_timed_event();
    stream_->record(*begin);
    for (int i = 0; i < runs; ++i) op(*stream_);
    stream_->record(*end);
    stream_->synchronize();
    return device_.seconds_between(*begin, *end) / runs;
  }
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  void* room_ = nullptr;
};

Operand operand_of(const Matrix& m) {
  return {.data = m.data, .dtype = m.dtype, .rows = m.rows, .cols = m.cols};
}

/// The three GEMMs of a layer and their dense counterparts.
struct Layer {
  const char* name;
  std::int64_t rows, out, in;
};

void print(const Layer& layer, const char* gemm_kind, double skew, double took, double dense) {
  const double teraflop = 2e-12 * static_cast<double>(layer.rows * layer.out * layer.in);
  std::printf("%-8s %-18s skew %.1f %8.1f us %7.1f TFLOP/s, dense %7.1f TFLOP/s, share %.3f\n", layer.name,
              gemm_kind, skew, took * 1e6, teraflop / took, teraflop / dense, dense / took);
  std::fflush(stdout);
}

void measure_bf16(Device& device, const Layer& layer) {
  Bench b(device);
  const std::int64_t rows = layer.rows, out = layer.out, in = layer.in;
  const Matrix x = b.matrix(rows, in), y = b.matrix(rows, out), weights = b.matrix(kExperts * out, in);
  const Matrix d_weights = b.matrix(kExperts * out, in);
  // The dense GEMM has the same number of operations with the matrix of one expert.
  const Matrix weight = b.matrix(out, in), d_weight = b.matrix(out, in);
  const double dense[] = {
      b.dense({.gemm_kind = GemmKind::forward, .a = operand_of(x), .b = operand_of(weight), .d = y}),
      b.dense({.gemm_kind = GemmKind::dgrad, .a = operand_of(y), .b = operand_of(weight), .d = x}),
      b.dense({.gemm_kind = GemmKind::wgrad, .a = operand_of(y), .b = operand_of(x), .d = d_weight})};
  for (const double skew : {0.0, 0.5}) {
    const std::int32_t* const begins = b.put(begins_of(rows, skew));
    const Operand in_rows = operand_of(x), out_rows = operand_of(y), all = operand_of(weights);
    const ExpertGemmArgs args[] = {
        {.gemm_kind = GemmKind::forward, .a = in_rows, .b = all, .count = kExperts, .begins = begins, .d = y},
        {.gemm_kind = GemmKind::dgrad, .a = out_rows, .b = all, .count = kExperts, .begins = begins, .d = x},
        {.gemm_kind = GemmKind::wgrad,
         .a = out_rows,
         .b = in_rows,
         .count = kExperts,
         .begins = begins,
         .d = d_weights}};
    const char* const names[] = {"forward", "dgrad", "wgrad"};
    for (int i = 0; i < 3; ++i)
      print(layer, names[i], skew, b.seconds([&](Stream& stream) { expert_gemm(stream, args[i]); }),
            dense[i]);
  }
}

void measure_fp8(Device& device, const Layer& layer, bool fast) {
  Bench b(device);
  const std::int64_t rows = layer.rows, out = layer.out, in = layer.in;
  const float* const scale = b.scale();
  const auto fp8 = [&](DType dtype, std::int64_t r, std::int64_t c) { return b.fp8(dtype, r, c, scale); };
  const Operand x = fp8(DType::e4m3, rows, in), y = fp8(DType::e5m2, rows, out);
  const Operand weights = fp8(DType::e4m3, kExperts * out, in), weight = fp8(DType::e4m3, out, in);
  const Matrix d_y = b.matrix(rows, out), d_x = b.matrix(rows, in), d_weights = b.matrix(kExperts * out, in),
               d_weight = b.matrix(out, in);
  const double dense[] = {
      b.dense({.gemm_kind = GemmKind::forward, .a = x, .b = weight, .d = d_y, .fast_accumulation = fast}),
      b.dense({.gemm_kind = GemmKind::dgrad, .a = y, .b = weight, .d = d_x, .fast_accumulation = fast}),
      b.dense({.gemm_kind = GemmKind::wgrad, .a = y, .b = x, .d = d_weight, .fast_accumulation = fast})};
  for (const double skew : {0.0, 0.5}) {
    ExpertGemmArgs args{.weight_scale_step = 0,
                        .count = kExperts,
                        .begins = b.put(begins_of(rows, skew)),
                        .fast_accumulation = fast};
    const std::string suffix = fast ? " FP8, fast" : " FP8";
    const auto run = [&](GemmKind gemm_kind, const Operand& a, const Operand& by, const Matrix& d) {
      args.gemm_kind = gemm_kind, args.a = a, args.b = by, args.d = d;
      return b.seconds([&](Stream& stream) { expert_gemm(stream, args); });
    };
    print(layer, ("forward" + suffix).c_str(), skew, run(GemmKind::forward, x, weights, d_y), dense[0]);
    print(layer, ("dgrad" + suffix).c_str(), skew, run(GemmKind::dgrad, y, weights, d_x), dense[1]);
    print(layer, ("wgrad" + suffix).c_str(), skew, run(GemmKind::wgrad, y, x, d_weights), dense[2]);
  }
}

/// Prints the time of a GEMM of adapters that reads and writes `bytes` at least.
void print_adapters(const char* layer, const char* gemm, double skew, double took, double bytes,
                    double copy) {
  constexpr double most = 4800;
  const double rate = bytes / took * 1e-9;
  std::printf("%-8s %-22s skew %.1f %8.1f us %7.0f GB/s, %.2f of the peak, %.2f of a copy\n", layer, gemm,
              skew, took * 1e6, rate, rate / most, rate / copy);
  std::fflush(stdout);
}

/// Adapters of one layer of all experts: A [rank of all modules, in], and B [out, rank] of each module.
struct AdapterLayer {
  const char* name;
  std::int64_t rows, out, in, modules, rank;
};

void measure_adapters(Device& device, const AdapterLayer& layer) {
  Bench b(device);
  const std::int64_t rows = layer.rows, in = layer.in, rank = layer.rank, out = layer.out;
  const std::int64_t ranks = layer.modules * rank, outs = layer.modules * out;
  const Matrix x = b.matrix(rows, in), y = b.matrix(rows, outs), inner = b.matrix(rows, ranks);
  const Matrix a = b.matrix(kExperts * ranks, in), up = b.matrix(kExperts * out, rank);
  const Matrix d_a = b.matrix(kExperts * ranks, in, DType::f32);
  const Matrix d_up = b.matrix(kExperts * out, rank, DType::f32);
  const auto first = [](Matrix m) {
    m.rows /= kExperts;
    return m;
  };
  const auto columns = [](Matrix m, std::int64_t count) {
    m.cols = count;
    return m;
  };
  const auto bytes_of = [](const Matrix& m) {
    return static_cast<double>(m.rows * m.cols) * static_cast<double>(size_of(m.dtype));
  };
  const double copied = bytes_of(x);
  const double copy = 2e-9 * copied / b.seconds([&](Stream& stream) {
    device.copy(stream, b.room(static_cast<std::size_t>(copied)), x.data, static_cast<std::size_t>(copied));
  });
  const Matrix inner_one = columns(inner, rank), y_one = columns(y, out);
  for (const double skew : {0.0, 0.5}) {
    const std::int32_t* const begins = b.put(begins_of(rows, skew));
    const auto run = [&](const char* name, ExpertLowRankArgs args, double bytes) {
      args.count = kExperts, args.begins = begins;
      print_adapters(layer.name, name, skew,
                     b.seconds([&](Stream& stream) { expert_low_rank(stream, args); }), bytes, copy);
    };
    const double a_bytes = bytes_of(x) + bytes_of(inner) + bytes_of(a);
    const double b_bytes = bytes_of(y_one) + bytes_of(inner_one) + bytes_of(up);
    using enum GemmKind;
    run("A x", {.gemm_kind = forward, .a = x, .b = first(a), .step = ranks * in, .d = inner, .factor = 2.0f},
        a_bytes);
    run("y += B (A x)",
        {.gemm_kind = forward,
         .a = inner_one,
         .b = first(up),
         .step = out * rank,
         .d = y_one,
         .accumulate = true},
        b_bytes + bytes_of(y_one));
    run("gradient of A x",
        {.gemm_kind = dgrad, .a = y_one, .b = first(up), .step = out * rank, .d = inner_one}, b_bytes);
    run("gradient of x",
        {.gemm_kind = dgrad, .a = inner, .b = first(a), .step = ranks * in, .d = x, .accumulate = true},
        a_bytes + bytes_of(x));
    run("gradient of A",
        {.gemm_kind = wgrad, .a = inner, .b = x, .step = ranks * in, .d = first(d_a), .accumulate = true},
        bytes_of(x) + bytes_of(inner) + 2 * bytes_of(d_a));
    run("gradient of B",
        {.gemm_kind = wgrad,
         .a = y_one,
         .b = inner_one,
         .step = out * rank,
         .d = first(d_up),
         .accumulate = true},
        bytes_of(y_one) + bytes_of(inner_one) + 2 * bytes_of(d_up));
  }
}

int measure_all_adapters(std::int64_t tokens) {
  const std::unique_ptr<Device> device = make_cuda_device();
  std::printf("%s, %lld tokens\n", device->description().c_str(), static_cast<long long>(tokens));
  const std::int64_t rows = tokens * kTaken;
  for (const std::int64_t rank : {16, 64}) {
    std::printf("rank %lld\n", static_cast<long long>(rank));
    measure_adapters(*device, {"gate, up", rows, 768, 2048, 2, rank});
    measure_adapters(*device, {"down", rows, 2048, 768, 1, rank});
  }
  return 0;
}

int measure(std::int64_t tokens) {
  const std::unique_ptr<Device> device = make_cuda_device();
  std::printf("%s, %lld tokens\n", device->description().c_str(), static_cast<long long>(tokens));
  for (const Layer& layer :
       {Layer{"gate, up", tokens * kTaken, 1536, 2048}, Layer{"down", tokens * kTaken, 2048, 768}}) {
    measure_bf16(*device, layer);
    measure_fp8(*device, layer, true);
    measure_fp8(*device, layer, false);
  }
  return 0;
}

}  // namespace
}  // namespace octet::ops

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::string(argv[1]) == "adapters")
      return octet::ops::measure_all_adapters(argc > 2 ? std::atoll(argv[2]) : 16384);
    return octet::ops::measure(argc > 1 ? std::atoll(argv[1]) : 16384);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "expert_gemm_bench: %s\n", e.what());
    return 1;
  }
}
