#include "octet/train/step_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "logs/step_report.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/comm/serialize.h"
#include "octet/config/derive.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"
#include "octet/report/number.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"
#include "octet/train/rehearsal.h"
#include "step_loop.h"

namespace octet::train {
namespace {

/// The sequences of a micro-batch.
struct BatchShape {
  std::int64_t rows = 0, length = 0, vocabulary = 0;
  double label_share = 1;
};

runtime::HostBatch random_batch(const BatchShape& shape, std::uint64_t seed) {
  runtime::HostBatch batch;
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
    runtime::add_document(batch, ids, labels);
    ++batch.items;
  }
  return batch;
}

/// Returns the kind of work for a name in the profile. GEMMs, and ops of the head and the optimizer, keep
/// their names.
std::string kind_of(const std::string& name) {
  struct Rule {
    const char* part;
    const char* kind;
  };
  static constexpr Rule rules[] = {{"optimizer/", "optimizer"},
                                   {"delta_rule_backward", "delta rule backward"},
                                   {"delta_rule", "delta rule forward"},
                                   {"delta_inputs", "delta rule inputs"},
                                   {"gated_norm", "norms"},
                                   {"output_gate", "output gates"},
                                   {"latent_heads", "latent heads"},
                                   {"head_values", "latent heads"},
                                   {"attention_backward", "attention backward"},
                                   {"attention", "attention forward"},
                                   {"rms_norm", "norms"},
                                   {"layer_norm", "norms"},
                                   {"rope", "rotary embedding"},
                                   {"activation", "activation"},
                                   {"embedding", "embedding"},
                                   {"quantize", "quantisation"},
                                   {"transpose", "quantisation"},
                                   {"nf4_", "quantisation"},
                                   {"dropout", "dropout"},
                                   {"amax", "quantisation"},
                                   {"_scale", "quantisation"},
                                   {"product", nullptr},
                                   {"head/", "head: loss and rows"},
                                   {"bias_backward", "bias gradients"},
                                   {"experts/", "routing of tokens"},
                                   {"router/", "routing of tokens"}};
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

double loss_of(const store::StepResult& step) {
  return step.loss_sum / static_cast<double>(std::max<std::int64_t>(1, step.label_tokens));
}

/// A benchmark, from reading the configuration to its results.
class Bench {
 public:
  Bench(runtime::Session& session, const config::Config& config, const BenchOptions& options)
      : session_(session),
        config_(config),
        options_(options),
        job_(session.job()),
        shape_{.length = config.cutoff_len, .label_share = options.label_share} {}

  BenchResult run() {
    prepare();
    take_steps();
    tell_messages();
    tell_speed();
    tell_engine();
    return std::move(result_);
  }

 private:
  void prepare();
  std::vector<runtime::HostBatch> batches_of(std::int64_t step) const;
  void take_steps();
  void require_finite(const store::StepResult& result, std::int64_t step);
  void tell_messages();
  void tell_speed();
  void tell_engine();

  runtime::Session& session_;
  const config::Config& config_;
  const BenchOptions& options_;
  comm::Job& job_;
  BatchShape shape_;
  config::Batch batch_;
  std::unique_ptr<Engine> engine_;
  std::vector<double> seconds_;  ///< of the timed steps
  BenchResult result_;
};

void Bench::prepare() {
  const auto start = Clock::now();
  runtime::InstanceOptions how;
  job_.together([&] {
    setup::require_no_preferences(config_, "trainer bench");
    const model::Architecture architecture = model::find_shape(options_.model);
    batch_ = config::resolve_batch(config_, job_.size());
    shape_.rows = batch_.micro, shape_.vocabulary = architecture.vocabulary;
    how = setup::instance_options(config_, architecture, shape_.rows * shape_.length, shape_.length,
                                  shape_.rows);
    how.max_micro_batches = static_cast<int>(batch_.accumulation);
  });
  how = with_fitting_level(how, config_, job_, session_.device());
  job_.together([&] { require_room(how, job_.place(), session_.device()); });
  job_.together([&] { engine_ = std::make_unique<Engine>(session_.device(), job_, session_.data(), how); });
  engine_->initialise(static_cast<std::uint64_t>(config_.seed));
  engine_->store().synchronize(engine_->compute());
  rehearse(job_, session_.device(), *engine_);
  result_.setup_seconds = seconds_since(start);
  result_.recompute = plan::name_of(how.transformer.recompute);
  result_.transposes_at_use = how.store.transposed == store::TransposedWeights::at_use;
}

std::vector<runtime::HostBatch> Bench::batches_of(std::int64_t step) const {
  std::vector<runtime::HostBatch> batches;
  for (std::int64_t i = 0; i < batch_.accumulation; ++i) {
    const std::int64_t number = (step * batch_.accumulation + i) * job_.size() + job_.rank();
    batches.push_back(random_batch(shape_, static_cast<std::uint64_t>(config_.seed + number)));
  }
  return batches;
}

void Bench::require_finite(const store::StepResult& result, std::int64_t step) {
  job_.together([&] {
    if (std::isfinite(loss_of(result)) && !result.skipped) return;
    throw Error({.what = "the loss or the gradient is not finite",
                 .found = "loss " + report::python_number(loss_of(result), 6) + ", gradient norm " +
                          report::python_number(result.grad_norm, 4),
                 .where = "step " + std::to_string(step + 1),
                 .fix = "lower learning_rate; if that does not help, report this as a bug"});
  });
}

void Bench::take_steps() {
  std::optional<StepProfile> profile;
  if (options_.profile) profile.emplace(engine_->compute(), kind_of);
  const std::int64_t steps = options_.warmup + options_.steps;
  std::vector<std::vector<runtime::HostBatch>> all;
  for (std::int64_t step = 0; step < steps; ++step) all.push_back(batches_of(step));
  const optim::Schedule schedule({.name = "constant", .learning_rate = config_.learning_rate});
  StepLoop loop(*engine_, schedule, batch_.accumulation);
  const bool watched = options_.logged && config_.fp8;
  job_.barrier();
  StepWatch watch([this] { return engine_->instance().seconds_busy(); }, engine_->compute());
  // A step is timed from the end of the previous step. The update of that step may still be running.
  auto begin = Clock::now();
  for (std::int64_t step = 0; step < steps; ++step) {
    const bool timed = step >= options_.warmup;
    if (step == options_.warmup) {
      session_.take_traffic();
      engine_->instance().take_traffic();
      watch.take();
    }
    std::size_t number = 0;
    engine_->watch_casts({.next = watched, .after = watched});
    const store::StepResult last =
        loop.take([&](bool) { return std::move(all[static_cast<std::size_t>(step)][number++]); });
    if (watched) result_.fp8 = cast_fields(casts_of_all(job_, engine_->cast_rows())).worst;
    const auto end = Clock::now();
    const double passed = std::chrono::duration<double>(end - std::exchange(begin, end)).count();
    if (timed) {
      seconds_.push_back(passed);
      const MessageTime messages = watch.take();
      result_.comm_seconds += messages.under_way / static_cast<double>(options_.steps);
      result_.exposed_seconds += messages.exposed / static_cast<double>(options_.steps);
    }
    if (profile) profile->step(timed, passed);
    if (step == 0) result_.first_loss = loss_of(last);
    result_.last_loss = loss_of(last);
    if (session_.prints()) {
      log::info("step " + std::to_string(step + 1) + (timed ? "" : " (warm-up)") + ": " +
                report::python_number(passed, 4) + " s, loss " + report::python_number(loss_of(last), 6) +
                ", gradient norm " + report::python_number(last.grad_norm, 4));
    }
    engine_->instance().check_gemms();
    require_finite(last, step);
  }
  if (profile) result_.profile = profile->rows();
}

void Bench::tell_messages() {
  const std::vector<double> exposed = comm::all_gather_value(job_, result_.exposed_seconds);
  result_.least_exposed_seconds = std::ranges::min(exposed);
  result_.most_exposed_seconds = std::ranges::max(exposed);
  std::vector<comm::Traffic> traffic = session_.take_traffic();
  std::ranges::move(engine_->instance().take_traffic(), std::back_inserter(traffic));
  for (const comm::Traffic& kind : traffic) {
    result_.comm_bytes += static_cast<double>(kind.bytes_sent) / static_cast<double>(options_.steps);
  }
}

void Bench::tell_speed() {
  result_.tokens = shape_.rows * shape_.length * batch_.accumulation * batch_.world;
  result_.median_seconds = median(seconds_);
  result_.least_seconds = std::ranges::min(seconds_);
  result_.most_seconds = std::ranges::max(seconds_);
  result_.tokens_per_second = static_cast<double>(result_.tokens) / result_.median_seconds;
  const double flops =
      model::flops_per_token(engine_->options().architecture, static_cast<double>(shape_.length));
  result_.flops_per_second = flops * result_.tokens_per_second / static_cast<double>(batch_.world);
  if (session_.device().traits().has_known_rates) {
    result_.utilisation = report::flop_utilisation(flops, result_.tokens_per_second, batch_.world);
  }
}

void Bench::tell_engine() {
  result_.parameters = engine_->instance().parameter_count();
  result_.reserved_bytes =
      static_cast<std::size_t>(job_.all_max(static_cast<std::int64_t>(engine_->arena().bytes())));
  result_.used_bytes = static_cast<std::size_t>(job_.all_max(memory_in_use(session_.device())));
  const precision::Audit audit = engine_->instance().audit_of_all();
  result_.audit = audit.summary();
  result_.gemms = audit.to_json();
}

}  // namespace

BenchResult bench(runtime::Session& session, const config::Config& config, const BenchOptions& options) {
  return Bench(session, config, options).run();
}

}  // namespace octet::train
