#include "decoder_options.h"

#include <algorithm>
#include <string>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "pass_runner.h"

namespace octet::generate {
namespace {

CacheShape cache_shape(const DecoderOptions& options, const model::KvLayout& layout) {
  return {.windows = layout.windows(),
          .page_tokens = layout.page_tokens(),
          .piece = piece_of(options),
          .shared = options.share_prefixes};
}

std::size_t bytes_for(const DecoderOptions& options, std::int64_t sequences) {
  const model::KvLayout layout = cache_layout(options);
  std::int64_t pages = 0;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(pages_of_sequence(cache_shape(options, layout), options.capacity), sequences,
                             &pages) ||
      __builtin_mul_overflow(static_cast<std::size_t>(pages), layout.page_bytes(), &bytes)) {
    throw Error(
        {.what = "a KV cache of this size is impossible",
         .found = std::to_string(sequences) + " sequences of " + std::to_string(options.capacity) + " tokens",
         .fix = "ask for fewer sequences, or shorter ones",
         .code = ExitCode::usage});
  }
  return bytes;
}

}  // namespace

std::int64_t piece_of(const DecoderOptions& options) {
  const auto has_window = [](const model::BlockShape& block) { return block.window > 0; };
  const bool windows = std::ranges::any_of(options.architecture.blocks, has_window);
  const std::int64_t most = windows ? std::min(options.prefill, kWindowedPiece) : options.prefill;
  return std::max<std::int64_t>({1, most, options.score_rows});
}

model::KvLayout cache_layout(const DecoderOptions& options) {
  return {options.architecture, options.fp8_cache ? DType::e4m3 : options.recipe.compute,
          options.page_tokens};
}

CacheShape asked_cache(const DecoderOptions& options, const model::KvLayout& layout) {
  CacheShape shape = cache_shape(options, layout);
  const std::size_t bytes = options.cache_bytes > 0 ? options.cache_bytes : full_cache_bytes(options);
  shape.pages = static_cast<std::int64_t>(bytes / layout.page_bytes());
  const std::int64_t least = pages_of_sequence(shape, options.capacity);
  if (shape.pages >= least) return shape;
  const auto text = [&](std::size_t all, std::int64_t pages) {
    return with_commas(static_cast<std::int64_t>(all)) + " bytes (" + with_commas(pages) + " pages of " +
           std::to_string(options.page_tokens) + " tokens)";
  };
  throw Error(
      {.what = "the KV cache does not hold one sequence of " + with_commas(options.capacity) + " tokens",
       .expected = "at least " + text(least_cache_bytes(options), least),
       .found = text(bytes, shape.pages),
       .fix = "raise --kv-cache-bytes or --gpu-memory-utilization, or lower --max-length",
       .code = ExitCode::usage});
}

std::size_t full_cache_bytes(const DecoderOptions& options) {
  return bytes_for(options, options.sequences);
}

std::size_t least_cache_bytes(const DecoderOptions& options) {
  return bytes_for(options, 1);
}

namespace {

model::TransformerOptions core_options(const DecoderOptions& options) {
  model::TransformerOptions core;
  core.max_tokens = most_tokens(options);
  core.max_length = core.max_tokens;
  core.max_positions = std::max(options.capacity, options.scored);
  core.max_labels = std::max(logit_rows(options), options.scored);
  core.training = false;
  core.fixed_order = options.strict;
  const model::Architecture& a = options.architecture;
  core.first_block = static_cast<int>(a.share.first_block(a.layers));
  core.last_block = static_cast<int>(a.share.last_block(a.layers));
  return core;
}

/// Strict answers exclude options that round a token together with its neighbours, or unlike training.
void require_strict_possible(const DecoderOptions& options, const Device& device) {
  if (!options.strict) return;
  const auto refuse = [](const std::string& what, const std::string& expected, const std::string& fix) {
    throw Error({.what = what,
                 .expected = expected,
                 .where = "deterministic: strict",
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  const precision::Recipe& recipe = options.recipe;
  const char* const in_blocks = "fp8_recipe: block, with a scale for 128 values of a row";
  if (recipe.kind == precision::RecipeKind::delayed)
    refuse("answers with fp8_recipe: delayed are not strict: rounding depends on a history", in_blocks,
           "set fp8_recipe: block, or deterministic: true");
  if (recipe.kind == precision::RecipeKind::current)
    refuse("answers with fp8_recipe: current are not strict: all tokens of a batch share a scale", in_blocks,
           "set fp8_recipe: block, or deterministic: true");
  if (recipe.rows())
    refuse("answers with FP8 scales of whole rows are not strict: training does not use them", in_blocks,
           "set fp8_recipe: block, or compute in bf16");
  if (recipe.fp8() && device.planned_traits().autotunes_gemms)
    refuse("answers in FP8 are not strict on a GPU: its GEMM library chooses kernels by the number of tokens",
           "bf16 or fp32 on a GPU", "set fp8: false, or device: cpu");
  if (options.architecture.share.sums())
    refuse("answers of layers that are split among ranks are not strict: each rank computes a part of a sum",
           "whole layers on a rank", "set tensor_parallel_size to 1: stages and replicas keep the bits");
  if (options.architecture.has_delta_rule())
    refuse("answers of a model with delta rules (linear attention) are not strict: training computes chunks",
           "a model with attention in all blocks", "leave strict out, or use another model");
  if (options.fp8_cache)
    refuse("answers from a cache in FP8 are not strict: training does not round keys and values",
           "keys and values as they are computed", "leave the cache's format at auto");
}

}  // namespace

runtime::InstanceOptions instance_options(const DecoderOptions& options, model::PartialSums* sums) {
  runtime::InstanceOptions instance;
  instance.architecture = options.architecture;
  instance.trained = options.trained;
  instance.added = options.adapters;
  instance.store.recipe = options.recipe;
  instance.store.training = false;
  instance.transformer = core_options(options);
  instance.transformer.partial_sums = sums;
  // Prompts have varying lengths, so a search of seconds for the best algorithm per length does not pay off.
  instance.reproducible = true;
  instance.claims = !options.strict;  // strict GEMMs are split by the number of threads, like in training
  return instance;
}

DecoderOptions options_for(const Team& team, DecoderOptions options) {
  check(options.scored == 0, "ranks that hold a model together score through the cache");
  const model::Share& share = team.share();
  model::require_splits(options.architecture, share.tensor_size, share.stages);
  options.architecture.share = share;
  return options;
}

DecoderOptions options_for(const runtime::Instance& model, DecoderOptions options) {
  options.architecture = model.options().architecture;
  options.recipe = model.options().store.recipe;
  options.strict = model.options().transformer.fixed_order;
  return options;
}

DecoderOptions possible(const DecoderOptions& asked, const Device& device) {
  require_strict_possible(asked, device);
  DecoderOptions options = asked;
  // A delta rule has one state per sequence, after its newest token. The state after a shared prefix is gone
  // as soon as its sequence continues, so each sequence computes all of its tokens.
  if (options.architecture.has_delta_rule()) options.share_prefixes = false;
  if (!options.keep_experts) return options;
  const auto refuse = [](const std::string& expected, const std::string& fix) {
    throw Error({.what = "the experts of answers cannot be kept",
                 .expected = expected,
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  if (options.architecture.experts.count == 0)
    refuse("a model with experts", "leave --save-routing out, or name a mixture of experts");
  if (options.architecture.share.stages > 1)
    refuse("a model in one stage", "set --pipeline-parallel-size 1, or leave --save-routing out");
  // Each sequence computes all of its tokens, and the host reads the results of each pass before the next.
  options.share_prefixes = false;
  options.run_ahead = false;
  return options;
}

model::TransformerOptions core_beside(const runtime::Instance& model, const DecoderOptions& options) {
  model::TransformerOptions core = core_options(options);
  const std::int64_t unit = model.options().token_unit;
  core.max_tokens = (core.max_tokens + unit - 1) / unit * unit;
  core.max_length = std::max(core.max_length, unit - 1);
  return core;
}

}  // namespace octet::generate
