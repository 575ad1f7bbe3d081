// The table of SFT-Play's keys.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "dialects/dialect_facts.h"
#include "octet/base/strings.h"

namespace octet::config {
namespace {

constexpr const char* kNames = "rows are recognised by their fields";

// The dtype of the saved model in transformers. "auto" keeps the dtype of the model.
void take_dtype(const Node& node, const Location& at, const Target& target) {
  if (node.kind == Node::Kind::scalar && node.text == "auto") return;
  Node word = node;
  if (word.text == "float32") word.text = "fp32";
  if (word.text == "bfloat16") word.text = "bf16";
  if (word.text == "float16") word.text = "fp16";
  Location known = at;
  known.written = node.text;
  target.settings.add("export_dtype", word, known, target.replace);
}

constexpr Entry kSftPlayKeys[] = {
    {"torch_dtype", Action::handled, "export_dtype", "", take_dtype},
    {"model.name", Action::weak, "model_name_or_path"},
    {"model.local_dir", Action::map, "model_name_or_path"},
    {"model.max_seq_len", Action::fact, "cutoff_len"},
    {"model.type", Action::note, "the architecture is read from config.json"},
    {"model.trust_remote_code", Action::map, "trust_remote_code"},
    {"model.revision", Action::map, "model_revision"},
    {"tuning.mode", Action::map, "finetuning_type"},
    {"tuning.backend", Action::note, "there is one backend, this program"},
    {"tuning.lora.r", Action::map, "lora_rank"},
    {"tuning.lora.alpha", Action::map, "lora_alpha"},
    {"tuning.lora.dropout", Action::map, "lora_dropout"},
    {"tuning.lora.target_modules", Action::map, "lora_target", "auto=all,all-linear=all"},
    {"train.batch_size", Action::fact, "per_device_train_batch_size"},
    {"train.per_device_train_batch_size", Action::fact, "per_device_train_batch_size"},
    {"train.eval_batch_size", Action::map, "per_device_eval_batch_size"},
    {"train.per_device_eval_batch_size", Action::map, "per_device_eval_batch_size"},
    {"train.grad_accum", Action::fact, "gradient_accumulation_steps"},
    {"train.gradient_accumulation_steps", Action::fact, "gradient_accumulation_steps"},
    {"train.epochs", Action::map, "num_train_epochs"},
    {"train.steps", Action::map, "max_steps"},
    {"train.max_steps", Action::map, "max_steps"},
    {"train.learning_rate", Action::map, "learning_rate"},
    {"train.warmup_ratio", Action::map, "warmup_ratio"},
    {"train.num_warmup_steps", Action::map, "warmup_steps"},
    {"train.warmup_steps", Action::map, "warmup_steps"},
    {"train.weight_decay", Action::map, "weight_decay"},
    {"train.max_grad_norm", Action::map, "max_grad_norm"},
    {"train.lr_scheduler_type", Action::map, "lr_scheduler_type"},
    {"train.optim", Action::map, "optim"},
    {"train.bf16", Action::map, "bf16"},
    {"train.fp16", Action::map, "fp16"},
    {"train.gradient_checkpointing", Action::map, "gradient_checkpointing"},
    {"train.dataloader_num_workers", Action::map, "dataloader_num_workers"},
    {"train.dataloader_pin_memory", Action::map, "dataloader_pin_memory"},
    {"train.logging_steps", Action::map, "logging_steps"},
    {"train.evaluation_strategy", Action::map, "eval_strategy"},
    {"train.eval_strategy", Action::map, "eval_strategy"},
    {"train.eval_steps", Action::map, "eval_steps"},
    {"train.save_strategy", Action::map, "save_strategy"},
    {"train.save_steps", Action::map, "save_steps"},
    {"train.save_total_limit", Action::map, "save_total_limit"},
    {"train.load_best_model_at_end", Action::map, "load_best_model_at_end"},
    {"train.metric_for_best_model", Action::fact, "metric_for_best_model"},
    {"train.greater_is_better", Action::fact, "greater_is_better"},
    {"train.resume_from_checkpoint", Action::map, "resume_from_checkpoint"},
    {"train.report_to", Action::map, "report_to"},
    {"train.run_name", Action::weak, "run_name"},
    {"train.output_dir", Action::map, "output_dir"},
    {"train.overwrite_output_dir", Action::fact, "overwrite_output_dir"},
    {"train.seed", Action::weak, "seed"},
    {"data.format", Action::note, kNames},
    {"data.template_path", Action::map, "template"},
    {"data.train_path", Action::fact, "dataset"},
    {"data.val_path", Action::map, "eval_dataset"},
    {"data.test_path", Action::note, "only training and validation data are read"},
    {"data.cache_dir", Action::map, "cache_dir"},
    {"data.split.train_ratio", Action::fact, "val_size"},
    {"data.split.train", Action::fact, "val_size"},
    {"data.split.val", Action::fact, "val_size"},
    {"data.split.val_ratio", Action::fact, "val_size"},
    {"data.split.test", Action::fact, "val_size"},
    {"data.split.test_ratio", Action::fact, "val_size"},
    {"logging.backend", Action::map, "report_to"},
    {"logging.log_interval", Action::weak, "logging_steps"},
    {"task_mode", Action::fact, "stage packing"},
    {"mode", Action::fact, "stage packing"},
    {"block_size", Action::fact, "cutoff_len"},
    {"stride", Action::note, "blocks do not overlap"},
    {"datasets", Action::fact, "dataset interleave_probs mix_strategy"},
};

}  // namespace

constinit const Dialect kSftPlay{
    .name = "SFT-Play", .keys = kSftPlayKeys, .bare_keys = true, .settle = settle_sft_play};

// Resolves SFT-Play keys that depend on each other.

namespace {

/// datasets: [{path, name, type, weight}], parsed and checked.
struct Mix {
  Node paths, weights;
  bool weighted = false;
};

class SftPlayFacts : FactsOf {
 public:
  using FactsOf::FactsOf;

  void settle() {
    mode();
    data();
    length();
    batch();
    held_out();
    best_model();
    overwriting();
  }

 private:
  // Translates task_mode. cpt_mixed trains texts whole and conversations by their answers, in packed
  // sequences of both.
  void mode() {
    const Fact* mode = strongest({"task_mode", "mode"});
    if (mode == nullptr) return;
    mode_ = word(mode);
    Node stage = mode->node;
    if (mode_ == "cpt") stage.text = "pt";
    if (mode_ == "cpt_mixed") stage.text = "sft";
    const bool counts = set("stage", stage, *mode) && !overridden("stage", *mode);
    if (counts && mode_ == "cpt_mixed") set("packing", "true", *mode);
  }

  /// Whether texts are trained in blocks.
  bool texts() const { return mode_ == "cpt" || mode_ == "cpt_mixed" || value_of("stage") == "pt"; }

  void data() {
    const Fact* sets = find("datasets");
    const Fact* file = find("data.train_path");
    if (sets != nullptr && file != nullptr) {
      if (sets->override != file->override) {
        (sets->override ? file : sets) = nullptr;
      } else if (!texts() && !before(*sets, *file) && !before(*file, *sets)) {
        complain({.what = "'" + sets->at.key + "' and '" + file->at.key + "' both name the training data",
                  .found = sets->at.where + " and " + file->at.where,
                  .where = file->at.where,
                  .fix = "keep one of the two; with task_mode: cpt_mixed datasets counts"});
      } else {
        (texts() || before(*sets, *file) ? file : sets) = nullptr;
      }
      const Fact* loser = sets == nullptr ? find("datasets") : find("data.train_path");
      give_way(*loser, sets == nullptr ? *file : *sets);
    }
    if (file != nullptr) set("dataset", file->node, *file);
    if (sets != nullptr) datasets(*sets);
  }

  // Interleaves sets by weight until the first set is exhausted, like Hugging Face's interleave_datasets.
  void datasets(const Fact& sets) {
    const Mix mix = read_mix(sets);
    // If a stronger source names other sets, these weights do not apply.
    if (!set("dataset", mix.paths, sets) || overridden("dataset", sets) || !mix.weighted) return;
    set("interleave_probs", mix.weights, sets);
    set("mix_strategy", "interleave_under", sets);
  }

  Mix read_mix(const Fact& sets) const {
    const auto wrong = [&sets](const Node& found) {
      complain({.what = "value of '" + sets.at.key + "' cannot be used",
                .expected = "a list of {path: FILE, weight: NUMBER}",
                .found = shown(found),
                .where = sets.at.where,
                .fix = "write it in this form, or name the files in dataset"});
    };
    if (sets.node.kind != Node::Kind::list) wrong(sets.node);
    Mix mix;
    mix.paths.kind = mix.weights.kind = Node::Kind::list;
    for (const Node& item : sets.node.items) {
      const Node* path = &item;
      if (item.kind == Node::Kind::map) {
        check_item(item, sets);
        path = item.find("path") != nullptr ? item.find("path") : item.find("name");
      }
      if (path == nullptr || path->kind != Node::Kind::scalar) wrong(item);
      mix.paths.items.push_back(*path);
      const Node* weight = item.find("weight");
      const bool has = weight != nullptr && !weight->is_null();
      mix.weighted = mix.weighted || has;
      mix.weights.items.push_back(has ? *weight : scalar_node("1"));
    }
    return mix;
  }

  void check_item(const Node& item, const Fact& sets) const {
    for (const auto& [key, value] : item.members) {
      if (key != "path" && key != "name" && key != "type" && key != "weight")
        unknown_key(key, sets.at.where + ": " + sets.at.key, {"path", "name", "type", "weight"});
    }
    const Node* type = item.find("type");
    if (type == nullptr || type->is_null()) return;
    const std::string what = type->kind == Node::Kind::scalar ? type->text : "";
    if (what != "cpt" && what != "chat") {
      complain({.what = "value of '" + sets.at.key + ".type' cannot be used",
                .expected = "cpt, for texts, or chat, for conversations",
                .found = shown(*type),
                .where = sets.at.where,
                .fix = "write type: cpt or type: chat, or remove it"});
    }
    if (what == "chat" && value_of("stage") == "pt") {
      complain({.what = "'" + sets.at.key + ".type: chat' cannot be used for continued pre-training",
                .expected = "type: cpt",
                .found = "stage: pt" + (mode_.empty() ? "" : ", by task_mode: " + mode_),
                .where = sets.at.where,
                .fix = "set task_mode: cpt_mixed, which trains texts and conversations"});
    }
  }

  // block_size is the length of texts, max_seq_len that of conversations.
  void length() {
    const Fact* block = find("block_size");
    const Fact* longest = find("model.max_seq_len");
    if (block != nullptr && longest != nullptr) {
      const bool by_block = block->override != longest->override ? block->override : texts();
      give_way(by_block ? *longest : *block, by_block ? *block : *longest);
      (by_block ? longest : block) = nullptr;
    }
    const Fact* length = block != nullptr ? block : longest;
    if (length != nullptr) set("cutoff_len", length->node, *length);
  }

  static bool is_auto(const Fact* fact) { return word(fact) == "auto"; }

  /// Returns the stronger of two names for a number. If both are equally strong, a number wins over auto.
  const Fact* count(const char* usual, const char* other) {
    const Fact* a = find(usual);
    const Fact* b = find(other);
    if (a != nullptr && b != nullptr && is_auto(a) && !is_auto(b) && !before(*a, *b)) {
      give_way(*a, *b);
      return b;
    }
    return strongest({usual, other});
  }

  // auto chooses the micro-batch by device memory, and steps of about 32 samples.
  void batch() {
    const Fact* batch = count("train.batch_size", "train.per_device_train_batch_size");
    const Fact* accumulation = count("train.grad_accum", "train.gradient_accumulation_steps");
    if (batch != nullptr && is_auto(batch)) {
      const Setting* own = sources_.overrides.find("per_device_train_batch_size");
      const bool told = own != nullptr && own->value.given && !batch->override;
      if (told) {
        batch = nullptr;
      } else {
        set("auto_find_batch_size", "true", *batch);
      }
    } else if (batch != nullptr) {
      set("per_device_train_batch_size", batch->node, *batch);
      batch = nullptr;
    }
    if (accumulation != nullptr && !is_auto(accumulation)) {
      set("gradient_accumulation_steps", accumulation->node, *accumulation);
      return;
    }
    const Fact* asks = accumulation != nullptr ? accumulation : batch;
    if (asks == nullptr || given({"global_batch_size", "gradient_accumulation_steps"})) return;
    set("gradient_accumulation_steps", "auto", *asks);
    sources_.note("'" + asks->at.key +
                  ": auto' makes steps of about 32 samples over all ranks; global_batch_size sets a number");
  }

  /// A share of the rows.
  struct Share {
    double value = 0;
    const Fact* fact = nullptr;
  };

  /// Reads a share under one of its names.
  Share share(std::initializer_list<const char*> names, bool trains) {
    const Fact* fact = strongest(names);
    if (fact == nullptr) return {};
    const auto value = read_number(word(fact));
    if (trains && (!value || *value <= 0 || *value > 1)) wrong(*fact, "a share above 0 and at most 1");
    if (!trains && (!value || *value < 0 || *value >= 1)) wrong(*fact, "a share of at least 0 and below 1");
    return {.value = *value, .fact = fact};
  }

  // SFT-Play splits one file in three parts; here all rows that are not trained are held out.
  void held_out() {
    const Share trained = share({"data.split.train_ratio", "data.split.train"}, true);
    Share evaluated = share({"data.split.val_ratio", "data.split.val"}, false);
    Share tested = share({"data.split.test_ratio", "data.split.test"}, false);
    // A training share on the command line overrides all shares in the file.
    if (trained.fact != nullptr && trained.fact->override) {
      for (Share* other : {&evaluated, &tested}) {
        if (other->fact != nullptr && !other->fact->override) *other = {};
      }
    }
    const Fact* said = trained.fact != nullptr     ? trained.fact
                       : evaluated.fact != nullptr ? evaluated.fact
                                                   : tested.fact;
    if (said == nullptr) return;
    const double rest = evaluated.value + tested.value, sum = trained.value + rest;
    if (sum > 1 + 1e-9 || rest >= 1) {
      complain({.what = "the shares of 'data.split' add up to more than 1",
                .expected = "shares of training, validation and tests that add up to 1",
                .found = number_text(std::round(sum * 1e9) / 1e9),
                .where = said->at.where,
                .fix = "lower one of them, or remove 'data.split'"});
    }
    if (given({"eval_dataset", "val_size"})) {
      sources_.note("'" + said->at.key + "' is not read: other keys set the evaluation data");
      return;
    }
    const double held = std::round((trained.fact != nullptr ? 1 - trained.value : rest) * 1e9) / 1e9;
    if (held <= 0) return;
    if (tested.value > 0)
      sources_.note(
          "'data.split': all rows that are not trained are held out for evaluation, including the share for "
          "tests");
    set("val_size", number_text(held), *said);
  }

  // Evaluation only computes the loss. SFT-Play's other metric is the ROUGE score of answers.
  void best_model() {
    const Fact* metric = find("train.metric_for_best_model");
    const Fact* greater = find("train.greater_is_better");
    if (lower_case(word(metric)).find("rouge") != std::string::npos) {
      if (!overridden("metric_for_best_model", *metric)) {
        sources_.note("'" + metric->at.key + ": " + word(metric) +
                      "' is not computed while training: the best model has the smallest evaluation loss; "
                      "trainer generate CHECKPOINT --file HELD_OUT --rouge-l scores a checkpoint");
      }
      return;
    }
    if (metric != nullptr) set("metric_for_best_model", metric->node, *metric);
    if (greater != nullptr) set("greater_is_better", greater->node, *greater);
  }

  // In SFT-Play this key does not empty the folder, and an existing checkpoint is still resumed.
  void overwriting() {
    const Fact* overwrite = find("train.overwrite_output_dir");
    if (overwrite == nullptr) return;
    const std::string resumes = value_of("resume_from_checkpoint");
    if (!overwrite->override && (resumes == "auto" || read_bool(resumes).value_or(false)) &&
        read_bool(word(overwrite)).value_or(false)) {
      sources_.note("'" + overwrite->at.key + "' is overridden by 'resume_from_checkpoint: " + resumes +
                    "', which resumes the newest checkpoint if there is one");
      return;
    }
    set("overwrite_output_dir", overwrite->node, *overwrite);
  }

  std::string mode_;  ///< SFT-Play's task mode
};

}  // namespace

void settle_sft_play(Sources& sources) {
  SftPlayFacts(sources).settle();
}

}  // namespace octet::config
