#include "octet/train/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "octet/base/random.h"
#include "octet/device/device.h"
#include "octet/ops/gemm.h"
#include "octet/runtime/log_softmax.h"

namespace octet::train {
namespace {

runtime::StagingOptions::Routed routed(const runtime::InstanceOptions& options) {
  if (!options.transformer.given_experts) return {};
  const model::Architecture& a = options.architecture;
  return {.blocks = std::ranges::count_if(a.blocks, &model::BlockShape::mixes_experts),
          .taken = a.experts.taken};
}

runtime::StagingOptions staging_options(const runtime::InstanceOptions& options) {
  return {.tokens = options.transformer.max_tokens,
          .labels = options.transformer.max_labels,
          .documents = options.max_documents,
          .length = options.transformer.max_length,
          .vocabulary = options.architecture.vocabulary,
          .token_unit = options.token_unit,
          .host_sets = options.max_micro_batches,
          .losses = options.store.strict,
          .names = options.architecture.tuning.drops() || options.transformer.embedding_noise > 0,
          .hits = options.transformer.counts_hits,
          .pairs = options.transformer.preference.has_value(),
          .judged = options.transformer.judgement.has_value(),
          .routed = routed(options),
          .teacher_ranks = options.transformer.teacher_loss ? options.transformer.teacher_loss->ranks : 0};
}

}  // namespace

Engine::Engine(Device& device, comm::Job& job, comm::Collectives& data,
               const runtime::InstanceOptions& options)
    : instance_(device, job, data, options),
      staging_(instance_.arena(), staging_options(instance_.options())) {
  if (job.size() > 1) measure_waits(compute());
  if (options.snapshot) snapshot_.emplace(arena(), "state/snapshot", state_places());
  if (options.memory_checkpoints) plan_memory_checkpoints();
}

// Plans two generations of this rank's part and, with several hosts, of a part of another host. They are
// files that outlive the process, so only a plan reserves them.
void Engine::plan_memory_checkpoints() {
  const Device& device = arena().device();
  std::size_t bytes = 0;
  const SnapshotSources places = state_places();
  for (const auto* slices : {&places.still, &places.moving, &places.host}) {
    for (const TensorSlice& slice : *slices)
      bytes += static_cast<std::size_t>(slice.elements()) * size_of(slice.dtype);
  }
  bytes *= job().place().nodes > 1 ? 4 : 2;
  const char* name = "state/memory checkpoints";
  if (device.planned_traits().has_host_link) return arena().expect_passing(name, bytes, MemoryKind::host);
  if (!device.traits().computes) arena().reserve(name, bytes);
}

std::vector<TensorSlice> Engine::activation_state() {
  precision::ScaleSet* scales = core().activation_scales();
  // Current scales are not state: every tensor computes a new scale.
  const bool learned = scales != nullptr && core().recipe().kind == precision::RecipeKind::delayed;
  return learned ? scales->state() : std::vector<TensorSlice>{};
}

SnapshotSources Engine::state_places() {
  return store().owned_places(job().rank() == 0 ? activation_state() : std::vector<TensorSlice>{});
}

std::vector<weights::TensorHeader> Engine::checkpoint_tensors() {
  std::map<std::string, weights::TensorHeader> by_name;
  for (TensorSlice& tensor : store().state_tensors(activation_state())) {
    by_name.try_emplace(tensor.name, weights::TensorHeader{tensor.name, tensor.dtype, tensor.shape});
  }
  std::vector<weights::TensorHeader> tensors;
  for (auto& [name, tensor] : by_name) tensors.push_back(std::move(tensor));
  return tensors;
}

std::vector<TensorSlice> Engine::take_snapshot() {
  store().synchronize(compute());
  return snapshot_->take(state_places());
}

namespace {

/// Returns documents of the planned lengths with varying ids. All tokens except the last of each document are
/// labels, up to the planned number of labels.
runtime::HostBatch largest_batch(const runtime::InstanceOptions& options) {
  const model::TransformerOptions& core = options.transformer;
  const std::int64_t most = core.max_labels > 0 ? core.max_labels : core.max_tokens;
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  const bool pairs = core.preference.has_value();
  const std::int64_t documents = pairs ? options.max_documents / 2 * 2 : options.max_documents;
  for (std::int64_t d = 0; d < documents && batch.tokens() < core.max_tokens; ++d) {
    const std::int64_t length = std::min(core.max_length, core.max_tokens - batch.tokens());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length)), labels;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto bits = philox(static_cast<std::uint64_t>(d), RandomUse::data, i);
      ids[i] =
          static_cast<std::int32_t>(bits[0] % static_cast<std::uint32_t>(options.architecture.vocabulary));
    }
    labels = ids;
    const auto left = static_cast<std::size_t>(most) - batch.targets.size();
    if (labels.size() > left)
      std::fill(labels.begin(), labels.end() - static_cast<std::ptrdiff_t>(left), -100);
    runtime::add_document(batch, ids, labels);
  }
  if (pairs) batch.pairs = batch.documents() / 2;
  if (core.judgement) {
    batch.judged = batch.documents();
    for (std::int64_t d = 0; d < batch.judged; ++d) batch.desirable.push_back(d % 2 == 0 ? 1 : 0);
  }
  if (core.teacher_loss) {
    const std::int64_t ranks = core.teacher_loss->ranks;
    for (std::size_t row = 0; row < batch.targets.size(); ++row) {
      for (std::int64_t k = 0; k < ranks; ++k) {
        batch.teacher_ids.push_back(static_cast<std::int32_t>(k));
        batch.teacher_logprobs.push_back(-std::log(static_cast<float>(ranks + 1)));
      }
      batch.teacher_rest.push_back(1.0f / static_cast<float>(ranks + 1));
    }
  }
  return batch;
}

}  // namespace

void Engine::rehearse() {
  if (options().transformer.max_tokens == 0) return;
  const precision::Audit before = audit();
  const std::unique_ptr<model::ParameterSource> source = store().rehearsal();
  if (options().transformer.judgement) staging_.set_point(compute(), 0);
  train_alone(*source, largest_batch(options()));
  core().take_expert_loads();  // its tokens belong to no step
  audit() = before;
}

void Engine::run_passes(model::ParameterSource& source, const model::MicroBatch& batch, double* loss_sum,
                        const model::LogitsHook& logits) {
  if (options().adapters_off_reference) core().score_references(source, compute(), batch);
  core().train(source, compute(), batch, loss_sum, logits);
}

void Engine::train_alone(model::ParameterSource& source, const runtime::HostBatch& batch) {
  run_passes(source, staging_.upload(compute(), batch, 0), staging_.loss_sum());
  // Clears state that the end of a micro-batch would consume.
  if (precision::ScaleSet* scales = core().activation_scales(); scales != nullptr) {
    instance_.device().zero(compute(), scales->amaxes(),
                            static_cast<std::size_t>(scales->count()) * sizeof(float));
  }
  compute().synchronize();
}

void Engine::compute_again(model::ParameterSource& source, const runtime::HostBatch& batch) {
  arena().seal();
  const precision::Audit before = audit();
  set_noise();
  train_alone(source, batch);
  audit() = before;
}

// A resumed run gets the same noise.
void Engine::set_noise() {
  staging_.set_noise(
      runtime::mixed(options().store.adamw.seed, static_cast<std::uint64_t>(store().optimizer_steps())));
}

void Engine::begin(int micro_batches) {
  arena().seal();
  terms_ = 0;
  staging_.clear_losses(compute(), staging_.losses());
  staging_.clear_figures(compute());
  store().begin_step(micro_batches);
  set_noise();
  if (precision::CastStatistics* casts = core().casts()) {
    watched_.next ? casts->watch(compute()) : casts->stop();
  }
  micro_batch_ = 0;
}

void Engine::micro_batch(const runtime::HostBatch& batch, const model::LogitsHook& logits) {
  store().begin_micro_batch(micro_batch_, compute(), core().activation_scales());
  if (batch.tokens() == 0 && options().expert_size == 1) {
    if (options().adapters_off_reference) store().pass_by(compute());
    store().contribute_nothing(compute());
  } else {
    run_passes(store(), staging_.upload(compute(), batch, static_cast<std::size_t>(micro_batch_)),
               staging_.loss_sum() + (staging_.losses() > 1 ? micro_batch_ : 0), logits);
  }
  terms_ += batch.terms();
  store().end_micro_batch(compute());
  ++micro_batch_;
}

store::StepResult Engine::finish(double learning_rate, bool update) {
  staging_.fetch_losses(compute(), staging_.losses());
  staging_.fetch_figures(compute());
  if (watched_.next) {  // casts of the weights before their update
    if (core().casts() != nullptr) core().casts()->collect(compute());
    store().collect_casts(compute());
  }
  store().watch_casts(watched_.after);
  if (snapshot_) snapshot_->fence(compute());  // later work changes the state
  store().finish({.learning_rate = learning_rate,
                  .label_tokens = terms_,
                  .loss_sum = staging_.loss_sum(),
                  .update = update},
                 compute());
  compute().synchronize();
  if (std::exchange(chooses_, false)) ops::set_gemm_choosing(instance_.device(), false);
  if (core().casts() != nullptr) core().casts()->stop();
  return store().collect();
}

std::vector<precision::CastRow> Engine::cast_rows() const {
  std::vector<precision::CastRow> rows = instance_.core().cast_rows();
  const std::vector<precision::CastRow> weights = instance_.store().cast_rows();
  rows.insert(rows.end(), weights.begin(), weights.end());
  return rows;
}

RankLoss Engine::own_loss() const {
  const double* losses = staging_.host_losses();
  return {.sum = std::accumulate(losses, losses + staging_.losses(), 0.0), .label_tokens = terms_};
}

void Engine::evaluate(const runtime::HostBatch& batch, double* loss_sum, std::int64_t* terms,
                      EvaluationSums* more) {
  arena().seal();
  const bool scores = options().adapters_off_reference;
  if (batch.tokens() == 0 && options().expert_size == 1) {
    if (scores) store().pass_by(compute());
    store().pass_by(compute());
    return;
  }
  staging_.clear_losses(compute(), 1);
  staging_.clear_figures(compute());
  const model::MicroBatch uploaded = staging_.upload(compute(), batch, 0);
  if (scores) core().score_references(store(), compute(), uploaded);
  const bool counts = more != nullptr && options().transformer.counts_hits;
  core().evaluate(store(), compute(), uploaded, staging_.loss_sum(), {}, counts ? staging_.hits() : nullptr);
  staging_.fetch_losses(compute(), 1);
  staging_.fetch_figures(compute());
  compute().synchronize();
  *loss_sum += *staging_.host_losses();
  *terms += batch.terms();
  if (more == nullptr) return;
  more->hits += staging_.host_hits();
  more->labels += batch.labels();
  const std::span<const double> figures = staging_.host_figures();
  more->figures.resize(figures.size());
  for (std::size_t i = 0; i < figures.size(); ++i) more->figures[i] += figures[i];
}

double Engine::relative_sum(const runtime::HostBatch& batch) {
  const model::MicroBatch uploaded = staging_.upload(compute(), batch, 0);
  core().score_answers(store(), compute(), uploaded, staging_.scores());
  staging_.fetch_scores(compute(), batch.judged);
  if (options().adapters_off_reference) {
    core().score_references(store(), compute(), uploaded);
    staging_.fetch_references(compute(), batch.judged);
  }
  compute().synchronize();
  const double* const references =
      options().adapters_off_reference ? staging_.host_references() : batch.references.data();
  double sum = 0;
  for (std::int64_t a = 0; a < batch.judged; ++a) sum += staging_.host_scores()[a] - references[a];
  return sum;
}

void Engine::set_reference_point(
    std::int64_t count,
    const std::function<std::shared_ptr<const runtime::HostBatch>(std::int64_t)>& mismatched) {
  arena().seal();
  runtime::HostBatch empty;
  empty.cu_seqlens.push_back(0);
  std::vector<double> own;  // for each batch: the sum, and the number of answers
  for (std::int64_t i = 0; i < count; ++i) {
    const std::shared_ptr<const runtime::HostBatch> batch = mismatched(i);
    if ((!batch || batch->tokens() == 0) && options().expert_size == 1) {
      if (options().adapters_off_reference) store().pass_by(compute());
      store().pass_by(compute());
      continue;
    }
    own.push_back(relative_sum(batch ? *batch : empty));
    own.push_back(static_cast<double>(batch ? batch->judged : 0));
  }
  std::vector<double> sums;
  double answers = 0;
  for (const std::string& bytes : job().all_gather_bytes(
           std::string(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(double)))) {
    std::vector<double> of_rank(bytes.size() / sizeof(double));
    std::memcpy(of_rank.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i + 1 < of_rank.size(); i += 2)
      sums.push_back(of_rank[i]), answers += of_rank[i + 1];
  }
  std::ranges::sort(sums);
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  reference_point_ = answers > 0 ? std::max(0.0, sum / answers) : 0.0;
  staging_.set_point(compute(), reference_point_);
}

std::vector<double> Engine::log_probabilities(const runtime::HostBatch& batch) {
  arena().seal();
  if (batch.tokens() == 0 && options().expert_size == 1) {
    store().pass_by(compute());
    return {};
  }
  return runtime::log_probabilities(core(), store(), compute(), staging_.upload(compute(), batch),
                                    batch.targets, staging_.loss_sum());
}

}  // namespace octet::train
