// What keys of paths and of data mean together.
#include <cmath>

#include "octet/base/files.h"
#include "octet/base/hub_cache.h"
#include "rules.h"

namespace octet::config {
namespace {

class PathRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    for (std::string* path : {&c_.model_name_or_path, &c_.output_dir, &c_.dataset_dir}) from_home(*path);
    for (Strings* paths : {&c_.dataset, &c_.eval_dataset}) {
      for (std::string& path : *paths) from_home(path);
    }
    const std::string named = c_.model_name_or_path;
    if (named.empty() || path_exists(named)) return;
    const auto revision = r_.extra.find("model_revision");
    const std::string found =
        hub_snapshot(hub_folder([this](const char* name) { return variable(name); }), HubKind::model, named,
                     revision == r_.extra.end() ? "main" : revision->second);
    if (found.empty()) return;
    note("'model_name_or_path: " + named + "' is taken from Hugging Face's cache: " + found);
    c_.model_name_or_path = found;
  }

 private:
  std::string variable(const char* name) const {
    const auto found = options_.environment.find(name);
    return found == options_.environment.end() ? "" : found->second;
  }
  // A shell expands ~ only where a word begins with it.
  void from_home(std::string& path) const {
    const std::string home = variable("HOME");
    if (path.starts_with("~/") && !home.empty()) path.replace(0, 1, home);
  }
};

class DataRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    data();
    lengths();
    weights();
    best_model();
  }

 private:
  void lengths() {
    if (!c_.pack_factor || c_.truncation != "error") return;
    complain({.what = "'pack_factor' cuts texts, which 'truncation: error' forbids",
              .where = both("pack_factor", "truncation"),
              .fix = "remove pack_factor, or set truncation: cut"});
  }

  void weights() {
    if (c_.interleave_probs.empty() || c_.mix_strategy != "concat") return;
    complain({.what = "interleave_probs is read only when datasets are interleaved",
              .expected = "mix_strategy: interleave_under, interleave_over or interleave_once",
              .found = "mix_strategy: concat",
              .where = both("interleave_probs", "mix_strategy"),
              .fix = "set mix_strategy, or remove interleave_probs"});
  }

  // The best model is the one with the smallest evaluation loss of those that are kept.
  void best_model() {
    if (!c_.load_best_model_at_end) return;
    const auto value = [&](const char* key) {
      const auto found = r_.extra.find(key);
      return found == r_.extra.end() ? std::string() : found->second;
    };
    const std::string metric = value("metric_for_best_model"), greater = value("greater_is_better");
    if (!metric.empty() && metric != "loss" && metric != "eval_loss") {
      complain({.what = "the best model cannot be found by 'metric_for_best_model: " + metric + "'",
                .expected = "eval_loss: evaluation computes the loss and nothing else",
                .where = at("metric_for_best_model"),
                .fix = "set metric_for_best_model: eval_loss, or load_best_model_at_end: false" +
                       std::string(metric.find("rouge") == std::string::npos
                                       ? ""
                                       : "; trainer generate CHECKPOINT --file HELD_OUT --rouge-l scores a "
                                         "checkpoint")});
    }
    if (greater == "true") {
      complain({.what = "'greater_is_better: true' asks for the model with the largest evaluation loss",
                .where = at("greater_is_better"),
                .fix = "set greater_is_better: false, or leave it out"});
    }
    for (const auto& [key, word] :
         {std::pair{"eval_strategy", c_.eval_strategy}, {"save_strategy", c_.save_strategy}}) {
      if (word != "no") continue;
      complain({.what = std::string(
                            "'load_best_model_at_end: true' needs checkpoints that were evaluated, and '") +
                        key + ": no' makes none",
                .where = both("load_best_model_at_end", key),
                .fix = std::string("set ") + key + ": steps or epoch, or load_best_model_at_end: false"});
    }
  }

  void data() {
    if (c_.mask_history && c_.train_on_prompt) {
      complain({.what = "mask_history and train_on_prompt exclude each other",
                .where = both("mask_history", "train_on_prompt")});
    }
    for (const auto& [key, on] : {std::pair<const char*, bool>{"neat_packing", c_.neat_packing},
                                  {"train_on_prompt", c_.train_on_prompt},
                                  {"mask_history", c_.mask_history}}) {
      if (on && c_.stage != "sft") {
        complain({.what = std::string("'") + key + ": true' needs 'stage: sft'",
                  .found = "stage: " + c_.stage,
                  .where = both(key, "stage")});
      }
    }
    if (c_.neat_packing && r_.is_set("packing") && !c_.packing) {
      complain({.what = "neat_packing packs, and 'packing: false' forbids it",
                .where = both("neat_packing", "packing")});
    }
    if (c_.neat_packing) {
      c_.packing = true;
      derive("packing", "neat_packing");
    } else if (!r_.is_set("packing")) {
      c_.packing = c_.stage == "pt";
      if (c_.packing) r_.origins["packing"] = {Source::fallback, "stage: pt packs"};
    }
    if (c_.prompt_column.has_value() != c_.response_column.has_value()) {
      const bool asks = c_.prompt_column.has_value();
      complain({.what = asks ? "prompt_column is given without response_column"
                             : "response_column is given without prompt_column",
                .expected = "the columns of questions and of answers",
                .where = at(asks ? "prompt_column" : "response_column"),
                .fix = "give both, or neither"});
    }
    if (c_.messages_column && c_.prompt_column) {
      complain({.what = "messages_column and prompt_column exclude each other",
                .expected = "rows with conversations, or with a question and an answer",
                .where = both("messages_column", "prompt_column"),
                .fix = "keep the one that the rows have"});
    }
    if (c_.streaming && c_.max_steps < 1) {
      complain({.what = "'streaming: true' needs max_steps",
                .expected = "a number of steps: how many an epoch has shows only at its end",
                .where = at("streaming"),
                .fix = "set max_steps"});
    }
    if (c_.streaming && c_.tokenized_path) {
      complain({.what = "streaming and tokenized_path exclude each other",
                .where = both("streaming", "tokenized_path"),
                .fix = "remove tokenized_path, or set streaming: false"});
    }
    for (const char* key : {"overwrite_cache", "buffer_size"}) {
      const bool read = std::string(key) == "buffer_size" ? c_.streaming : c_.tokenized_path.has_value();
      if (!read && changed(key)) {
        note(std::string("'") + key + "' (" + at(key) + ") is read only with " +
             (std::string(key) == "buffer_size" ? "streaming: true" : "tokenized_path"));
      }
    }
    if (c_.val_size >= 1 && c_.val_size != std::floor(c_.val_size)) {
      complain({.what = "value of 'val_size' cannot be used",
                .expected = "a fraction below 1 or a whole number of samples",
                .found = number_text(c_.val_size),
                .where = at("val_size")});
    }
    if (c_.val_size > 0 && !c_.eval_dataset.empty()) {
      complain({.what = "val_size and eval_dataset exclude each other",
                .where = both("val_size", "eval_dataset")});
    }
    const bool evaluates = c_.val_size > 0 || !c_.eval_dataset.empty();
    if (c_.eval_strategy != "no" && !evaluates) {
      complain({.what = "'eval_strategy: " + c_.eval_strategy + "' has nothing to evaluate",
                .where = at("eval_strategy"),
                .fix = "set eval_dataset or val_size, or eval_strategy: no"});
    }
  }
};

}  // namespace

void apply_path_rules(Resolved& resolved, const LoadOptions& options) {
  PathRules(resolved, options).apply();
}

void apply_data_rules(Resolved& resolved, const LoadOptions& options) {
  DataRules(resolved, options).apply();
}

}  // namespace octet::config
