#include "octet/runtime/instance.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/comm/mesh.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/model/group_messages.h"
#include "octet/model/layout.h"
#include "octet/model/work.h"
#include "octet/ops/gemm.h"
#include "octet/ops/reproducible.h"
#include "octet/runtime/initial_weights.h"
#include "octet/store/hashes.h"
#include "octet/weights/convert.h"

namespace octet::runtime {

// The ranks of a job with expert parallelism: a grid data x expert.

/// Throws Error (usage) on all ranks if experts cannot be split among `size` ranks.
void require_expert_split(comm::Channel& job, const model::Architecture& architecture, std::int64_t size);

/// This rank's groups along both axes. All ranks of the job make the same calls.
class ExpertRanks final : public model::TokenExchange {
 public:
  /// `device` and `job` must outlive this. Requires require_expert_split().
  ExpertRanks(comm::Job& job, Device& device, int size, const comm::Carrying& carrying);

  /// The ranks with the same experts.
  comm::Collectives& same_experts() { return *data_; }
  /// This rank's place among the ranks that exchange tokens.
  const comm::Place& place() const { return expert_->place(); }
  /// Reserves the staging memory of both groups, for plans.
  void reserve_staging(Arena& arena) const;
  std::vector<comm::Traffic> take_traffic();

  int rank() const override { return expert_->rank(); }
  int size() const override { return expert_->size(); }
  std::vector<std::int32_t> gather(std::span<const std::int32_t> own) override;
  void together(const std::function<void()>& act) override { counts_->together(act); }
  void exchange(Stream& compute, const char* name, const Rows& rows) override;

 private:
  Device& device_;
  std::unique_ptr<comm::Collectives> data_, expert_;
  std::unique_ptr<comm::Channel> counts_;
  std::unique_ptr<Event> ready_, done_;
};

namespace {

comm::Mesh mesh_of(int ranks, int experts) {
  return {ranks, {{.name = "data", .size = ranks / experts}, {.name = "expert", .size = experts}}};
}

[[noreturn]] void refuse(const std::string& expected, const std::string& found) {
  throw Error({.what = "expert_parallel_size does not fit the run",
               .expected = expected,
               .found = found,
               .fix = "change expert_parallel_size or the number of ranks (mpirun -np)",
               .code = ExitCode::usage});
}

/// Refuses adapters on some experts of a block: all ranks of an expert group make the same exchanges.
void require_equal_experts(const model::Architecture& a, const std::string& size) {
  const std::string experts = ".experts.";
  std::map<std::string, std::vector<model::AdapterShape>> modules;  // by name without the expert's number
  for (const auto& [module, adapter] : a.tuning.modules) {
    const std::size_t at = module.find(experts);
    if (at == std::string::npos) continue;
    const std::size_t end = module.find('.', at + experts.size());
    modules[module.substr(0, at + experts.size()) + "N" + module.substr(end)].push_back(adapter);
  }
  for (const auto& [module, adapters] : modules) {
    const bool all = std::ssize(adapters) == a.experts.count;
    if (all && std::ranges::count(adapters, adapters.front()) == std::ssize(adapters)) continue;
    throw Error(
        {.what = "adapters on some experts do not fit " + size,
         .expected = "equal adapters on all " + std::to_string(a.experts.count) + " experts of a block",
         .found = all ? "adapters of several ranks, factors or dropouts"
                      : std::to_string(adapters.size()) + " experts with adapters",
         .where = module,
         .fix = "name the modules of all experts in lora_target, or set expert_parallel_size: 1",
         .code = ExitCode::usage});
  }
}

}  // namespace

void require_expert_split(comm::Channel& job, const model::Architecture& a, std::int64_t size) {
  if (size == 1) return;
  job.together([&] {
    const std::string found = "expert_parallel_size " + std::to_string(size);
    if (a.experts.count == 0) refuse("1 for a model without experts", found);
    if (a.experts.count % size != 0)
      refuse("a divisor of the " + std::to_string(a.experts.count) + " experts of a block", found);
    if (job.size() % size != 0)
      refuse("a divisor of the number of ranks, " + std::to_string(job.size()), found);
    require_equal_experts(a, found);
  });
}

ExpertRanks::ExpertRanks(comm::Job& job, Device& device, int size, const comm::Carrying& carrying)
    : device_(device), ready_(device.make_event()), done_(device.make_event()) {
  const comm::Mesh mesh = mesh_of(job.size(), size);
  data_ = job.collectives(mesh.group("data", job.rank()), device, carrying);
  expert_ = job.collectives(mesh.group("expert", job.rank()), device, carrying);
  counts_ = job.channel("rows of experts", mesh.group("expert", job.rank()));
}

void ExpertRanks::reserve_staging(Arena& arena) const {
  for (const comm::Collectives* group : {data_.get(), expert_.get()})
    arena.reserve("communication/experts", comm::staging_bytes(group->size(), arena.device().stands_for()));
}

std::vector<comm::Traffic> ExpertRanks::take_traffic() {
  std::vector<comm::Traffic> taken = data_->take_traffic();
  std::ranges::move(expert_->take_traffic(), std::back_inserter(taken));
  return taken;
}

std::vector<std::int32_t> ExpertRanks::gather(std::span<const std::int32_t> own) {
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size_bytes());
  std::vector<std::int32_t> all(own.size() * static_cast<std::size_t>(size()));
  auto* to = all.data();
  for (const std::string& of_rank : counts_->all_gather_bytes(bytes)) {
    check(of_rank.size() == own.size_bytes(), "all ranks send the numbers of all experts");
    std::memcpy(to, of_rank.data(), of_rank.size());
    to += own.size();
  }
  return all;
}

void ExpertRanks::exchange(Stream& compute, const char* name, const Rows& rows) {
  const auto ranks = static_cast<std::size_t>(size()), own = static_cast<std::size_t>(rank());
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * rows.row_bytes; };
  std::vector<const std::byte*> from(ranks);
  std::vector<std::byte*> to(ranks);
  auto* read = static_cast<const std::byte*>(rows.from);
  auto* write = static_cast<std::byte*>(rows.to);
  for (std::size_t r = 0; r < ranks; ++r) {
    from[r] = read, to[r] = write;
    read += bytes(rows.sent[r]), write += bytes(rows.received[r]);
  }
  if (rows.sent[own] > 0) device_.copy(compute, to[own], from[own], bytes(rows.sent[own]));
  Stream& stream = expert_->gather_stream();
  compute.record(*ready_);
  stream.wait(*ready_);
  // In round d, every rank sends to its d-th right neighbour. Both ranks know whether there is a message.
  for (std::size_t d = 1; d < ranks; ++d) {
    const std::size_t target = (own + d) % ranks, source = (own + ranks - d) % ranks;
    const comm::SendArgs out{.name = name,
                             .to = static_cast<int>(target),
                             .from = from[target],
                             .bytes = static_cast<std::int64_t>(bytes(rows.sent[target]))};
    const comm::ReceiveArgs in{.name = name,
                               .from = static_cast<int>(source),
                               .to = to[source],
                               .bytes = static_cast<std::int64_t>(bytes(rows.received[source]))};
    if (out.bytes > 0 && in.bytes > 0) {
      expert_->send_receive(stream, out, in);
    } else if (out.bytes > 0) {
      expert_->send(stream, out);
    } else if (in.bytes > 0) {
      expert_->receive(stream, in);
    }
  }
  stream.record(*done_);
  compute.wait(*done_);
}

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

/// Refuses options of experts if the model has none.
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
  // If the user left it open, the device decides, for sums as for GEMMs.
  if (!options.reproducible && !ops::reproducible_by_default(device)) options.store.deterministic = false;
  // Ranks may have cores of different number, but they gather in one order.
  const bool hides = comm::overlap_hides(device, job.place());
  options.store.overlap = options.store.overlap && job.all_max(hides ? 0 : 1) == 0;
  options.store.micro_batches = std::max(1, options.max_micro_batches);
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
  store_ = std::make_unique<store::ParameterStore>(model::build_layout(options_.architecture), arena_, data,
                                                   options_.store, axis);
  core_ = std::make_unique<model::Transformer>(options_.architecture, options_.store.recipe, arena_,
                                               options_.transformer,
                                               options_.transformer.training ? &audit_ : nullptr);
  if (device.traits().computes) tell_fallbacks();  // fallbacks that follow from the shapes
}

Instance::~Instance() = default;

std::vector<comm::Traffic> Instance::take_traffic() {
  return experts_ ? experts_->take_traffic() : std::vector<comm::Traffic>{};
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
    throw Error({.what = "a frozen weight is not finite",
                 .expected = "finite values: FP8 and NF4 would replace others by the largest finite one",
                 .found = tensor.empty() ? "a sum of the base and its adapters" : tensor,
                 .where = folder,
                 .fix = "fetch the weights again, or name a base with finite weights",
                 .code = ExitCode::usage});
  });
}

}  // namespace

void Instance::load_weights(const std::string& folder) {
  // A weight may be missing or damaged for one rank alone; no rank may wait in a gather for it.
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
                                                      .held = held_as(options_.store)},
                                         model::build_layout(whole));
  });
  const bool quantised = options_.architecture.stored.format != model::StoredWeights::Format::plain;
  if (quantised && !options_.store.fixed.nf4.stored && job_.rank() == 0) {
    log::info("the quantised weights of " + folder + " are decoded as they are read");
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
  // Ranks may have other numbers of tokens, or none, and so other reasons.
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
