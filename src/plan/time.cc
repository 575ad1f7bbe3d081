#include "octet/plan/time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "octet/base/strings.h"
#include "octet/model/build.h"

namespace octet::plan {
namespace {

using model::Recompute;

/// One kernel that reads and writes `bytes` and computes `flops`.
struct Kernel {
  double flops = 0;
  double bytes = 0;
  double rate = 0;
  double filling = 1;  ///< share of the GPU that its waves of tiles keep busy
};

double seconds_of(const Kernel& k, const Rates& rates) {
  const double compute = k.flops > 0 ? k.flops / (k.rate * k.filling) : 0;
  return std::max({compute, k.bytes / rates.bytes, rates.launch});
}

/// The best of some tiles in waves over the multiprocessors. Large tiles reach the rates; small results are
/// made in smaller ones, which fill more multiprocessors and read their operands more often.
double filling(double rows, double cols, const Rates& rates) {
  struct Tile {
    double rows, cols, reaches;
  };
  static constexpr Tile all[] = {{128, 256, 1}, {128, 128, 0.8}, {64, 128, 0.6}, {64, 64, 0.4}};
  double best = 0;
  for (const Tile& tile : all) {
    const double tiles = std::ceil(rows / tile.rows) * std::ceil(cols / tile.cols);
    const double waves = std::ceil(tiles / rates.multiprocessors) * rates.multiprocessors;
    best = std::max(best, tile.reaches * tiles / waves);
  }
  return best;
}

/// D [m, n] of an inner dimension k.
struct Shape {
  double m = 0, n = 0, k = 0;
};

Kernel product(const Shape& s, double operand_bytes, double result_bytes, double rate, const Rates& rates) {
  return {.flops = 2 * s.m * s.n * s.k,
          .bytes = operand_bytes * (s.m * s.k + s.n * s.k) + result_bytes * s.m * s.n,
          .rate = rate,
          .filling = filling(s.m, s.n, rates)};
}

struct Linear {
  const char* name;
  double rows, cols;  ///< of the weight
};

std::vector<Linear> linears(const model::Architecture& a) {
  const auto h = static_cast<double>(a.hidden), i = static_cast<double>(a.intermediate);
  return {{"qkv", static_cast<double>(a.heads.qkv_width()), h},
          {"output", h, static_cast<double>(a.q_width())},
          {"gate_up", 2 * i, h},
          {"down", h, i}};
}

/// Seconds of the three products of a linear layer.
struct Three {
  double forward = 0, dgrad = 0, wgrad = 0;
  double sum() const { return forward + dgrad + wgrad; }
};

Three products(const Linear& l, double tokens, bool fp8, const precision::Recipe& recipe,
               const Rates& rates) {
  const double compute_bytes = recipe.compute == DType::bf16 ? 2 : 4;
  const double rate = fp8 ? rates.fp8 : recipe.compute == DType::bf16 ? rates.bf16 : rates.fp32;
  const double operand = fp8 ? 1 : compute_bytes;
  const auto seconds = [&](const Shape& shape, double result) {
    return seconds_of(product(shape, operand, result, rate, rates), rates) + (fp8 ? rates.fp8_more : 0);
  };
  return {seconds({tokens, l.rows, l.cols}, compute_bytes), seconds({tokens, l.cols, l.rows}, compute_bytes),
          seconds({l.rows, l.cols, tokens}, 4)};
}

/// Collects rows of the same name.
class Rows {
 public:
  Rows(const Rates& rates, double times) : rates_(rates), times_(times) {}
  /// `calls` times what `k` does, in each of the micro-batches (or as often as `times` says).
  void add(const std::string& name, const Kernel& k, double calls) {
    add(name, seconds_of(k, rates_), k, calls);
  }
  void add(const std::string& name, double seconds, const Kernel& k, double calls) {
    const auto found = std::ranges::find(time_.rows, name, &TimeRow::name);
    TimeRow& row = found != time_.rows.end() ? *found : time_.rows.emplace_back(TimeRow{.name = name});
    row.seconds += seconds * calls * times_;
    row.flops += k.flops * calls * times_;
    row.bytes += k.bytes * calls * times_;
    time_.seconds += seconds * calls * times_;
    if (name.starts_with("recompute")) time_.recompute_seconds += seconds * calls * times_;
  }
  void times(double times) { times_ = times; }
  Time take() { return std::move(time_); }

 private:
  const Rates& rates_;
  double times_;
  Time time_;
};

/// Bytes that quantisation adds for each element of an operand: fused into what makes the matrix, two copies
/// of a byte are written; unfused, the matrix is read again.
double quantise_bytes(const precision::Recipe& recipe) {
  const double compute = recipe.compute == DType::bf16 ? 2 : 4;
  return recipe.kind == precision::RecipeKind::delayed ? 2 : 2 + compute;
}

void add_block(Rows& rows, const Work& w, const Rates& rates) {
  const model::Architecture& a = w.architecture;
  const auto t = static_cast<double>(w.tokens), layers = static_cast<double>(a.layers);
  const auto h = static_cast<double>(a.hidden), i = static_cast<double>(a.intermediate);
  const double e = w.recipe.compute == DType::bf16 ? 2 : 4;
  const auto q = static_cast<double>(a.q_width()), wide = static_cast<double>(a.heads.qkv_width());
  const bool fp8 = w.recipe.fp8();
  std::vector<Three> three;
  for (const Linear& l : linears(a)) {
    const Three s = products(l, t, fp8, w.recipe, rates);
    const Kernel one{.flops = 2 * t * l.rows * l.cols};
    rows.add("forward products", s.forward, one, layers);
    rows.add("dgrad products", s.dgrad, one, layers);
    rows.add("wgrad products", s.wgrad, one, layers);
    three.push_back(s);
  }
  // Half of the scores are masked away; backward makes five products of forward's two.
  const double window = static_cast<double>(std::min(w.length, w.tokens));
  const double scores = 2 * t * window * q;
  const double scale = w.recipe.compute == DType::bf16 ? 1 : rates.fp32 / rates.bf16;
  rows.add("attention",
           {.flops = scores, .bytes = e * t * (wide + q), .rate = rates.attention_forward * scale}, layers);
  rows.add(
      "attention",
      {.flops = 2.5 * scores, .bytes = e * t * (2 * wide + 2 * q), .rate = rates.attention_backward * scale},
      layers);
  // Norms read the stream and what is added to it, and write the stream and their output; backward likewise.
  const Kernel norm{.bytes = 4 * e * t * h};
  const double norms = a.sublayer_norms ? 3 : 2;
  const double rotated =
      t * e * 2 * static_cast<double>((a.heads.q_heads + a.heads.kv_heads) * a.heads.head_dim);
  rows.add("norms", norm, 2 * norms * layers);
  rows.add("rotary embedding", {.bytes = rotated}, 2 * layers);
  rows.add("activation", {.bytes = 3 * e * t * i}, layers);
  rows.add("activation", {.bytes = 5 * e * t * i}, layers);
  if (fp8) {
    for (const Linear& l : linears(a)) {
      rows.add("quantisation", {.bytes = quantise_bytes(w.recipe) * t * l.cols}, layers);
      rows.add("quantisation", {.bytes = quantise_bytes(w.recipe) * t * l.rows}, layers);
    }
  }
  if (fp8 && w.transposes_at_use) {
    for (const Linear& l : linears(a)) rows.add("transposed weights", {.bytes = 2 * l.rows * l.cols}, layers);
  }
  if (w.recompute == Recompute::none) return;
  rows.add("recompute: norms, activation", norm, 2 * layers);
  rows.add("recompute: norms, activation", {.bytes = 3 * e * t * i}, layers);
  if (w.recompute == Recompute::norms) return;
  if (w.recompute == Recompute::qkv) rows.add("recompute: norms, activation", norm, layers);
  rows.add("recompute: rotary embedding", {.bytes = rotated}, layers);
  rows.add("recompute: products", three[0].forward, {.flops = 2 * t * wide * h}, layers);
  if (w.recompute == Recompute::qkv) return;
  for (std::size_t l : {1u, 2u}) rows.add("recompute: products", three[l].forward, {}, layers);
  rows.add("recompute: attention",
           {.flops = scores, .bytes = e * t * (wide + q), .rate = rates.attention_forward * scale}, layers);
}

void add_head(Rows& rows, const Work& w, const Rates& rates) {
  const auto t = static_cast<double>(w.tokens), h = static_cast<double>(w.architecture.hidden);
  const auto v = static_cast<double>(w.architecture.vocabulary);
  const double e = w.recipe.compute == DType::bf16 ? 2 : 4;
  const Three s = products({"head", v, h}, t, false, w.recipe, rates);
  rows.add("head", s.sum(), {.flops = 6 * t * v * h}, 1);
  // The loss reads the logits twice and writes their gradient over them.
  rows.add("head", {.bytes = 3 * e * t * v}, 1);
  rows.add("embedding", {.bytes = 2 * e * t * h}, 2);
}

}  // namespace

Time time_of(const Work& work, const Rates& rates) {
  Rows rows(rates, static_cast<double>(work.micro_batches));
  add_block(rows, work, rates);
  add_head(rows, work, rates);
  rows.times(1);
  rows.add("optimizer", {.bytes = work.optimizer_bytes}, 1);
  Time time = rows.take();
  std::ranges::stable_sort(time.rows,
                           [](const TimeRow& a, const TimeRow& b) { return a.seconds > b.seconds; });
  return time;
}

std::span<const Link> links() {
  // Copies from one of two H200 into the memory of the other one reached 368 GB/s with 64 MiB; copies to and
  // from the host's memory over PCIe 5.0 55 GB/s. Networks by their names.
  static constexpr std::array all{Link{"NVLink", 370e9, false},    Link{"PCIe", 55e9, false},
                                  Link{"400 Gbit/s", 50e9, true},  Link{"100 Gbit/s", 12.5e9, true},
                                  Link{"10 Gbit/s", 1.25e9, true}, Link{"1 Gbit/s", 0.125e9, true}};
  return all;
}

double message_seconds(double bytes, const Link& link, int ranks) {
  return bytes * (link.between_hosts ? ranks : 1) / link.bytes_per_second;
}

namespace {

/// Kernels that FP8 adds to those of a linear layer in a micro-batch. With delayed scaling most copies are
/// written by whoever makes the matrix; a norm's transposed copy is turned by a kernel of its own (the inputs
/// of qkv and gate_up, the gradients of output and down), and attention's output is cast by one. Otherwise
/// the input and the gradient each have their scale made and are cast.
int added_kernels(const std::string& linear, const precision::Recipe& recipe) {
  if (recipe.kind != precision::RecipeKind::delayed) return 4;
  return linear == "output" ? 2 : 1;
}

/// Making the copies of the weight, shared out among the micro-batches; the transposed one is made in each if
/// it is not kept.
double weight_copies(const Linear& l, const Work& work, const Rates& rates) {
  const double each = l.rows * l.cols / rates.bytes;
  const double once = (6 * each + rates.launch) / static_cast<double>(work.micro_batches);
  return once + (work.transposes_at_use ? 2 * each + rates.launch : 0);
}

}  // namespace

std::vector<Fp8Balance> fp8_balance(const Work& work, const Rates& rates) {
  std::vector<Fp8Balance> all;
  if (!work.recipe.fp8()) return all;
  const auto t = static_cast<double>(work.tokens);
  for (const Linear& l : linears(work.architecture)) {
    const double plain = products(l, t, false, work.recipe, rates).sum();
    const double fast = products(l, t, true, work.recipe, rates).sum();
    const double bytes = quantise_bytes(work.recipe) * t * (l.rows + l.cols);
    all.push_back({.name = l.name,
                   .rows = static_cast<std::int64_t>(l.rows),
                   .cols = static_cast<std::int64_t>(l.cols),
                   .gain = plain - fast,
                   .cost = bytes / rates.bytes + added_kernels(l.name, work.recipe) * rates.launch +
                           weight_copies(l, work, rates)});
  }
  return all;
}

namespace {

/// What FP8 gains and costs in a layer, of all its linear layers.
struct LayerBalance {
  double gain = 0, cost = 0;
};

LayerBalance sum_of(const std::vector<Fp8Balance>& balance) {
  LayerBalance sum;
  for (const Fp8Balance& b : balance) sum.gain += b.gain, sum.cost += b.cost;
  return sum;
}

std::string microseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", 1e6 * seconds);
  return text.data();
}

/// The least tokens of a micro-batch with which FP8 pays, up to a power of two; 0: none was found.
std::int64_t tokens_to_pay(Work work, const Rates& rates) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  for (std::int64_t tokens = 16; tokens <= kMost; tokens *= 2) {
    work.tokens = tokens;
    const LayerBalance sum = sum_of(fp8_balance(work, rates));
    if (sum.gain > sum.cost) return tokens;
  }
  return 0;
}

}  // namespace

std::string fp8_warning(const Work& work, const Rates& rates) {
  const std::vector<Fp8Balance> balance = fp8_balance(work, rates);
  std::string names;
  for (const Fp8Balance& b : balance) {
    if (b.pays()) continue;
    names += (names.empty() ? "" : ", ") + b.name + " [" + std::to_string(b.rows) + ", " +
             std::to_string(b.cols) + "]";
  }
  if (names.empty()) return {};
  const LayerBalance sum = sum_of(balance);
  const std::string figures = "with " + with_commas(work.tokens) + " tokens a micro-batch it saves " +
                              microseconds(sum.gain) +
                              " microseconds of each layer's products, and its copies cost " +
                              microseconds(sum.cost) + " (estimated for an H200)";
  if (sum.gain > sum.cost) return "FP8 pays, but not in " + names + ": " + figures;
  const std::int64_t enough = tokens_to_pay(work, rates);
  return "FP8 does not pay here: " + figures + "; fp8: false is faster" +
         (enough > 0 ? ", and FP8 pays from about " + with_commas(enough) + " tokens on" : "");
}

}  // namespace octet::plan
