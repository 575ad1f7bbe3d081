// Rules for paths and data.
#include <algorithm>
#include <cmath>

#include "octet/base/files.h"
#include "octet/base/model_file.h"
#include "octet/config/derive.h"
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
    if (c_.ref_model) {
      from_home(*c_.ref_model);
      from_hub("ref_model", *c_.ref_model, "main");
    }
    const auto revision = r_.extra.find("model_revision");
    from_hub("model_name_or_path", c_.model_name_or_path,
             revision == r_.extra.end() ? "main" : revision->second);
  }

 private:
  // Replaces a hub name by the folder of its model in the cache, if there is one.
  void from_hub(const char* key, std::string& path, const std::string& revision) {
    const std::string name = path;
    if (name.empty() || path_exists(name)) return;
    const std::string found = hub_snapshot(hub_folder([this](const char* word) { return variable(word); }),
                                           HubKind::model, name, revision);
    if (found.empty()) return;
    note(named(key, name) + " is taken from Hugging Face's cache: " + found);
    path = found;
  }
  std::string variable(const char* name) const {
    const auto found = options_.environment.find(name);
    return found == options_.environment.end() ? "" : found->second;
  }
  // A shell expands ~ only at the start of a word, so it is expanded here.
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
  }

 private:
  // Returns another trainer's key for `other` if `given` is that trainer's: data.response_key for
  // data.prompt_key.
  std::string beside(const char* given, const char* other) const {
    const std::string word = said(given);
    const std::string section = word.substr(0, word.find('.') + 1);
    if (section.empty()) return other;
    const std::vector<ForeignKey> keys = dialect_keys();
    const auto own = std::ranges::find(keys, word, &ForeignKey::path);
    for (const ForeignKey& key : dialect_keys(own == keys.end() ? "none" : own->trainer)) {
      if (key.becomes == other && key.path.starts_with(section)) return key.path;
    }
    return other;
  }

  // Returns the advice for switching evaluation off. Its interval then has no effect.
  std::string without_evaluation() const {
    const std::string word = said("eval_strategy");
    return word == said("eval_steps") ? "remove " + word : set_to("eval_strategy", "no");
  }

  void lengths() {
    if (!c_.pack_factor || c_.truncation != "error") return;
    complain(
        {.what = "'" + said("pack_factor") + "' cuts texts, but " + named("truncation", "error") + " forbids",
         .expected = "truncation: cut with " + said("pack_factor"),
         .found = said("truncation") + ": error",
         .where = both("pack_factor", "truncation"),
         .fix = "remove " + said("pack_factor") + ", or " + set_to("truncation", "cut")});
  }

  void weights() {
    if (c_.interleave_probs.empty() || c_.mix_strategy != "concat") return;
    complain({.what = said("interleave_probs") + " is read only when datasets are interleaved",
              .expected = "mix_strategy: interleave_under, interleave_over or interleave_once",
              .found = said("mix_strategy") + ": concat",
              .where = both("interleave_probs", "mix_strategy"),
              .fix = set_to("mix_strategy", "interleave_under") + ", or remove " + said("interleave_probs")});
  }

  void data() {
    if (c_.mask_history && c_.train_on_prompt) {
      complain({.what = said("mask_history") + " and " + said("train_on_prompt") + " exclude each other",
                .expected = one_of(said("mask_history"), said("train_on_prompt")),
                .found = "both are true",
                .where = both("mask_history", "train_on_prompt"),
                .fix = kOneOfTwo});
    }
    for (const auto& [key, on] : {std::pair<const char*, bool>{"neat_packing", c_.neat_packing},
                                  {"train_on_prompt", c_.train_on_prompt},
                                  {"mask_history", c_.mask_history}}) {
      if (on && c_.stage != "sft") {
        complain({.what = named(key, "true") + " needs 'stage: sft'",
                  .found = said("stage") + ": " + c_.stage,
                  .where = both(key, "stage"),
                  .fix = set_to("stage", "sft") + ", or remove " + said(key)});
      }
    }
    if (c_.neat_packing && r_.is_set("packing") && !c_.packing) {
      complain({.what = said("neat_packing") + " packs, but " + named("packing", "false") + " forbids it",
                .expected = "packing: true with " + said("neat_packing"),
                .found = said("packing") + ": false",
                .where = both("neat_packing", "packing"),
                .fix = kOneOfTwo});
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
      const char* given = asks ? "prompt_column" : "response_column";
      const char* other = asks ? "response_column" : "prompt_column";
      complain({.what = said(given) + " is given without " + beside(given, other),
                .expected = "the columns of questions and of answers",
                .where = at(given),
                .fix = "give " + beside(given, other) + ", too, or remove " + said(given)});
    }
    if (c_.messages_column && c_.prompt_column) {
      complain({.what = said("messages_column") + " and " + said("prompt_column") + " exclude each other",
                .expected = "rows with conversations, or with a question and an answer",
                .where = both("messages_column", "prompt_column"),
                .fix = "keep the columns that the rows have: " + said("messages_column") + ", or " +
                       said("prompt_column") + " and " + said("response_column")});
    }
    if (c_.streaming && c_.max_steps < 1) {
      complain({.what = named("streaming", "true") + " needs max_steps",
                .expected = "a number of steps, because the length of an epoch is unknown until its end",
                .where = at("streaming"),
                .fix = set_to("max_steps", "1000") + ", say, or streaming: false"});
    }
    if (c_.streaming && c_.tokenized_path) {
      complain({.what = said("streaming") + " and " + said("tokenized_path") + " exclude each other",
                .expected = one_of(said("streaming") + " (rows are tokenised during training)",
                                   said("tokenized_path") + " (all rows are tokenised first)"),
                .found = said("tokenized_path") + ": " + *c_.tokenized_path,
                .where = both("streaming", "tokenized_path"),
                .fix = "remove " + said("tokenized_path") + ", or " + set_to("streaming", "false")});
    }
    for (const char* key : {"overwrite_cache", "buffer_size"}) {
      const bool read = std::string(key) == "buffer_size" ? c_.streaming : c_.tokenized_path.has_value();
      if (!read && changed(key)) {
        note("'" + said(key) + "' (" + at(key) + ") is read only with " +
             (std::string(key) == "buffer_size" ? "streaming: true" : "tokenized_path"));
      }
    }
    if (c_.val_size >= 1 && c_.val_size != std::floor(c_.val_size)) {
      complain({.what = "value of '" + said("val_size") + "' cannot be used",
                .expected = "a fraction below 1 or a whole number of samples",
                .found = number_text(c_.val_size),
                .where = at("val_size"),
                .fix = such_a_value("val_size")});
    }
    if (c_.val_size > 0 && !c_.eval_dataset.empty()) {
      complain({.what = said("val_size") + " and " + said("eval_dataset") + " exclude each other",
                .expected = one_of(said("val_size"), said("eval_dataset")),
                .found = said("val_size") + ": " + number_text(c_.val_size) + ", " + said("eval_dataset") +
                         ": " + c_.eval_dataset.front(),
                .where = both("val_size", "eval_dataset"),
                .fix = kOneOfTwo});
    }
    const bool evaluates = c_.val_size > 0 || !c_.eval_dataset.empty();
    if (c_.eval_strategy != "no" && !evaluates) {
      complain({.what = named("eval_strategy", c_.eval_strategy) + " has nothing to evaluate",
                .expected = "rows to evaluate: eval_dataset, or val_size above 0",
                .found = "neither",
                .where = at("eval_strategy"),
                .fix = "set eval_dataset or val_size, or " + without_evaluation()});
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
