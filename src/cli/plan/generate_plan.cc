#include "plan/generate_plan.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "generate/cache_size.h"
#include "generate/planned_rank.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/generate/step_bytes.h"
#include "octet/model/build.h"
#include "octet/model/shapes.h"
#include "octet/setup/run_options.h"

namespace octet::cli {
namespace {

constexpr std::int64_t kMostBatch = 4096;  // as in `trainer generate --batch`

/// The plan of a decoder for `batch` questions.
struct Fit {
  std::int64_t batch = 0;
  plan::Memory memory;
  std::size_t bytes = 0;   ///< of the device, libraries included
  std::int64_t pages = 0;  ///< of the cache
  double weights = 0, weights_read = 0, cache = 0, cache_read = 0;
  std::size_t staging = 0;   ///< staging buffers, included in `bytes`
  double floor_seconds = 0;  ///< of a step with sequences of half max_length
  double tokens_per_second() const { return static_cast<double>(batch) / floor_seconds; }
};

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
      ranks_.push_back(std::make_unique<PlannedRank>(kind_, rank, tensor, stages));
    if (!plan.gpu_memory_utilization) return;
    take_batch(plan.batch);
    std::size_t least = SIZE_MAX;
    for (const auto& rank : ranks_) {
      generate::DecoderOptions of_rank = options_;
      of_rank.architecture.share = rank->share();
      least = std::min(least, cache_bytes_of_share(plan.gpu_memory_utilization, of_rank, target.memory));
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

  /// Returns the plan of the rank with the most bytes. The floor is that of the slowest stage.
  Fit of(std::int64_t batch) {
    Fit most;
    double floor = 0;
    for (int stage = 0; stage < plan_.pipeline_parallel_size; ++stage) {
      const int rank = first_rank_of_stage(stage, plan_.tensor_parallel_size, plan_.pipeline_parallel_size);
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
    options_.prefill = batched_tokens(plan_.max_num_batched_tokens, kind_, batch);
  }
  Fit of(std::int64_t batch, const PlannedRank& rank) {
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
  std::vector<std::unique_ptr<PlannedRank>> ranks_;  ///< ranks of a replica
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
    require_share(*plan.gpu_memory_utilization, "gpu_memory_utilization");
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

void print_generate_report(const GeneratePlan& plan, const PlanTarget& target, const Trials& trials,
                           const Fit& asked, const std::vector<Fit>& fits) {
  std::printf("model        %s, %s parameters\n", plan.model.c_str(),
              with_commas(model::build_layout(trials.architecture()).parameter_count()).c_str());
  std::printf("generation   --dtype %s --kv-cache-dtype %s --batch %lld --max-length %lld on %s\n",
              plan.dtype.c_str(), plan.kv_cache_dtype.c_str(), static_cast<long long>(plan.batch),
              static_cast<long long>(plan.max_length), target.name.c_str());
  const int tensor = plan.tensor_parallel_size, stages = plan.pipeline_parallel_size;
  if (tensor * stages > 1) {
    std::printf("split        --tensor-parallel-size %d --pipeline-parallel-size %d: %d ranks\n", tensor,
                stages, tensor * stages);
  }
  std::printf("\nmemory per rank%s\n", tensor * stages > 1 ? ", of the rank with the most" : "");
  const double held = asked.weights + asked.cache + static_cast<double>(asked.staging);
  std::printf("  %-32s %12s\n", "weights", human_bytes(asked.weights).c_str());
  std::printf("  %-32s %12s, %s per question; %s pages of %lld tokens\n", "keys and values",
              human_bytes(asked.cache).c_str(),
              human_bytes(asked.cache / static_cast<double>(asked.batch)).c_str(),
              with_commas(asked.pages).c_str(), static_cast<long long>(plan.kv_page_tokens));
  if (asked.staging > 0) {
    std::printf("  %-32s %12s\n", "message buffers", human_bytes(static_cast<double>(asked.staging)).c_str());
  }
  std::printf("  %-32s %12s\n", "all else", human_bytes(static_cast<double>(asked.bytes) - held).c_str());
  const bool fit = asked.bytes <= target.memory;
  std::printf("  %-32s %12s\n", "in all", human_bytes(static_cast<double>(asked.bytes)).c_str());
  std::printf("  %-32s %12s: %s\n", "the device has", human_bytes(static_cast<double>(target.memory)).c_str(),
              fit ? "fits" : "does NOT fit");
  const bool gpu = target.traits().has_known_rates;
  std::printf("\n%8s %12s %12s", "batch", "memory", "");
  if (gpu) std::printf(" %14s %14s", "floor, ms", "tokens/s");
  std::printf("\n");
  for (const Fit& f : fits) {
    std::printf("%8lld %12s %12s", static_cast<long long>(f.batch),
                human_bytes(static_cast<double>(f.bytes)).c_str(),
                f.bytes <= target.memory ? "fits" : "too much");
    if (gpu) {
      std::printf(" %14.3f %14s", 1e3 * f.floor_seconds,
                  with_commas(static_cast<std::int64_t>(f.tokens_per_second())).c_str());
    }
    std::printf("\n");
  }
  if (gpu) {
    std::printf(
        "\n"
        "The floor is the least time per step on %s after %lld tokens of each question: weights, keys and\n"
        "values read once, or its GEMMs, whichever takes longer.%s\n",
        target.rates.card, static_cast<long long>((plan.max_length - 1) / 2),
        tensor * stages > 1 ? " Messages between ranks take additional time." : "");
  }
  if (!plan.note.empty()) std::printf("\nnote: %s\n", plan.note.c_str());
}

void print_generate_json(const GeneratePlan& plan, const PlanTarget& target, const Fit& asked,
                         const std::vector<std::size_t>& bytes_of_ranks, std::int64_t largest,
                         const std::vector<Fit>& fits) {
  Json memory = Json::object(), batches = Json::array();
  for (const plan::MemoryRow& row : asked.memory.rows) memory[row.name] = row.bytes;
  for (const Fit& f : fits) {
    batches.push_back({{"batch", f.batch},
                       {"total_bytes", f.bytes},
                       {"fits", f.bytes <= target.memory},
                       {"floor_seconds", f.floor_seconds},
                       {"tokens_per_second_at_most", f.tokens_per_second()}});
  }
  std::printf("%s\n", Json{{"model", plan.model},
                           {"notes", plan.note.empty() ? Json::array() : Json::array({plan.note})},
                           {"device", target.traits().word},
                           {"dtype", plan.dtype},
                           {"kv_cache_dtype", plan.kv_cache_dtype},
                           {"batch", plan.batch},
                           {"max_length", plan.max_length},
                           {"tensor_parallel_size", plan.tensor_parallel_size},
                           {"pipeline_parallel_size", plan.pipeline_parallel_size},
                           {"memory", memory},
                           {"weight_bytes", asked.weights},
                           {"cache_bytes", asked.cache},
                           {"cache_pages", asked.pages},
                           {"cache_page_tokens", plan.kv_page_tokens},
                           {"step_weight_bytes", asked.weights_read},
                           {"step_cache_bytes", asked.cache_read},
                           {"messages_bytes", asked.staging},
                           {"total_bytes", asked.bytes},
                           {"total_bytes_of_ranks", bytes_of_ranks},
                           {"device_bytes", target.memory},
                           {"fits", asked.bytes <= target.memory},
                           {"largest_batch", largest},
                           {"batches", batches}}
                          .dump()
                          .c_str());
}

}  // namespace

int plan_generation(const config::Resolved& resolved, const GeneratePlan& plan, const PlanTarget& target) {
  require_read(resolved, plan, target);
  Trials trials(plan, target, setup::is_strict(resolved.config));
  const Fit asked = trials.of(plan.batch);
  const std::int64_t largest = trials.largest(target.memory);
  const std::vector<Fit> fits = table_of(trials, plan.batch, largest);
  if (plan.json) {
    print_generate_json(plan, target, asked, trials.bytes_of_ranks(plan.batch), largest, fits);
  } else {
    print_generate_report(plan, target, trials, asked, fits);
  }
  return asked.bytes <= target.memory ? 0 : static_cast<int>(ExitCode::failure);
}

}  // namespace octet::cli
