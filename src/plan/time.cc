#include "octet/plan/time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "octet/base/strings.h"
#include "octet/model/layout.h"
#include "octet/model/work.h"

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

/// Returns the share of the peak rate that a GEMM of this size reaches, with the best tile size. Large tiles
/// reach the peak. Small tiles occupy more multiprocessors for small results, but read operands more often.
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

double compute_bytes(const precision::Recipe& recipe) {
  return recipe.compute == DType::bf16 ? 2 : 4;
}

/// Returns the seconds of a GEMM. `fp8`: its operands are FP8.
double gemm_seconds(const model::Operation& o, bool fp8, const precision::Recipe& recipe,
                    const Rates& rates) {
  const double compute = compute_bytes(recipe), operand = fp8 ? 1 : compute;
  // Gradients of weights are written in fp32.
  const double result = o.gemm_kind == ops::GemmKind::wgrad ? 4 : compute;
  const auto m = static_cast<double>(o.m), n = static_cast<double>(o.n), k = static_cast<double>(o.k);
  const Kernel kernel{.flops = o.flops,
                      .bytes = operand * (m * k + n * k) + result * m * n,
                      .rate = fp8                             ? rates.fp8
                              : recipe.compute == DType::bf16 ? rates.bf16
                                                              : rates.fp32,
                      .filling = filling(m, n, rates)};
  return seconds_of(kernel, rates) + (fp8 ? rates.fp8_more : 0);
}

/// Adds up times by the name of their row.
class Rows {
 public:
  Rows(const Rates& rates, double times) : rates_(rates), times_(times) {}
  /// Adds the time of `calls` calls of kernel `k`, multiplied by a factor. times() sets the factor. At first
  /// it is the number of micro-batches.
  void add(const std::string& name, const Kernel& k, double calls) {
    add(name, seconds_of(k, rates_), calls);
  }
  void add(const std::string& name, double seconds, double calls) {
    const auto found = std::ranges::find(time_.rows, name, &TimeRow::name);
    TimeRow& row = found != time_.rows.end() ? *found : time_.rows.emplace_back(TimeRow{.name = name});
    row.seconds += seconds * calls * times_;
    time_.seconds += seconds * calls * times_;
    if (name.starts_with("recompute")) time_.recompute_seconds += seconds * calls * times_;
    if (pass_ != nullptr) *pass_ += seconds * calls;
  }
  void times(double times) { times_ = times; }
  /// Selects the pass of a micro-batch to which the next times are added.
  void in_forward() { pass_ = &time_.forward_seconds; }
  void in_backward() { pass_ = &time_.backward_seconds; }
  void in_neither() { pass_ = nullptr; }
  Time take() { return std::move(time_); }

 private:
  const Rates& rates_;
  double times_;
  Time time_;
  double* pass_ = nullptr;
};

/// Returns the bytes that quantisation moves per element of an operand. With delayed scaling, the producer
/// writes two copies of one byte each. With other recipes, a separate kernel also reads the matrix again.
double quantise_bytes(const precision::Recipe& recipe) {
  const double compute = recipe.compute == DType::bf16 ? 2 : 4;
  return recipe.kind == precision::RecipeKind::delayed ? 2 : 2 + compute;
}

/// Names of the rows of a kind of operation: in forward, in backward, and recomputed in backward.
struct RowNames {
  std::string forward, backward, again;
};

RowNames names_of(const model::Operation& o) {
  using Kind = model::OperationKind;
  switch (o.kind) {
    case Kind::gemm:
      if (o.layer.name == "head") return {"head", "head", ""};
      return {"forward GEMMs", o.gemm_kind == ops::GemmKind::dgrad ? "dgrad GEMMs" : "wgrad GEMMs",
              "recompute: GEMMs"};
    case Kind::attention:
      return {"attention", "attention", "recompute: attention"};
    case Kind::norm:
      return {"norms", "norms", "recompute: norms, activation"};
    case Kind::rotary:
      return {"rotary embedding", "rotary embedding", "recompute: rotary embedding"};
    case Kind::activation:
      return {"activation", "activation", "recompute: norms, activation"};
    case Kind::adapters:
      return {"adapters", "adapters", "recompute: adapters"};
    case Kind::embedding:
      return {"embedding", "embedding", ""};
    case Kind::loss:
      break;
  }
  return {"head", "head", ""};
}

/// Returns the kernel of an operation that is not a GEMM.
Kernel kernel_of(const model::Operation& o, const Work& w, const Rates& rates) {
  Kernel kernel{.flops = o.flops, .bytes = compute_bytes(w.recipe) * o.values};
  if (o.kind != model::OperationKind::attention) return kernel;
  const double scale = w.recipe.compute == DType::bf16 ? 1 : rates.fp32 / rates.bf16;
  kernel.rate = scale * (o.backward ? rates.attention_backward : rates.attention_forward);
  return kernel;
}

void add_operation(Rows& rows, const model::Operation& o, const Work& w, const Rates& rates) {
  const RowNames names = names_of(o);
  const bool is_gemm = o.kind == model::OperationKind::gemm;
  const double seconds = is_gemm ? gemm_seconds(o, w.recipe.fp8() && o.layer.fp8, w.recipe, rates)
                                 : seconds_of(kernel_of(o, w, rates), rates);
  o.backward ? rows.in_backward() : rows.in_forward();
  rows.add(o.backward ? names.backward : names.forward, seconds, 1);
  const int again = o.again[static_cast<std::size_t>(w.recompute)];
  rows.in_backward();
  if (again > 0) rows.add(names.again, seconds, again);
}

/// Adds the FP8 copies of the linear layers.
void add_copies(Rows& rows, const Work& w) {
  if (!w.recipe.fp8()) return;
  const double each = quantise_bytes(w.recipe) * static_cast<double>(w.tokens);
  for (const model::LinearLayer& l : model::linear_layers(w.architecture)) {
    if (!l.fp8) continue;
    const auto out = static_cast<double>(l.rows), in = static_cast<double>(l.cols);
    const auto layers = static_cast<double>(l.layers), taken = static_cast<double>(l.taken);
    rows.in_forward();
    rows.add("quantisation", {.bytes = each * taken * in}, layers);
    rows.in_backward();
    rows.add("quantisation", {.bytes = each * taken * out}, layers);
    const double weights = out * in * static_cast<double>(l.experts);
    if (w.transposes_at_use) rows.add("transposed weights", {.bytes = 2 * weights}, layers);
  }
}

/// Returns the share of all parameters that is stored in FP8.
double fp8_share(const model::Architecture& architecture) {
  double fp8 = 0;
  for (const model::LinearLayer& l : model::linear_layers(architecture)) {
    if (l.fp8) fp8 += static_cast<double>(l.rows) * static_cast<double>(l.cols * l.experts * l.layers);
  }
  const auto all = static_cast<double>(model::build_layout(architecture).parameter_count());
  return std::min(1.0, fp8 / all);
}

}  // namespace

double bytes_from_host(const Work& work) {
  if (work.host_master_bytes == 0 || !work.recipe.fp8() || work.recipe.blocks()) return work.host_state_bytes;
  // With delayed scaling, the masters are read once more, for the cast. With other recipes they are read
  // twice more, first for the scales.
  const int again = work.recipe.kind == precision::RecipeKind::delayed ? 1 : 2;
  return work.host_state_bytes + again * fp8_share(work.architecture) * work.host_master_bytes;
}

Time time_of(const Work& work, const Rates& rates) {
  Rows rows(rates, static_cast<double>(work.micro_batches));
  for (const model::Operation& operation : model::operations(work.architecture, work.tokens, work.length)) {
    add_operation(rows, operation, work, rates);
  }
  add_copies(rows, work);
  rows.in_neither();
  rows.times(1);
  rows.add("optimizer", {.bytes = work.optimizer_bytes}, 1);
  if (work.host_state_bytes > 0) {
    rows.add("optimizer's state, over " + std::string(rates.host_link), bytes_from_host(work) / rates.host,
             1);
  }
  Time time = rows.take();
  std::ranges::stable_sort(time.rows,
                           [](const TimeRow& a, const TimeRow& b) { return a.seconds > b.seconds; });
  return time;
}

std::span<const Link> links() {
  // Measured: copies of 64 MiB between two H200 reached 368 GB/s. Copies between an H200 and the host over
  // PCIe 5.0 reached 55 GB/s. Networks have their nominal rates. 3,200 Gbit/s: eight GPUs with an adapter of
  // 400 Gbit/s each.
  static constexpr std::array all{Link{"NVLink", 370e9, false},     Link{"PCIe", 55e9, false},
                                  Link{"3200 Gbit/s", 400e9, true}, Link{"400 Gbit/s", 50e9, true},
                                  Link{"100 Gbit/s", 12.5e9, true}, Link{"10 Gbit/s", 1.25e9, true},
                                  Link{"1 Gbit/s", 0.125e9, true}};
  return all;
}

double message_seconds(double bytes, const Link& link, int ranks) {
  return bytes * (link.between_hosts ? ranks : 1) / link.bytes_per_second;
}

namespace {

/// Returns the number of kernels that FP8 adds to a linear layer in a micro-batch. With delayed scaling, the
/// producer of a matrix writes most copies. A separate kernel transposes the copy of a norm (inputs of qkv
/// and gate_up, gradients of output and down), and one casts the output of attention. With other recipes, the
/// input and the gradient each need a kernel for the scale and one for the cast.
int added_kernels(const model::LinearLayer& layer, const precision::Recipe& recipe) {
  if (recipe.kind != precision::RecipeKind::delayed) return 4;
  return layer.cast_alone ? 2 : 1;
}

/// Returns the seconds per micro-batch for the FP8 copies of a weight. They are made once per step. The
/// transposed copy is made in each micro-batch if it is not kept.
double weight_copies(const model::LinearLayer& l, const Work& work, const Rates& rates) {
  const double each = static_cast<double>(l.rows * l.cols * l.experts) / rates.bytes;
  const double once = (6 * each + rates.launch) / static_cast<double>(work.micro_batches);
  return once + (work.transposes_at_use ? 2 * each + rates.launch : 0);
}

}  // namespace

std::vector<Fp8Balance> fp8_balance(const Work& work, const Rates& rates) {
  std::vector<Fp8Balance> all;
  if (!work.recipe.fp8()) return all;
  for (const model::LinearLayer& l : model::linear_layers(work.architecture)) {
    if (!l.fp8) continue;
    double gain = 0;
    for (const model::Operation& o : model::gemms_of(l, work.tokens * l.taken)) {
      gain += gemm_seconds(o, false, work.recipe, rates) - gemm_seconds(o, true, work.recipe, rates);
    }
    const double bytes = quantise_bytes(work.recipe) * static_cast<double>(work.tokens * l.taken) *
                         static_cast<double>(l.rows + l.cols);
    all.push_back({.name = l.name,
                   .rows = l.rows,
                   .cols = l.cols,
                   .gain = gain,
                   .cost = bytes / rates.bytes + added_kernels(l, work.recipe) * rates.launch +
                           weight_copies(l, work, rates)});
  }
  return all;
}

namespace {

/// Gain and cost of FP8 in a block: the sum over its linear layers.
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

/// Returns the smallest power of two of tokens per micro-batch at which FP8 pays; 0: none was found.
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
  const std::string gemms =
      sum.gain >= 0 ? " it saves " + microseconds(sum.gain) + " microseconds of each layer's GEMMs"
                    : " it makes each layer's GEMMs " + microseconds(-sum.gain) + " microseconds slower";
  const std::string figures = "with " + with_commas(work.tokens) + " tokens per micro-batch" + gemms +
                              ", and its quantised copies cost " + microseconds(sum.cost) +
                              " (estimated for " + rates.card + ")";
  if (sum.gain > sum.cost) return "FP8 pays, but not in " + names + ": " + figures;
  const std::int64_t enough = tokens_to_pay(work, rates);
  return "FP8 does not pay here: " + figures + "; fp8: false is faster" +
         (enough > 0 ? ", and FP8 pays from about " + with_commas(enough) + " tokens on" : "");
}

double exposed_seconds(const Sending& sending, const Time& time, std::int64_t micro_batches, const Link& link,
                       int ranks) {
  const auto under_way = [&](double bytes) { return message_seconds(bytes, link, ranks); };
  const auto left = [](double messages, double pass) { return std::max(0.0, messages - pass); };
  const auto passes = static_cast<double>(micro_batches);
  const double parameters = under_way(sending.backward) / passes;
  const double sums = under_way(sending.sums) / sending.sum_passes;
  const double forward = under_way(sending.forward) / sending.forward_passes;
  // Parameters and sums share the link in backward passes that also send sums.
  return sending.sum_passes * left(parameters + sums, time.backward_seconds) +
         (passes - sending.sum_passes) * left(parameters, time.backward_seconds) +
         sending.forward_passes * left(forward, time.forward_seconds) + under_way(sending.alone);
}

}  // namespace octet::plan
