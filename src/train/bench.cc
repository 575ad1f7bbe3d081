#include "octet/train/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cast_log.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"
#include "octet/comm/serialize.h"
#include "octet/config/derive.h"
#include "octet/device/profile.h"
#include "octet/model/build.h"
#include "octet/model/shapes.h"
#include "octet/report/number.h"
#include "octet/report/throughput.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"
#include "octet/train/rehearsal.h"
#include "rank_log.h"
#include "step_watch.h"
#include "steps.h"

namespace octet::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Sequences of a micro-batch.
struct BatchShape {
  std::int64_t rows = 0, length = 0, vocabulary = 0;
  double label_share = 1;
};

feed::HostBatch random_batch(const BatchShape& shape, std::uint64_t seed) {
  feed::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(shape.length)), labels;
  const auto untrained =
      static_cast<std::int64_t>(std::llround((1 - shape.label_share) * static_cast<double>(shape.length)));
  std::uint64_t index = 0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int32_t& id : ids) {
      const auto bits = philox(seed, RandomUse::data, index++);
      id = static_cast<std::int32_t>(below(static_cast<std::uint64_t>(shape.vocabulary), bits[0], bits[1]));
    }
    labels = ids;
    std::fill_n(labels.begin(), std::min(untrained, shape.length - 1), -100);
    feed::add_document(batch, ids, labels);
    ++batch.items;
  }
  return batch;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The kind of work that a name of a profile counts to: products and what stands in head and optimizer keep
/// their names.
std::string kind_of(const std::string& name) {
  struct Rule {
    const char* part;
    const char* kind;
  };
  static constexpr Rule rules[] = {
      {"optimizer/", "optimizer"},        {"attention_backward", "attention backward"},
      {"attention", "attention forward"}, {"rms_norm", "norms"},
      {"rope", "rotary embedding"},       {"gated_activation", "activation"},
      {"embedding", "embedding"},         {"quantize", "quantisation"},
      {"transpose", "quantisation"},      {"amax", "quantisation"},
      {"_scale", "quantisation"},         {"product", nullptr},
      {"head/", "head: loss and rows"},   {"bias_backward", "bias gradients"}};
  const std::string again = name.starts_with("recompute/") ? "recompute: " : "";
  for (const Rule& rule : rules) {
    if (name.find(rule.part) == std::string::npos) continue;
    if (rule.kind != nullptr) return again + rule.kind;
    // "qkv/product forward" becomes "forward, qkv".
    const auto parts = split(name, '/');
    return again + parts.back().substr(sizeof("product")) + ", " + parts[parts.size() - 2];
  }
  return "copies and clearing";
}

/// Sums the kinds over steps.
class StepProfile {
 public:
  explicit StepProfile(Stream& stream) : profile_(stream) {}
  void step(bool counts, double seconds) {
    const auto rows = profile_.collect();
    if (!counts) return;
    ++steps_;
    double known = 0;
    for (const auto& [name, row] : rows) {
      BenchRow& sum = sums_[kind_of(name)];
      sum.seconds += row.seconds;
      sum.calls += static_cast<double>(row.calls);
      known += row.seconds;
    }
    sums_["waiting and gaps"].seconds += seconds - known;
  }
  std::vector<BenchRow> rows() const {
    std::vector<BenchRow> all;
    for (const auto& [kind, sum] : sums_) {
      all.push_back({.kind = kind, .seconds = sum.seconds / steps_, .calls = sum.calls / steps_});
    }
    std::ranges::sort(all, [](const BenchRow& a, const BenchRow& b) { return a.seconds > b.seconds; });
    return all;
  }

 private:
  Profile profile_;
  std::map<std::string, BenchRow> sums_;
  double steps_ = 0;
};

double loss_of(const store::StepResult& step) {
  return step.loss_sum / static_cast<double>(std::max<std::int64_t>(1, step.label_tokens));
}

}  // namespace

BenchResult bench(runtime::Session& session, const config::Config& config, const BenchOptions& options) {
  comm::Job& job = session.job();
  const auto start = Clock::now();
  BatchShape shape{.length = config.cutoff_len, .label_share = options.label_share};
  config::Batch batch;
  std::unique_ptr<Engine> engine;
  BenchResult result;
  EngineOptions how;
  job.together([&] {
    const model::Architecture architecture = model::find_shape(options.model);
    batch = config::resolve_batch(config, job.size());
    shape.rows = batch.micro, shape.vocabulary = architecture.vocabulary;
    how = engine_options(config, architecture, shape.rows * shape.length, shape.length, shape.rows);
    how.max_micro_batches = static_cast<int>(batch.accumulation);
  });
  how = with_fitting_level(how, config, job, session.device());
  job.together([&] { engine = std::make_unique<Engine>(session.device(), job, session.data(), how); });
  engine->initialise(static_cast<std::uint64_t>(config.seed));
  engine->store().synchronize(engine->compute());
  rehearse(job, session.device(), *engine);
  result.setup_seconds = seconds_since(start);

  std::optional<StepProfile> profile;
  if (options.profile) profile.emplace(engine->compute());
  std::vector<double> seconds;
  store::StepResult last;
  const auto batches_of = [&](std::int64_t step) {
    std::vector<feed::HostBatch> batches;
    for (std::int64_t i = 0; i < batch.accumulation; ++i) {
      const std::int64_t number = (step * batch.accumulation + i) * job.size() + job.rank();
      batches.push_back(random_batch(shape, static_cast<std::uint64_t>(config.seed + number)));
    }
    return batches;
  };
  std::vector<std::vector<feed::HostBatch>> all;
  for (std::int64_t step = 0; step < options.warmup + options.steps; ++step) all.push_back(batches_of(step));
  const optim::Schedule schedule({.name = "constant", .learning_rate = config.learning_rate});
  StepLoop loop(*engine, schedule, batch.accumulation);
  job.barrier();
  StepWatch watch(session.data(), engine->compute());
  // A step lasts from the end of the one before it: its update may still be going on then.
  auto begin = Clock::now();
  for (std::int64_t step = 0; step < options.warmup + options.steps; ++step) {
    const bool timed = step >= options.warmup;
    if (step == options.warmup) {
      session.take_traffic();
      watch.take();
    }
    std::size_t number = 0;
    const bool watched = options.logged && config.fp8;
    engine->watch_casts({.next = watched, .after = watched});
    last = loop.take([&](bool) { return std::move(all[static_cast<std::size_t>(step)][number++]); });
    if (watched) result.fp8 = cast_fields(casts_of_all(job, engine->cast_rows())).worst;
    const auto end = Clock::now();
    const double passed = std::chrono::duration<double>(end - std::exchange(begin, end)).count();
    if (timed) {
      seconds.push_back(passed);
      const MessageTime messages = watch.take();
      result.comm_seconds += messages.under_way / static_cast<double>(options.steps);
      result.exposed_seconds += messages.exposed / static_cast<double>(options.steps);
    }
    if (profile) profile->step(timed, passed);
    if (step == 0) result.first_loss = loss_of(last);
    if (session.prints()) {
      log::info("step " + std::to_string(step + 1) + (timed ? "" : " (warm-up)") + ": " +
                report::python_number(passed, 4) + " s, loss " + report::python_number(loss_of(last), 6) +
                ", gradient norm " + report::python_number(last.grad_norm, 4));
    }
    engine->check_products();
    job.together([&] {
      if (std::isfinite(loss_of(last)) && !last.skipped) return;
      throw Error({.what = "the loss or the gradient is not finite",
                   .found = "loss " + report::python_number(loss_of(last), 6) + ", gradient norm " +
                            report::python_number(last.grad_norm, 4),
                   .where = "step " + std::to_string(step + 1),
                   .fix = "lower learning_rate; if that does not help, report this as a bug"});
    });
  }
  const std::vector<double> exposed = comm::all_gather_value(job, result.exposed_seconds);
  result.least_exposed_seconds = std::ranges::min(exposed);
  result.most_exposed_seconds = std::ranges::max(exposed);

  if (profile) result.profile = profile->rows();
  for (const comm::Traffic& kind : session.take_traffic()) {
    result.comm_bytes += static_cast<double>(kind.bytes_sent) / static_cast<double>(options.steps);
  }
  result.recompute = plan::name_of(how.transformer.recompute);
  result.transposes_at_use = how.store.transposed == store::TransposedWeights::at_use;
  result.parameters = engine->store().layout().parameter_count();
  result.tokens = shape.rows * shape.length * batch.accumulation * batch.world;
  result.median_seconds = median(seconds);
  result.least_seconds = std::ranges::min(seconds);
  result.most_seconds = std::ranges::max(seconds);
  result.tokens_per_second = static_cast<double>(result.tokens) / result.median_seconds;
  const double flops =
      model::flops_per_token(engine->options().architecture, static_cast<double>(shape.length));
  result.flops_per_second = flops * result.tokens_per_second / static_cast<double>(batch.world);
  if (session.device().kind() == DeviceKind::cuda) {
    result.utilisation = report::flop_utilisation(flops, result.tokens_per_second, batch.world);
  }
  result.last_loss = loss_of(last);
  result.reserved_bytes =
      static_cast<std::size_t>(job.all_max(static_cast<std::int64_t>(engine->arena().bytes())));
  result.used_bytes = static_cast<std::size_t>(job.all_max(memory_in_use(session.device())));
  const precision::Audit audit = engine->audit_of_all();
  result.audit = audit.summary();
  result.products = audit.to_json();
  return result;
}

}  // namespace octet::train
