#include "octet/bench/decode_bench.h"

#include <chrono>
#include <memory>

#include "octet/base/error.h"
#include "octet/config/derive.h"
#include "octet/generate/team.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"

namespace octet::bench {
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

}  // namespace

std::string precision_words(const config::Config& config) {
  std::string base = config::computes_in_bf16(config) ? "bf16" : "fp32";
  if (!config.fp8) return base;
  return "FP8 " + config.fp8_recipe + " in " + base +
         (setup::recipe_of(config).fast_gradients ? ", fp8_fast_accumulation: all" : "");
}

void bench_decoding(runtime::Session& session, const config::Resolved& resolved, const DecodeBench& bench,
                    const std::function<void(const DecodeResult&)>& tell) {
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
    DecodeResult result{.measured = generate::bench(*decoder, bench.options),
                        .precision = decoding_words(config, recipe, bench.options.fp8_cache)};
    result.measured.setup_seconds = setup_seconds;
    tell(result);
  };
  team ? static_cast<void>(generate::lead_or_follow(*team, *decoder, measure)) : measure();
}

}  // namespace octet::bench
