#include "octet/train/engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/random.h"
#include "octet/device/waiting.h"
#include "octet/model/build.h"
#include "octet/ops/gemm.h"
#include "octet/ops/reproducible.h"
#include "octet/runtime/initial_weights.h"
#include "octet/setup/adapters.h"

namespace octet::train {

// Buffers between host and device. One set on the device suffices, because copies and kernels share a stream;
// on the host every micro-batch of a step has its own, because the device may read it until the step is
// waited for.
struct Engine::Staging {
  struct HostSet {
    std::int32_t* words = nullptr;  ///< pinned where that matters
    std::vector<std::int32_t> cu_seqlens;
  };

  Staging(Arena& arena, const EngineOptions& options)
      : sets(static_cast<std::size_t>(std::max(1, options.max_micro_batches))) {
    const auto tokens = static_cast<std::size_t>(options.transformer.max_tokens);
    const auto labels = options.transformer.max_labels > 0
                            ? static_cast<std::size_t>(options.transformer.max_labels)
                            : tokens;
    const auto documents = static_cast<std::size_t>(options.max_documents);
    ids = arena.reserve_as<std::int32_t>("batch/ids", tokens);
    positions = arena.reserve_as<std::int32_t>("batch/positions", tokens);
    label_rows = arena.reserve_as<std::int32_t>("batch/label_rows", labels);
    targets = arena.reserve_as<std::int32_t>("batch/targets", labels);
    cu_seqlens = arena.reserve_as<std::int32_t>("batch/cu_seqlens", documents + 1);
    losses = options.store.strict ? sets.size() : 1;
    loss_sum = arena.reserve_as<double>("batch/loss_sum", losses);
    for (HostSet& set : sets) {
      set.words = arena.reserve_as<std::int32_t>("batch/words", 2 * tokens + 2 * labels + documents + 1,
                                                 MemoryKind::pinned);
    }
    host_losses = arena.reserve_as<double>("batch/loss_sum", losses, MemoryKind::pinned);
  }

  std::vector<HostSet> sets;
  std::int32_t *ids = nullptr, *positions = nullptr, *label_rows = nullptr, *targets = nullptr,
               *cu_seqlens = nullptr;
  std::size_t losses = 1;
  double* loss_sum = nullptr;  ///< device: sum of the losses of this rank's step; strict: of each micro-batch
  double* host_losses = nullptr;  ///< [losses]: loss_sum, after the step
};

namespace {

std::int64_t count_labels(const feed::HostBatch& batch) {
  return std::ranges::count_if(batch.targets, [](std::int32_t target) { return target >= 0; });
}

// The configuration has checked the name; auto is decided by whoever knows the memory.
model::Recompute recompute_of(const std::string& level) {
  if (level == "norms") return model::Recompute::norms;
  if (level == "qkv") return model::Recompute::qkv;
  return level == "full" ? model::Recompute::full : model::Recompute::none;
}

// As above: auto keeps them until somebody knows the memory.
store::TransposedWeights transposed_of(const config::Config& config) {
  const bool at_use = has_fp8_weights(config) && config.fp8_transposed_weights == "at_use";
  return at_use ? store::TransposedWeights::at_use : store::TransposedWeights::kept;
}

// The configuration has checked the name.
comm::Wire wire_of(const std::string& dtype) {
  if (dtype == "bf16") return comm::Wire::bf16;
  if (dtype == "fp8") return comm::Wire::fp8;
  return dtype == "int8" ? comm::Wire::int8 : comm::Wire::f32;
}
DType stored_as(const std::string& dtype) {
  if (dtype == "bf16") return DType::bf16;
  return dtype == "int8" ? DType::u8 : DType::f32;
}

}  // namespace

precision::Recipe recipe_of(const config::Config& config) {
  precision::Recipe recipe;
  recipe.compute = config.bf16 || config.pure_bf16 ? DType::bf16 : DType::f32;
  if (!config.fp8) return recipe;
  recipe.kind = config.fp8_recipe == "current" ? precision::RecipeKind::current
                : config.fp8_recipe == "block" ? precision::RecipeKind::block
                                               : precision::RecipeKind::delayed;
  if (config.fp8_format == "e4m3" || recipe.blocks()) recipe.gradient_format = DType::e4m3;
  recipe.history_length = config.fp8_amax_history_len;
  recipe.most_recent = config.fp8_amax_compute_algo == "most_recent";
  recipe.margin = static_cast<int>(config.fp8_margin);
  // Delayed scaling is the fast recipe: producers write FP8 themselves, with one scale.
  recipe.scale_parts =
      (config.fp8_scale_granularity == "tensor" && !recipe.blocks()) ||
      (config.fp8_scale_granularity == "auto" && recipe.kind == precision::RecipeKind::current);
  recipe.fast_gradients = config.fp8_fast_accumulation == "all" && !recipe.blocks();
  return recipe;
}

bool has_fp8_weights(const config::Config& config) {
  return config.fp8 && config.fp8_recipe != "block";
}

EngineOptions engine_options(const config::Config& config, const model::Architecture& architecture,
                             std::int64_t max_tokens, std::int64_t max_length, std::int64_t max_documents) {
  EngineOptions options;
  options.architecture = setup::tuned(config, architecture);
  if (config.finetuning_type == "lora") options.adapter = config.adapter_name_or_path.value_or("");
  options.store.stage = static_cast<int>(config.zero_stage);
  options.store.deterministic = config.deterministic != "false";
  options.store.strict = config.deterministic == "strict";
  if (config.deterministic != "auto") options.reproducible = config.deterministic != "false";
  options.store.overlap = config.overlap_comm;
  options.store.wire = wire_of(config.reduce_dtype);
  options.store.error_feedback = config.error_feedback;
  options.store.gather_wire = wire_of(config.gather_dtype);  // compute: as it lies
  options.store.by_node = config.hierarchical_comm == "auto"   ? store::ByNode::automatic
                          : config.hierarchical_comm == "true" ? store::ByNode::on
                                                               : store::ByNode::off;
  options.store.transposed = transposed_of(config);
  options.store.recipe = recipe_of(config);
  options.store.adamw = {.beta1 = config.adam_beta1,
                         .beta2 = config.adam_beta2,
                         .epsilon = config.adam_epsilon,
                         .weight_decay = config.weight_decay,
                         .seed = static_cast<std::uint64_t>(config.seed)};
  options.store.storage = {.parameters = stored_as(config.param_dtype),
                           .gradients = stored_as(config.grad_dtype),
                           .moments = stored_as(config.optim_dtype)};
  options.store.max_grad_norm = config.max_grad_norm;
  options.transformer.max_tokens = max_tokens;
  options.transformer.max_length = max_length;
  options.transformer.gradient_dtype = options.store.storage.gradients;
  options.transformer.recompute = recompute_of(config.recompute());
  options.max_documents = max_documents;
  options.fp8_fallback_ends = config.fp8_fallback == "error";
  return options;
}

namespace {

EngineOptions completed(EngineOptions options, const Device& device, comm::Job& job) {
  // What is left open follows the device, for sums as for products.
  if (!options.reproducible && !ops::reproducible_by_default(device)) options.store.deterministic = false;
  // Ranks may have cores of different number, but they gather in one order.
  const bool hides = comm::overlap_hides(device, job.place());
  options.store.overlap = options.store.overlap && job.all_max(hides ? 0 : 1) == 0;
  options.store.micro_batches = std::max(1, options.max_micro_batches);
  options.transformer.fixed_order = options.store.strict;
  if (options.token_unit == 0) {
    const precision::Recipe& recipe = options.store.recipe;
    const ops::Scaling scaling = recipe.blocks() ? ops::Scaling::rows : ops::Scaling::tensor;
    options.token_unit = recipe.fp8() ? ops::fp8_token_unit(device, scaling) : 1;
  }
  if (const std::int64_t unit = options.token_unit; unit > 1) {
    auto& core = options.transformer;
    core.max_tokens = (core.max_tokens + unit - 1) / unit * unit;
    core.max_length = std::max(core.max_length, unit - 1);
    ++options.max_documents;
  }
  return options;
}

}  // namespace

Engine::Engine(Device& device, comm::Job& job, comm::Collectives& data, const EngineOptions& options)
    : device_(device),
      job_(job),
      options_(completed(options, device, job)),
      arena_(device),
      audit_(options.store.recipe),
      compute_(device.make_stream({.name = "compute"})) {
  if (job.size() > 1) measure_waits(*compute_);
  if (device.kind() != DeviceKind::dry)
    ops::set_reproducible(options_.reproducible.value_or(ops::reproducible_by_default(device_)));
  store_ = std::make_unique<store::ParameterStore>(model::build_layout(options_.architecture), arena_, data,
                                                   options_.store);
  core_ = std::make_unique<model::Transformer>(options_.architecture, options_.store.recipe, arena_,
                                               options_.transformer, &audit_);
  staging_ = std::make_unique<Staging>(arena_, options_);
  if (device.kind() != DeviceKind::dry) tell_fallbacks();  // those that the shapes tell
}

Engine::~Engine() = default;

void Engine::load_weights(const std::string& folder) {
  // A weight may be missing or damaged for one rank alone; nobody may be left waiting in a gather.
  std::unique_ptr<runtime::InitialWeights> weights;
  job_.together([&] {
    weights = std::make_unique<runtime::InitialWeights>(
        runtime::WeightSource{.folder = folder,
                              .tensor_prefix = options_.architecture.tensor_prefix,
                              .adapter = options_.adapter,
                              .seed = options_.store.adamw.seed},
        store_->layout());
  });
  store_->initialise(*compute_, [&](const std::vector<TensorSlice>& slices) {
    job_.together([&] {
      for (const TensorSlice& slice : slices) weights->read(slice);
    });
  });
}

void Engine::initialise(std::uint64_t seed) {
  store_->initialise(*compute_, seed);
}

void Engine::check_batch(const feed::HostBatch& batch) const {
  check(batch.tokens() <= options_.transformer.max_tokens, "a micro-batch fits the buffers planned for it");
  check(batch.documents() <= options_.max_documents, "a micro-batch has no more documents than planned");
  check(batch.max_length <= options_.transformer.max_length, "a document is no longer than planned");
  const auto vocabulary = static_cast<std::uint32_t>(options_.architecture.vocabulary);
  const auto outside = [vocabulary](std::int32_t id) { return static_cast<std::uint32_t>(id) >= vocabulary; };
  const auto no_target = [outside](std::int32_t id) { return id >= 0 && outside(id); };
  for (const auto* ids : {&batch.ids, &batch.targets}) {
    const auto bad =
        ids == &batch.ids ? std::ranges::find_if(*ids, outside) : std::ranges::find_if(*ids, no_target);
    if (bad != ids->end()) {
      throw Error({.what = "a token id is outside the model's vocabulary",
                   .expected = "ids below " + std::to_string(vocabulary),
                   .found = std::to_string(*bad),
                   .fix = "use the tokenizer that belongs to the model",
                   .code = ExitCode::usage});
    }
  }
}

namespace {

/// Fills a batch up to a multiple of `unit` tokens by a document without labels. Its tokens change no loss
/// and no gradient; an FP8 scale may see them.
feed::HostBatch filled_up(feed::HostBatch batch, std::int64_t unit) {
  const auto missing = static_cast<std::size_t>((unit - batch.tokens() % unit) % unit);
  batch.ids.insert(batch.ids.end(), missing, 0);
  batch.positions.insert(batch.positions.end(), missing, 0);
  batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
  batch.max_length = std::max(batch.max_length, static_cast<std::int64_t>(missing));
  return batch;
}

}  // namespace

model::MicroBatch Engine::upload(const feed::HostBatch& batch, std::size_t host_set) {
  if (batch.tokens() % options_.token_unit == 0) return send(batch, host_set);
  return send(filled_up(batch, options_.token_unit), host_set);
}

model::MicroBatch Engine::send(const feed::HostBatch& batch, std::size_t host_set) {
  check_batch(batch);
  Staging::HostSet& set = staging_->sets.at(host_set);
  std::int32_t* host = set.words;
  const auto copy = [&](std::int32_t* to, const std::vector<std::int32_t>& from) {
    std::memcpy(host, from.data(), from.size() * sizeof(std::int32_t));
    device_.copy_to_device(*compute_, to, host, from.size() * sizeof(std::int32_t));
    host += from.size();
  };
  copy(staging_->ids, batch.ids);
  copy(staging_->positions, batch.positions);
  copy(staging_->label_rows, batch.label_rows);
  copy(staging_->targets, batch.targets);
  copy(staging_->cu_seqlens, batch.cu_seqlens);
  set.cu_seqlens = batch.cu_seqlens;
  model::MicroBatch m;
  m.ids = staging_->ids, m.positions = staging_->positions;
  m.label_rows = staging_->label_rows, m.targets = staging_->targets;
  m.labels = static_cast<std::int64_t>(batch.targets.size());
  m.documents = {.cu_seqlens = staging_->cu_seqlens,
                 .host_cu_seqlens = set.cu_seqlens.data(),
                 .count = batch.documents(),
                 .max_length = batch.max_length,
                 .tokens = batch.tokens()};
  return m;
}

void Engine::gather_parameters() {
  arena_.seal();
  store_->pass_by(*compute_);
  store_->synchronize(*compute_);
}

namespace {

/// Documents of the planned lengths with ever other ids, every token but the last of each trained where so
/// many labels were planned.
feed::HostBatch largest_batch(const EngineOptions& options) {
  const model::TransformerOptions& core = options.transformer;
  const std::int64_t most = core.max_labels > 0 ? core.max_labels : core.max_tokens;
  feed::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (std::int64_t d = 0; d < options.max_documents && batch.tokens() < core.max_tokens; ++d) {
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
    feed::add_document(batch, ids, labels);
  }
  return batch;
}

}  // namespace

void Engine::rehearse() {
  if (options_.transformer.max_tokens == 0) return;
  const precision::Audit before = audit_;
  const std::unique_ptr<model::ParameterSource> source = store_->rehearsal();
  core_->train(*source, *compute_, upload(largest_batch(options_), 0), staging_->loss_sum);
  // What a micro-batch leaves behind that its end would take.
  if (precision::ScaleSet* scales = core_->activation_scales(); scales != nullptr) {
    device_.zero(*compute_, scales->amaxes(), static_cast<std::size_t>(scales->count()) * sizeof(float));
  }
  compute_->synchronize();
  audit_ = before;
}

void Engine::begin(int micro_batches) {
  arena_.seal();
  label_tokens_ = 0;
  device_.zero(*compute_, staging_->loss_sum, staging_->losses * sizeof(double));
  store_->begin_step(micro_batches);
  if (precision::CastStatistics* casts = core_->casts()) {
    watched_.next ? casts->watch(*compute_) : casts->stop();
  }
  micro_batch_ = 0;
}

void Engine::micro_batch(const feed::HostBatch& batch, const model::LogitsHook& logits) {
  store_->begin_micro_batch(micro_batch_, *compute_, core_->activation_scales());
  if (batch.tokens() == 0) {
    store_->contribute_nothing(*compute_);
  } else {
    core_->train(*store_, *compute_, upload(batch, static_cast<std::size_t>(micro_batch_)),
                 staging_->loss_sum + (staging_->losses > 1 ? micro_batch_ : 0), logits);
  }
  label_tokens_ += count_labels(batch);
  store_->end_micro_batch(*compute_);
  ++micro_batch_;
}

store::StepResult Engine::finish(double learning_rate, bool update) {
  device_.copy_to_host(*compute_, staging_->host_losses, staging_->loss_sum,
                       staging_->losses * sizeof(double));
  if (watched_.next) {  // of the weights before their update
    if (core_->casts() != nullptr) core_->casts()->collect(*compute_);
    store_->collect_casts(*compute_);
  }
  store_->watch_casts(watched_.after);
  store_->finish({.learning_rate = learning_rate,
                  .label_tokens = label_tokens_,
                  .loss_sum = staging_->loss_sum,
                  .update = update},
                 *compute_);
  compute_->synchronize();
  if (core_->casts() != nullptr) core_->casts()->stop();
  return store_->collect();
}

std::vector<precision::CastRow> Engine::cast_rows() const {
  std::vector<precision::CastRow> rows = core_->cast_rows();
  const std::vector<precision::CastRow> weights = store_->cast_rows();
  rows.insert(rows.end(), weights.begin(), weights.end());
  return rows;
}

void Engine::tell_fallbacks() {
  const std::vector<std::string> fallbacks = audit_.take_fallbacks();
  if (fallbacks.empty()) return;
  constexpr const char* fix =
      "make hidden_size, intermediate_size and the widths of heads multiples of 16, or take another "
      "fp8_recipe";
  if (options_.fp8_fallback_ends) {
    std::string found;
    for (const std::string& line : fallbacks) found += (found.empty() ? "" : "\n") + line;
    throw Error({.what = "a product that should run in FP8 does not",
                 .expected = "FP8 products in the linear layers, as fp8_fallback: error asks for",
                 .found = found,
                 .fix = std::string(fix) + ", or set fp8_fallback: warn"});
  }
  if (job_.rank() != 0) return;
  for (const std::string& line : fallbacks) {
    log::warn("a product should run in FP8 and does not: " + line + "; " + fix);
  }
}

void Engine::check_products() {
  if (!options_.store.recipe.fp8()) return;
  // Ranks may have other numbers of tokens, or none, and so other reasons.
  if (options_.fp8_fallback_ends) {
    job_.together([&] { tell_fallbacks(); });
  } else {
    tell_fallbacks();
  }
  if (!std::exchange(required_fp8_, true)) job_.together([&] { audit_.require_fp8(); });
}

precision::Audit Engine::audit_of_all() const {
  precision::Audit all(options_.store.recipe);
  for (const precision::AuditRow& row : audit_.rows()) all.plan(row);
  const std::vector<precision::AuditCount> own = audit_.counts();
  const std::string bytes(reinterpret_cast<const char*>(own.data()),
                          own.size() * sizeof(precision::AuditCount));
  for (const std::string& of_rank : job_.all_gather_bytes(bytes)) {
    std::vector<precision::AuditCount> counts(of_rank.size() / sizeof(precision::AuditCount));
    std::memcpy(counts.data(), of_rank.data(), of_rank.size());
    all.add(counts);
  }
  return all;
}

RankLoss Engine::own_loss() const {
  const double* losses = staging_->host_losses;
  return {.sum = std::accumulate(losses, losses + staging_->losses, 0.0), .label_tokens = label_tokens_};
}

void Engine::evaluate(const feed::HostBatch& batch, double* loss_sum, std::int64_t* label_tokens) {
  arena_.seal();
  if (batch.tokens() == 0) {
    store_->pass_by(*compute_);
    return;
  }
  device_.zero(*compute_, staging_->loss_sum, sizeof(double));
  core_->evaluate(*store_, *compute_, upload(batch, 0), staging_->loss_sum);
  device_.copy_to_host(*compute_, staging_->host_losses, staging_->loss_sum, sizeof(double));
  compute_->synchronize();
  *loss_sum += *staging_->host_losses;
  *label_tokens += count_labels(batch);
}

std::vector<MemoryRow> Engine::memory() const {
  std::map<std::string, std::size_t> sums;
  for (const Reservation& reservation : arena_.reservations()) {
    const std::size_t slash = reservation.name.find('/');
    if (reservation.kind == MemoryKind::device) sums[reservation.name.substr(0, slash)] += reservation.bytes;
  }
  std::vector<MemoryRow> rows;
  for (const auto& [name, bytes] : sums) rows.push_back({name, bytes});
  std::ranges::sort(rows, [](const MemoryRow& a, const MemoryRow& b) { return a.bytes > b.bytes; });
  return rows;
}

}  // namespace octet::train
