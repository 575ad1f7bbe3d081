#include "generate_plan.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "generate/cache_size.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/comm/job.h"
#include "octet/generate/step_bytes.h"
#include "octet/model/build.h"
#include "octet/model/shapes.h"
#include "octet/setup/run_options.h"

namespace octet::cli {
namespace {

constexpr std::int64_t kMostBatch = 4096;  // as `trainer generate --batch`

/// A decoder of so many questions.
struct Fit {
  std::int64_t batch = 0;
  plan::Memory memory;
  std::size_t bytes = 0;   ///< of the device, libraries included
  std::int64_t pages = 0;  ///< of the cache
  double weights = 0, weights_read = 0, cache = 0, cache_read = 0;
  double floor_seconds = 0;  ///< of a step whose sequences are half as long as they may be
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

/// Decoders on a device that holds nothing.
class Trials {
 public:
  Trials(const GeneratePlan& plan, const PlanTarget& target, bool strict)
      : plan_(plan),
        kind_(target.kind),
        device_(make_dry_device({.stands_for = target.kind})),
        job_(comm::make_self_job()),
        data_(job_->collectives(comm::Mesh(1).group("data", 0), *device_, comm::Carrier::automatic)),
        options_(decoder_options(plan)) {
    options_.strict = strict;
    if (!plan.gpu_memory_utilization) return;
    options_.sequences = plan.batch;
    options_.cache_bytes = cache_bytes_of_share(plan.gpu_memory_utilization, options_, target.memory);
  }

  const model::Architecture& architecture() const { return options_.architecture; }

  Fit of(std::int64_t batch) {
    options_.sequences = batch;
    const generate::Decoder decoder(*device_, *job_, *data_, options_);
    Fit fit{.batch = batch, .memory = plan::memory_of(decoder.arena())};
    fit.bytes = fit.memory.bytes + plan::library_bytes(kind_);
    for (const plan::MemoryRow& row : fit.memory.rows) {
      if (row.name.starts_with("parameters/")) fit.weights += static_cast<double>(row.bytes);
      if (row.name == "KV cache") fit.cache += static_cast<double>(row.bytes);
    }
    fit.pages = decoder.counts().cache_pages;
    fit.weights_read = generate::step_weight_bytes(decoder, batch);
    fit.cache_read =
        static_cast<double>(batch) * generate::step_cache_bytes(options_, (plan_.max_length - 1) / 2);
    const plan::Rates rates;
    // Two operations a weight and token; embedding rows are looked up.
    const double multiplied = generate::parameters_of_token(decoder);
    const double rate = plan_.dtype == "fp8" ? rates.fp8 : plan_.dtype == "bf16" ? rates.bf16 : rates.fp32;
    fit.floor_seconds = std::max((fit.weights_read + fit.cache_read) / rates.bytes,
                                 2 * multiplied * static_cast<double>(batch) / rate);
    return fit;
  }

  /// The most questions that fit; 0: not even one does.
  std::int64_t largest(std::size_t memory) {
    std::int64_t fits = 0, none = kMostBatch + 1;
    while (none - fits > 1) {
      const std::int64_t middle = fits + (none - fits) / 2;
      (of(middle).bytes <= memory ? fits : none) = middle;
    }
    return fits;
  }

 private:
  const GeneratePlan& plan_;
  DeviceKind kind_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Job> job_;
  std::unique_ptr<comm::Collectives> data_;
  generate::DecoderOptions options_;
};

void require_read(const config::Resolved& resolved, const GeneratePlan& plan, const PlanTarget& target) {
  for (const auto& [key, origin] : resolved.origins) {
    // bf16 is the default of models without a file.
    if (key == "device" || key == "bf16" || key == "deterministic") continue;
    throw Error({.what = "a plan of generation does not read this key",
                 .expected =
                     "batch, max_length, dtype, kv_cache_dtype, kv_cache_bytes, gpu_memory_utilization, "
                     "kv_page_tokens, deterministic, memory and device",
                 .found = key,
                 .where = "command line",
                 .fix = "leave it out; what `trainer generate` computes with is its --dtype",
                 .code = ExitCode::usage});
  }
  if (plan.gpu_memory_utilization) {
    require_share(*plan.gpu_memory_utilization, "gpu_memory_utilization");
    const bool both = !plan.kv_cache_bytes.empty();
    if (both || target.kind != DeviceKind::cuda) {
      throw Error({.what = both ? "kv_cache_bytes and gpu_memory_utilization both say how large the cache is"
                                : "gpu_memory_utilization is a share of a GPU's memory",
                   .where = "command line",
                   .fix = both ? "give one of them" : "give kv_cache_bytes instead, or device=cuda",
                   .code = ExitCode::usage});
    }
  }
  if (target.place.size == 1) return;
  throw Error({.what = "a generation is planned for one rank",
               .expected = "no world",
               .found = std::to_string(target.place.size) + " ranks",
               .fix = "leave it out: every rank holds the whole model and answers questions of its own",
               .code = ExitCode::usage});
}

/// Powers of two up to the largest that fits, that one, and what was asked for.
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

std::string bytes_text(double bytes) {
  return human_bytes(bytes);
}

void print_report(const GeneratePlan& plan, const PlanTarget& target, const Trials& trials, const Fit& asked,
                  const std::vector<Fit>& fits) {
  std::printf("model        %s, %s parameters\n", plan.model.c_str(),
              with_commas(model::build_layout(trials.architecture()).parameter_count()).c_str());
  std::printf("generation   --dtype %s --kv-cache-dtype %s --batch %lld --max-length %lld on %s\n",
              plan.dtype.c_str(), plan.kv_cache_dtype.c_str(), static_cast<long long>(plan.batch),
              static_cast<long long>(plan.max_length), target.name.c_str());
  std::printf("\nmemory of a rank\n");
  const double held = asked.weights + asked.cache;
  std::printf("  %-32s %12s\n", "weights", bytes_text(asked.weights).c_str());
  std::printf("  %-32s %12s, %s a question; %s pages of %lld tokens\n", "keys and values",
              bytes_text(asked.cache).c_str(),
              bytes_text(asked.cache / static_cast<double>(asked.batch)).c_str(),
              with_commas(asked.pages).c_str(), static_cast<long long>(plan.kv_page_tokens));
  std::printf("  %-32s %12s\n", "all else", bytes_text(static_cast<double>(asked.bytes) - held).c_str());
  const bool fit = asked.bytes <= target.memory;
  std::printf("  %-32s %12s\n", "in all", bytes_text(static_cast<double>(asked.bytes)).c_str());
  std::printf("  %-32s %12s: %s\n", "the device has", bytes_text(static_cast<double>(target.memory)).c_str(),
              fit ? "fits" : "does NOT fit");
  const bool gpu = target.kind == DeviceKind::cuda;
  std::printf("\n%8s %12s %12s", "batch", "memory", "");
  if (gpu) std::printf(" %14s %14s", "floor, ms", "tokens/s");
  std::printf("\n");
  for (const Fit& f : fits) {
    std::printf("%8lld %12s %12s", static_cast<long long>(f.batch),
                bytes_text(static_cast<double>(f.bytes)).c_str(),
                f.bytes <= target.memory ? "fits" : "too much");
    if (gpu) {
      std::printf(" %14.3f %14s", 1e3 * f.floor_seconds,
                  with_commas(static_cast<std::int64_t>(f.tokens_per_second())).c_str());
    }
    std::printf("\n");
  }
  if (gpu) {
    std::printf(
        "\nThe floor is a step's on an H200 behind %lld tokens of each question: weights, keys and values "
        "read\n"
        "once, or its GEMMs, whichever takes longer.\n",
        static_cast<long long>((plan.max_length - 1) / 2));
  }
}

void print_json(const GeneratePlan& plan, const PlanTarget& target, const Fit& asked, std::int64_t largest,
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
                           {"device", target.kind == DeviceKind::cuda ? "cuda" : "cpu"},
                           {"dtype", plan.dtype},
                           {"kv_cache_dtype", plan.kv_cache_dtype},
                           {"batch", plan.batch},
                           {"max_length", plan.max_length},
                           {"memory", memory},
                           {"weight_bytes", asked.weights},
                           {"cache_bytes", asked.cache},
                           {"cache_pages", asked.pages},
                           {"cache_page_tokens", plan.kv_page_tokens},
                           {"step_weight_bytes", asked.weights_read},
                           {"step_cache_bytes", asked.cache_read},
                           {"total_bytes", asked.bytes},
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
    print_json(plan, target, asked, largest, fits);
  } else {
    print_report(plan, target, trials, asked, fits);
  }
  return asked.bytes <= target.memory ? 0 : static_cast<int>(ExitCode::failure);
}

}  // namespace octet::cli
