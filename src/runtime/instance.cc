#include "octet/runtime/instance.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "expert_ranks.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/model/group_messages.h"
#include "octet/model/layout.h"
#include "octet/model/work.h"
#include "octet/ops/gemm.h"
#include "octet/ops/reproducible.h"
#include "octet/runtime/group_size.h"
#include "octet/runtime/initial_weights.h"
#include "octet/store/hashes.h"
#include "octet/weights/convert.h"
#include "shard_ranks.h"

namespace octet::runtime {

namespace {

void require_fp8_gemms(const precision::Recipe& recipe, const Device& device, comm::Job& job) {
  if (!recipe.fp8()) return;
  job.together([&] {
    const std::string why = ops::why_no_fp8_gemm(device);
    if (why.empty()) return;
    throw Error({.what = "this GPU has no FP8 GEMMs: " + why,
                 .expected = "a GPU of Ada, Hopper or Blackwell for fp8: true",
                 .fix = "set fp8: false and bf16: true (generate: --dtype bf16), or device: cpu",
                 .code = ExitCode::usage});
  });
}

/// Throws Error for options of experts if the model has no experts.
void require_experts(const InstanceOptions& options, comm::Job& job) {
  if (options.architecture.experts.count > 0) return;
  job.together([&] {
    const auto refuse = [](const std::string& key, const std::string& off, double found) {
      if (found == 0) return;
      char number[32];
      std::snprintf(number, sizeof number, "%g", found);
      throw Error({.what = "'" + key + "' is for a model with experts",
                   .expected = key + ": " + off + " for a model without experts",
                   .found = number,
                   .where = key,
                   .fix = "set " + key + ": " + off + ", or choose a mixture of experts",
                   .code = ExitCode::usage});
    };
    refuse("router_z_loss_coef", "0", options.transformer.router_z_loss);
    refuse("moe_capacity_factor", "null", options.transformer.expert_capacity);
  });
}

InstanceOptions completed(InstanceOptions options, const Device& device, comm::Job& job) {
  require_fp8_gemms(options.store.recipe, device, job);
  require_experts(options, job);
  require_expert_split(job, options.architecture, options.expert_size);
  options.architecture.share.expert_size = static_cast<int>(options.expert_size);
  options.architecture.share.expert_rank = job.rank() % static_cast<int>(options.expert_size);
  // If the user did not set `reproducible`, the default of the device applies, to sums and to GEMMs.
  if (!options.reproducible && !ops::reproducible_by_default(device)) options.store.deterministic = false;
  // Ranks may have different numbers of cores, but all must gather in the same order. So messages overlap
  // only if this helps on every rank.
  const bool hides = comm::overlap_hides(device, job.place());
  options.store.overlap = options.store.overlap && job.all_max(hides ? 0 : 1) == 0;
  options.store.micro_batches = std::max(1, options.max_micro_batches);
  options.store.group = group_of(job, options.group_size, options.store);
  options.transformer.sums_by_source =
      options.expert_size > 1 && (options.store.deterministic || options.store.strict);
  options.transformer.fixed_order = options.transformer.fixed_order || options.store.strict;
  if (options.token_unit == 0) {
    const precision::Recipe& recipe = options.store.recipe;
    options.token_unit = recipe.fp8() ? ops::fp8_token_unit(device, recipe.scaling()) : 1;
  }
  if (const std::int64_t unit = options.token_unit; unit > 1) {
    auto& core = options.transformer;
    core.max_tokens = (core.max_tokens + unit - 1) / unit * unit;
    core.max_length = std::max(core.max_length, unit - 1);
    ++options.max_documents;
  }
  return options;
}

/// Returns the model with the experts of all ranks.
model::Architecture of_all(const InstanceOptions& options) {
  model::Architecture whole = options.architecture;
  whole.share.expert_rank = 0;
  whole.share.expert_size = 1;
  return whole;
}

}  // namespace

Instance::Instance(Device& device, comm::Job& job, comm::Collectives& data, const InstanceOptions& options)
    : device_(device),
      job_(job),
      data_(data),
      options_(completed(options, device, job)),
      arena_(device),
      audit_(options.store.recipe),
      compute_(device.make_stream({.name = "compute"})) {
  compute_->set_reproducible(options_.reproducible.value_or(ops::reproducible_by_default(device_)));
  compute_->set_claims(options_.claims);
  store::ExpertAxis axis;
  if (options_.expert_size > 1) {
    experts_ =
        std::make_unique<ExpertRanks>(job, device, static_cast<int>(options_.expert_size), options_.carrying);
    if (!device.traits().computes) experts_->reserve_staging(arena_);
    options_.transformer.token_exchange = experts_.get();
    axis = {.same_experts = &experts_->same_experts(), .all = model::build_layout(of_all(options_))};
  }
  store::GroupAxes groups;
  if (store::has_replicas(options_.store, job.size())) {
    shards_ = std::make_unique<ShardRanks>(job, device, options_.store, options_.carrying);
    if (!device.traits().computes) shards_->reserve_staging(arena_);
    groups = shards_->axes();
  }
  store_ = std::make_unique<store::ParameterStore>(model::build_layout(options_.architecture), arena_, data,
                                                   options_.store, axis, groups);
  core_ = std::make_unique<model::Transformer>(options_.architecture, options_.store.recipe, arena_,
                                               options_.transformer,
                                               options_.transformer.training ? &audit_ : nullptr);
  if (device.traits().computes) tell_fallbacks();  // fallbacks that follow from the shapes
}

Instance::~Instance() = default;

std::vector<comm::Traffic> Instance::take_traffic() {
  if (shards_) return shards_->take_traffic();
  return experts_ ? experts_->take_traffic() : std::vector<comm::Traffic>{};
}

double Instance::seconds_busy() {
  return data_.seconds_busy() + (shards_ ? shards_->seconds_busy() : 0);
}

comm::Place Instance::same_experts() const {
  return experts_ ? experts_->same_experts().place() : job_.place();
}

void Instance::add_exchanged(store::StepMessages& messages, std::int64_t micro_batches) const {
  if (!experts_) return;
  const bool again = options_.transformer.recompute == model::Recompute::full;
  const model::TransformerOptions& core = options_.transformer;
  const std::int64_t bytes =
      micro_batches * model::exchanged_bytes(options_.architecture, core.max_tokens,
                                             options_.store.recipe.compute, core.exchange_wire, again);
  const comm::Sent sent = comm::sent_by_gather(experts_->place(), bytes, false);
  messages.exchanged += sent;
  messages.beside.alone += sent;
}

std::int64_t Instance::parameter_count() const {
  return model::build_layout(of_all(options_)).parameter_count();
}

std::int64_t Instance::trained_parameters() const {
  return model::trained_parameters(model::build_layout(of_all(options_)));
}

namespace {

HeldAs held_as(const store::Options& options) {
  const store::FixedWeights& fixed = options.fixed;
  return {.compute = options.recipe.compute,
          .nf4 = fixed.format == store::Format::nf4 && !fixed.nf4.stored,
          .double_quantization = fixed.nf4.double_quantization};
}

/// Throws Error (usage) on all ranks, and names the first tensor that is not finite.
void refuse_frozen(comm::Job& job, const std::string& folder, const std::vector<AddedAdapter>& added) {
  job.together([&] {
    if (job.rank() != 0) return;
    std::string tensor = weights::first_not_finite_tensor(folder);
    for (const AddedAdapter& adapter : added) {
      if (tensor.empty()) tensor = weights::first_not_finite_tensor(adapter.folder, "adapter_model");
    }
    throw Error(
        {.what = "a frozen weight is not finite",
         .expected = "finite values: FP8 and NF4 would replace other values by the largest finite value",
         .found = tensor.empty() ? "a sum of the base and its adapters" : tensor,
         .where = folder,
         .fix = "fetch the weights again, or name a base with finite weights",
         .code = ExitCode::usage});
  });
}

}  // namespace

void Instance::load_weights(const std::string& folder) {
  // A weight may be missing or damaged on one rank only. together() then throws on all ranks, so no rank
  // waits in a gather.
  std::unique_ptr<InitialWeights> weights;
  // Files describe the whole model, independent of this rank's part.
  model::Architecture whole = options_.architecture;
  whole.share = {};
  job_.together([&] {
    weights =
        std::make_unique<InitialWeights>(WeightSource{.folder = folder,
                                                      .trained = options_.trained,
                                                      .tensor_prefix = options_.architecture.tensor_prefix,
                                                      .unread = model::unread_tensors(options_.architecture),
                                                      .added = options_.added,
                                                      .adapter = options_.adapter,
                                                      .tuning = options_.architecture.tuning,
                                                      .seed = options_.store.adamw.seed,
                                                      .new_head = whole.scores ? whole.head_name : "",
                                                      .held = held_as(options_.store)},
                                         model::build_layout(whole));
  });
  const bool quantised = options_.architecture.stored.format != model::StoredWeights::Format::plain;
  if (quantised && !options_.store.fixed.nf4.stored && job_.rank() == 0) {
    log::info("the quantised weights of " + folder + " are decoded while they are read");
  }
  store_->initialise(*compute_, [&](const std::vector<TensorSlice>& slices) {
    job_.together([&] {
      for (const TensorSlice& slice : slices) weights->read(slice);
    });
  });
  if (job_.all_min(store::Hashes::frozen_were_finite(*store_) ? 1 : 0) == 0)
    refuse_frozen(job_, folder, options_.added);
}

void Instance::initialise(std::uint64_t seed) {
  store_->initialise(*compute_, seed);
}

void Instance::gather_parameters() {
  arena_.seal();
  store_->pass_by(*compute_);
  store_->synchronize(*compute_);
}

void Instance::tell_fallbacks() {
  const std::vector<std::string> fallbacks = audit_.take_fallbacks();
  if (fallbacks.empty()) return;
  if (options_.fp8_fallback_ends) throw Error(fp8_refusal(fallbacks));
  if (job_.rank() != 0) return;
  for (const std::string& line : fallbacks) {
    log::warn("a GEMM should run in FP8, but cannot: " + line + "; " + kFp8Shapes);
  }
}

void Instance::check_gemms() {
  if (!options_.store.recipe.fp8()) return;
  // The ranks may differ in their numbers of tokens, and so in the reasons of their fallbacks.
  if (options_.fp8_fallback_ends) {
    job_.together([&] { tell_fallbacks(); });
  } else {
    tell_fallbacks();
  }
  if (!std::exchange(required_fp8_, true)) job_.together([&] { audit_.require_fp8(); });
}

precision::Audit Instance::audit_of_all() const {
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

std::vector<MemoryRow> Instance::memory() const {
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

}  // namespace octet::runtime
