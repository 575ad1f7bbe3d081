#include "decode_bench.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/generate/team.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "options.h"

namespace octet::cli {
namespace {

void require_possible(const runtime::Session& session, const DecodeBench& bench,
                      const precision::Recipe& recipe) {
  const int ranks = bench.tensor_parallel_size * bench.pipeline_parallel_size;
  if (session.place().size != ranks) {
    throw Error({.what = "the number of ranks does not fit the split of the model",
                 .expected = ranks == 1
                                 ? "trainer bench --decode without mpirun"
                                 : std::to_string(ranks) + " ranks (mpirun -np), "
                                                           "tensor_parallel_size x pipeline_parallel_size",
                 .found = std::to_string(session.place().size) + " ranks",
                 .fix = "start as many ranks as the model is split into; more ranks would be replicas",
                 .code = ExitCode::usage});
  }
  if (recipe.kind == precision::RecipeKind::delayed) {
    throw Error(
        {.what = "decoding cannot use delayed scaling: it has no scales from training",
         .expected =
             "fp8: true alone (scales of tokens and outputs), fp8_recipe current or block, or fp8: false",
         .where = "fp8_recipe",
         .fix = "set fp8_recipe=block, or leave it out",
         .code = ExitCode::usage});
  }
}

/// Returns the recipe of the configuration. If fp8_recipe is not set, FP8 uses the recipe of `trainer
/// generate --dtype fp8`.
precision::Recipe decoding_recipe(const config::Resolved& resolved) {
  precision::Recipe recipe = setup::recipe_of(resolved.config);
  if (recipe.fp8() && !resolved.is_set("fp8_recipe")) recipe.kind = precision::RecipeKind::rows;
  return recipe;
}

/// "FP8 rows in bf16, cache in FP8".
std::string decoding_words(const config::Config& config, const precision::Recipe& recipe, bool fp8_cache) {
  std::string words = precision_words(config) + (setup::is_strict(config) ? ", strict" : "");
  if (recipe.rows()) words = std::string("FP8 rows in ") + (recipe.compute == DType::bf16 ? "bf16" : "fp32");
  return words + (fp8_cache ? ", cache in FP8" : "");
}

/// Throws Error (usage) for keys that this benchmark would ignore.
void require_plain_weights(const config::Config& config) {
  const auto refuse = [](const std::string& key, const std::string& found) {
    throw Error(
        {.what = "decoding is measured only with whole weights, in the compute dtype or in FP8",
         .expected = key + " not set",
         .found = key + "=" + found,
         .where = key,
         .fix = "leave it out; trainer generate decodes with adapters, after adding them to the weights",
         .code = ExitCode::usage});
  };
  if (config.finetuning_type != "full") refuse("finetuning_type", config.finetuning_type);
  if (config.quantization_bit) refuse("quantization_bit", std::to_string(*config.quantization_bit));
}

void print_decode_table(const std::string& device, const DecodeBench& b, const std::string& precision,
                        const generate::BenchResult& r) {
  const generate::BenchOptions& o = b.options;
  const double gb = 1e-9;
  std::printf("model              %s, %s parameters\n", b.model.c_str(), with_commas(r.parameters).c_str());
  std::printf("device             %s\n", device.c_str());
  std::printf("precision          %s\n", precision.c_str());
  if (b.tensor_parallel_size * b.pipeline_parallel_size > 1) {
    std::printf(
        "split              tensor_parallel_size %d x pipeline_parallel_size %d; bytes are per rank\n",
        b.tensor_parallel_size, b.pipeline_parallel_size);
  }
  std::printf("sequences          %lld with %s tokens of context each\n", static_cast<long long>(o.sequences),
              with_commas(o.context).c_str());
  std::printf("time per step      median %.6f s, min %.6f s, max %.6f s, of %lld steps\n", r.median_seconds,
              r.least_seconds, r.most_seconds, static_cast<long long>(o.steps));
  std::printf("tokens per second  %.1f, %.1f per sequence\n", r.tokens_per_second, 1 / r.median_seconds);
  std::printf("bytes per step     %.3f GB of weights, %.3f GB of keys and values: %.1f GB/s\n",
              gb * r.weight_bytes, gb * r.cache_bytes, gb * r.bytes_per_second);
  std::printf("replayed           %lld of %lld steps, warm-up included\n", static_cast<long long>(r.replayed),
              static_cast<long long>(o.warmup) + o.steps);
  std::printf("prompts            %s tokens per second\n",
              with_commas(static_cast<std::int64_t>(r.prompt_tokens_per_second)).c_str());
  std::printf("memory             %s reserved\n", human_bytes(static_cast<double>(r.reserved_bytes)).c_str());
  std::printf("set-up             %.1f s\n", r.setup_seconds);
  if (r.profile.empty()) return;
  std::printf("\n%-36s %12s %8s\n", "time per step, by operation", "milliseconds", "calls");
  for (const StepProfileRow& row : r.profile) {
    std::printf("%-36s %12.4f %8.0f\n", row.name.c_str(), 1e3 * row.seconds, row.calls);
  }
}

void print_decode_json(const std::string& device, const DecodeBench& b, const std::string& precision,
                       const generate::BenchResult& r) {
  const generate::BenchOptions& o = b.options;
  Json line{{"model", b.model},
            {"parameters", r.parameters},
            {"device", device},
            {"precision", precision},
            {"sequences", o.sequences},
            {"context", o.context},
            {"tensor_parallel_size", b.tensor_parallel_size},
            {"pipeline_parallel_size", b.pipeline_parallel_size},
            {"steps", o.steps},
            {"seconds_median", r.median_seconds},
            {"seconds_min", r.least_seconds},
            {"seconds_max", r.most_seconds},
            {"tokens_per_second", r.tokens_per_second},
            {"weight_bytes", r.weight_bytes},
            {"cache_bytes", r.cache_bytes},
            {"bytes_per_second", r.bytes_per_second},
            {"replayed", r.replayed},
            {"prompt_tokens_per_second", r.prompt_tokens_per_second},
            {"reserved_bytes", r.reserved_bytes},
            {"setup_seconds", r.setup_seconds}};
  for (const StepProfileRow& row : r.profile) {
    line["profile"].push_back({{"name", row.name}, {"seconds", row.seconds}, {"calls", row.calls}});
  }
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

std::string precision_words(const config::Config& config) {
  std::string base = config::computes_in_bf16(config) ? "bf16" : "fp32";
  if (!config.fp8) return base;
  return "FP8 " + config.fp8_recipe + " in " + base +
         (setup::recipe_of(config).fast_gradients ? ", fp8_fast_accumulation: all" : "");
}

void bench_decoding(runtime::Session& session, const config::Resolved& resolved, const DecodeBench& bench) {
  const auto start = std::chrono::steady_clock::now();
  const config::Config& config = resolved.config;
  const precision::Recipe recipe = decoding_recipe(resolved);
  model::Architecture architecture;
  session.job().together([&] {
    require_possible(session, bench, recipe);
    require_plain_weights(config);
    model::require_splits(architecture = model::find_shape(bench.model), bench.tensor_parallel_size,
                          bench.pipeline_parallel_size);
  });
  const int ranks = bench.tensor_parallel_size * bench.pipeline_parallel_size;
  std::unique_ptr<generate::Team> team;
  if (ranks > 1) {
    team = std::make_unique<generate::Team>(session.job(), session.device(), bench.tensor_parallel_size,
                                            bench.pipeline_parallel_size);
    architecture.share = team->share();
  }
  const generate::DecoderOptions options = generate::bench_decoder(bench.options, architecture, recipe);
  const auto decoder =
      team ? std::make_unique<generate::Decoder>(session.device(), *team, options)
           : std::make_unique<generate::Decoder>(session.device(), session.job(), session.data(), options);
  decoder->initialise(bench.options.seed);
  const double setup_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto measure = [&] {
    generate::BenchResult result = generate::bench(*decoder, bench.options);
    result.setup_seconds = setup_seconds;
    (bench.json ? print_decode_json : print_decode_table)(
        session.device().description(), bench, decoding_words(config, recipe, bench.options.fp8_cache),
        result);
  };
  team ? static_cast<void>(generate::lead_or_follow(*team, *decoder, measure)) : measure();
}

}  // namespace octet::cli
