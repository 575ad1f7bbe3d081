#include "octet/setup/data_options.h"

#include <charconv>
#include <string>
#include <system_error>
#include <vector>

#include "octet/base/error.h"
#include "octet/setup/run_options.h"

namespace octet::setup {
namespace {

std::vector<double> weights_of(const config::DatasetKeys& config) {
  std::vector<double> weights;
  for (const std::string& text : config.interleave_probs) {
    double weight = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
    if (error != std::errc() || end != text.data() + text.size()) weight = -1;  // refused with the others
    weights.push_back(weight);
  }
  if (!weights.empty() && config.mix_strategy == "concat") {
    throw Error({.what = "interleave_probs is read only when datasets are interleaved",
                 .expected = "mix_strategy: interleave_under, interleave_over or interleave_once",
                 .found = "mix_strategy: concat",
                 .where = "configuration key 'interleave_probs'",
                 .fix = "set one of these, or remove interleave_probs",
                 .code = ExitCode::usage});
  }
  return weights;
}

// Its batches of rows, its padding and its cuts, whether sequences are packed or not.
bool as_llamafactory(const config::SequenceKeys& config) {
  return config.packing_strategy == "llamafactory";
}

}  // namespace

data::DataOptions data_options(const config::DataKeys& config) {
  return {.dataset = config.dataset,
          .columns = {.messages = config.messages_column.value_or(""),
                      .prompt = config.prompt_column.value_or(""),
                      .response = config.response_column.value_or("")},
          .split = config.dataset_train_split.value_or(""),
          .dataset_dir = config.dataset_dir,
          .max_samples = config.max_samples,
          .seed = config.order_seed()};
}

data::MixOptions mix_options(const config::DataKeys& config) {
  return {.strategy = config.mix_strategy, .weights = weights_of(config), .seed = config.order_seed()};
}

Packing packing_of(const config::DataKeys& config) {
  if (!config.packing) return Packing::none;
  if (!as_llamafactory(config)) return Packing::best_fit;
  return is_pretraining(config) ? Packing::blocks : Packing::knapsack;
}

data::TemplateEncoderOptions encoder_options(const config::DataKeys& config, const std::string& model) {
  data::TemplateEncoderOptions options;
  options.folder = model;
  options.template_name = config.template_name;
  options.match_template = config.stage == "sft";
  // LLaMA-Factory keeps one token of a packed sequence for its padding.
  const bool llamafactory = as_llamafactory(config);
  options.options.cutoff_len = config.cutoff_len - (llamafactory && config.packing ? 1 : 0);
  if (llamafactory) {
    options.text_cut = packing_of(config) == Packing::blocks ? data::TextCut::whole : data::TextCut::truncate;
  }
  options.most_pieces = config.pack_factor.value_or(0);
  options.options.mask_history = config.mask_history;
  options.options.train_on_prompt = config.train_on_prompt;
  options.options.enable_thinking = config.enable_thinking;
  options.options.default_system = config.default_system;
  options.options.preserve_thinking = config.preserve_thinking;
  options.options.tool_format = config.tool_format;
  options.options.split_special_tokens = config.split_special_tokens;
  return options;
}

}  // namespace octet::setup
