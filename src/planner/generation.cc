#include "octet/planner/generation.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/generate/cache_budget.h"
#include "octet/generate/decoder_bench.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"
#include "octet/setup/run_options.h"

namespace octet::planner {
namespace {

constexpr std::int64_t kMostBatch = 4096;  // as in `trainer generate --batch`

generate::DecoderOptions decoder_options(const GeneratePlan& plan) {
  generate::DecoderOptions options;
  options.architecture = model::find_shape(plan.model);
  options.recipe.compute = plan.dtype == "fp32" ? DType::f32 : DType::bf16;
  if (plan.dtype == "fp8") options.recipe.kind = precision::RecipeKind::rows;
  options.fp8_cache = plan.kv_cache_dtype == "fp8";
  options.capacity = plan.max_length;
  options.page_tokens = plan.kv_page_tokens;
  if (!plan.kv_cache_bytes.empty())
    options.cache_bytes = plan::parse_bytes(plan.kv_cache_bytes, "kv_cache_bytes");
  return options;
}

/// Builds decoders on devices without memory, to read their memory plans.
class Trials {
 public:
  Trials(const GeneratePlan& plan, const PlanTarget& target, bool strict)
      : plan_(plan), kind_(target.kind), rates_(target.rates), options_(decoder_options(plan)) {
    options_.strict = strict;
    const int tensor = plan.tensor_parallel_size, stages = plan.pipeline_parallel_size;
    model::require_splits(options_.architecture, tensor, stages);
    for (int rank = 0; rank < tensor * stages; ++rank)
      ranks_.push_back(std::make_unique<generate::PlannedRank>(kind_, rank, tensor, stages));
    if (!plan.gpu_memory_utilization) return;
    take_batch(plan.batch);
    std::size_t least = SIZE_MAX;
    for (const auto& rank : ranks_) {
      generate::DecoderOptions of_rank = options_;
      of_rank.architecture.share = rank->share();
      least = std::min(least,
                       generate::cache_bytes_of_share(plan.gpu_memory_utilization, of_rank, target.memory));
    }
    options_.cache_bytes = least;
  }

  const model::Architecture& architecture() const { return options_.architecture; }

  /// Returns the bytes of each rank of a replica, libraries included.
  std::vector<std::size_t> bytes_of_ranks(std::int64_t batch) {
    std::vector<std::size_t> bytes;
    for (const auto& rank : ranks_) bytes.push_back(of(batch, *rank).bytes);
    return bytes;
  }

  /// Returns the plan of the rank with the most bytes. Its lower bound of time is that of the slowest stage.
  Fit of(std::int64_t batch) {
    Fit most;
    double floor = 0;
    for (int stage = 0; stage < plan_.pipeline_parallel_size; ++stage) {
      const int rank =
          generate::first_rank_of_stage(stage, plan_.tensor_parallel_size, plan_.pipeline_parallel_size);
      Fit fit = of(batch, *ranks_[static_cast<std::size_t>(rank)]);
      floor = std::max(floor, fit.floor_seconds);
      if (fit.bytes > most.bytes) most = std::move(fit);
    }
    most.floor_seconds = floor;
    return most;
  }

  /// Returns the largest batch that fits; 0: none fits.
  std::int64_t largest(std::size_t memory) {
    std::int64_t fits = 0, none = kMostBatch + 1;
    while (none - fits > 1) {
      const std::int64_t middle = fits + (none - fits) / 2;
      (of(middle).bytes <= memory ? fits : none) = middle;
    }
    return fits;
  }

 private:
  void take_batch(std::int64_t batch) {
    options_.sequences = batch;
    options_.prefill = generate::batched_tokens(plan_.max_num_batched_tokens, kind_, batch);
  }
  Fit of(std::int64_t batch, const generate::PlannedRank& rank) {
    take_batch(batch);
    const std::unique_ptr<generate::Decoder> made = rank.decoder(options_);
    const generate::Decoder& decoder = *made;
    Fit fit{.batch = batch, .memory = plan::memory_of(decoder.arena())};
    fit.staging = rank.staging_bytes();
    fit.bytes = fit.memory.bytes + fit.staging + plan::library_bytes(kind_);
    for (const plan::MemoryRow& row : fit.memory.rows) {
      if (row.name.starts_with("parameters/")) fit.weights += static_cast<double>(row.bytes);
      if (row.name == "KV cache") fit.cache += static_cast<double>(row.bytes);
    }
    fit.pages = decoder.counts().cache_pages;
    // Per step, every stage makes one pass for each stage, over an equal part of the questions.
    const auto passes = static_cast<double>(plan_.pipeline_parallel_size);
    const std::int64_t of_pass = (batch + plan_.pipeline_parallel_size - 1) / plan_.pipeline_parallel_size;
    fit.weights_read = passes * generate::step_weight_bytes(decoder, of_pass);
    fit.cache_read = static_cast<double>(batch) *
                     generate::step_cache_bytes(decoder.options(), (plan_.max_length - 1) / 2);
    // Two operations per weight and token. Embedding rows are only looked up.
    const double multiplied = generate::parameters_of_token(decoder);
    const double rate = plan_.dtype == "fp8" ? rates_.fp8 : plan_.dtype == "bf16" ? rates_.bf16 : rates_.fp32;
    fit.floor_seconds = std::max((fit.weights_read + fit.cache_read) / rates_.bytes,
                                 2 * multiplied * static_cast<double>(batch) / rate);
    return fit;
  }

  const GeneratePlan& plan_;
  DeviceKind kind_;
  plan::Rates rates_;
  std::vector<std::unique_ptr<generate::PlannedRank>> ranks_;  ///< ranks of a replica
  generate::DecoderOptions options_;
};

void require_read(const config::Resolved& resolved, const GeneratePlan& plan, const PlanTarget& target) {
  for (const auto& [key, origin] : resolved.origins) {
    // bf16 is set by default for models without a configuration.
    if (key == "device" || key == "bf16" || key == "deterministic") continue;
    throw Error(
        {.what = "trainer plan --generate does not read this key",
         .expected =
             "batch, max_length, dtype, kv_cache_dtype, kv_cache_bytes, gpu_memory_utilization, "
             "kv_page_tokens, tensor_parallel_size, pipeline_parallel_size, deterministic, card, memory "
             "and device",
         .found = key,
         .where = "command line",
         .fix = "leave it out; `trainer generate` takes its dtype from --dtype",
         .code = ExitCode::usage});
  }
  if (plan.gpu_memory_utilization) {
    generate::require_share(*plan.gpu_memory_utilization, "gpu_memory_utilization");
    const bool both = !plan.kv_cache_bytes.empty();
    if (both || !target.traits().counts_as_gpu) {
      throw Error({.what = both ? "kv_cache_bytes and gpu_memory_utilization both set the size of the cache"
                                : "gpu_memory_utilization is a share of a GPU's memory",
                   .expected = both ? "kv_cache_bytes or gpu_memory_utilization, not both" : "device=cuda",
                   .found = both ? "kv_cache_bytes=" + plan.kv_cache_bytes : std::string("device=cpu"),
                   .where = "command line",
                   .fix = both ? "give one of them" : "give kv_cache_bytes instead, or device=cuda",
                   .code = ExitCode::usage});
    }
  }
  if (target.place.size == 1) return;
  throw Error({.what = "a generation is planned for one rank",
               .expected = "world=1, or no world",
               .found = "world=" + std::to_string(target.place.size),
               .where = "command line",
               .fix = "leave it out: replicas are alike and answer different questions; tensor_parallel_size "
                      "and pipeline_parallel_size split a model",
               .code = ExitCode::usage});
}

/// Returns plans for powers of four up to the largest batch that fits, for that batch, and for the requested
/// batch.
std::vector<Fit> table_of(Trials& trials, std::int64_t asked, std::int64_t largest) {
  std::vector<std::int64_t> batches{asked};
  for (std::int64_t batch = 1; batch <= largest; batch *= 4) batches.push_back(batch);
  if (largest > 0) batches.push_back(largest);
  std::ranges::sort(batches);
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  std::vector<Fit> all;
  for (const std::int64_t batch : batches) all.push_back(trials.of(batch));
  return all;
}

}  // namespace

GenerationReport plan_generation(const config::Resolved& resolved, const GeneratePlan& plan,
                                 const PlanTarget& target) {
  require_read(resolved, plan, target);
  Trials trials(plan, target, setup::is_strict(resolved.config));
  GenerationReport report{.asked = trials.of(plan.batch), .largest = trials.largest(target.memory)};
  report.parameters = model::build_layout(trials.architecture()).parameter_count();
  report.fits = table_of(trials, plan.batch, report.largest);
  if (plan.each_rank) report.bytes_of_ranks = trials.bytes_of_ranks(plan.batch);
  return report;
}

}  // namespace octet::planner
