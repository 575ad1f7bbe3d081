#include "octet/config/warnings.h"

#include <algorithm>
#include <filesystem>

#include "octet/config/derive.h"
#include "rules.h"
#include "value.h"

namespace octet::config {
namespace {

class Doubts : RulesOf {
 public:
  using RulesOf::RulesOf;

  Strings take() {
    all_ = r_.warnings;
    optimisation();
    precision();
    data();
    output();
    memory();
    communication();
    return std::move(all_);
  }

  /// Returns the sentence after the place of the first key that is set, or after the file.
  std::string placed(const Strings& keys, const std::string& sentence) const {
    const auto set = std::ranges::find_if(keys, [&](const std::string& key) { return r_.is_set(key); });
    std::string place = set == keys.end() ? r_.path : at(*set);
    if (set != keys.end() && said(*set) != *set) place += " (" + said(*set) + ")";
    return place.empty() ? sentence : place + ": " + sentence;
  }

 private:
  /// The first key of `keys` that is set gives the place. `harm` is a sentence, `fix` completes "to do:".
  void add(bool doubtful, const Strings& keys, const std::string& harm, std::string fix) {
    if (!doubtful) return;
    for (const std::string& key : keys) {
      // Next to another trainer's word for it, the key would be given twice.
      if (said(key) == key || !fix.starts_with("set " + key + ": ")) continue;
      fix.insert(std::min(fix.find(", "), fix.size()), " in place of " + said(key));
      break;
    }
    all_.push_back(placed(keys, harm + "; to do: " + fix));
  }

  void optimisation() {
    add(c_.learning_rate == 0, {"learning_rate"}, "learning_rate is 0: nothing is learned",
        "set a learning_rate above 0");
    const bool lora = c_.finetuning_type == "lora";
    // The stages dpo and kto begin with a trained model, and have lower rates.
    const bool low = c_.learning_rate < 5e-5 && c_.stage != "dpo" && c_.stage != "kto";
    add(lora && c_.learning_rate > 0 && low, {"learning_rate", "finetuning_type"},
        "learning_rate is below 5e-5: adapters need about ten times the rate of full fine-tuning",
        "set learning_rate: 1.0e-4 to 5.0e-4");
    const bool own = lora && (!c_.adapter_name_or_path || c_.create_new_adapter);
    add(own && attention_only(c_.lora_target), {"lora_target"},
        "lora_target names only modules of attention: adapters in the MLP learn more with the same number "
        "of parameters",
        "set lora_target: all");
    add(lora && samples_of_a_step() > 256,
        {"global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps"},
        "a step trains " + std::to_string(samples_of_a_step()) +
            " samples: with adapters, batches above 256 learn less from the same data than full fine-tuning",
        "train 256 samples or fewer per step");
    add(own && c_.lora_alpha == 0.0, {"lora_alpha"},
        "lora_alpha is 0: the output of adapters is multiplied by 0", "set lora_alpha to twice lora_rank");
    add(!lora && !c_.train_from_scratch && c_.learning_rate > 5e-4, {"learning_rate"},
        "learning_rate " + number_text(c_.learning_rate) +
            " is high for fine-tuning all weights: the model loses what it learned before",
        "set learning_rate: 1.0e-5 to 5.0e-5");
    add(c_.max_grad_norm == 0, {"max_grad_norm"},
        "max_grad_norm is 0: gradients are not clipped, so one bad step can spoil the weights",
        "set max_grad_norm: 1.0");
    const bool plateau = c_.lr_scheduler_type == kPlateau;
    add(!plateau && (c_.warmup_ratio > 0.5 ||
                     (c_.max_steps > 0 && c_.warmup_steps > static_cast<double>(c_.max_steps) / 2)),
        {c_.warmup_steps > 0 ? "warmup_steps" : "warmup_ratio"},
        "the rate rises for more than half of the run", "lower warmup_steps or warmup_ratio");
    if (plateau) follows_evaluations();
    add(c_.num_train_epochs > 20 && c_.max_steps <= 0, {"num_train_epochs"},
        "num_train_epochs is more than 20: fine-tuning mostly overfits earlier",
        "lower num_train_epochs, or evaluate during the run (eval_strategy)");
  }

  // Checks reduce_lr_on_plateau.
  void follows_evaluations() {
    const Arguments& arguments = c_.lr_scheduler_kwargs;
    const auto number = [&](const char* name, double fallback) {
      const auto found = arguments.find(name);
      return found == arguments.end() ? fallback : std::get<double>(found->second);
    };
    const auto mode = arguments.find("mode");
    add(mode != arguments.end() && mode->second == std::variant<double, std::string>("max"),
        {"lr_scheduler_kwargs"}, "lr_scheduler_kwargs: {mode: max} treats a larger evaluation loss as better",
        "set mode: min");
    add(number("min_lr", 0) >= c_.learning_rate && c_.learning_rate > 0,
        {"lr_scheduler_kwargs", "learning_rate"},
        "lr_scheduler_kwargs: min_lr is not below learning_rate: the rate never falls",
        "lower min_lr, or raise learning_rate");
    if (c_.max_steps <= 0 || c_.eval_strategy != "steps") return;
    const std::int64_t each = interval_steps(c_.eval_steps.value_or(c_.logging_steps), c_.max_steps);
    const double patience = number("patience", 10);
    // The first evaluation sets the best loss. A reduction after the last step has no effect.
    const std::int64_t used = (c_.max_steps - 1) / each;
    add(static_cast<double>(used) < patience + 2, {"lr_scheduler_kwargs", "lr_scheduler_type"},
        "reduce_lr_on_plateau waits for " + number_text(patience) +
            " evaluations without improvement, but the run has only " + std::to_string(used) +
            " before its last step: the rate never falls",
        "lower patience or eval_steps");
  }

  void precision() {
    add(!computes_in_bf16(c_) && c_.device != "cpu", {"bf16", "pure_bf16"},
        "neither bf16 nor pure_bf16 is set: everything that is not FP8 computes in fp32, which is slow on "
        "GPUs",
        "set bf16: true");
    add(c_.fp8 && c_.device == "cpu", {"fp8"}, "fp8 on a CPU emulates a GPU, and is slower there than bf16",
        "set fp8: false, unless the numbers of a GPU are wanted");
    add(c_.fp8 && c_.fp8_recipe == "delayed" && c_.fp8_amax_history_len < 16, {"fp8_amax_history_len"},
        "fp8_amax_history_len is short: one small step shrinks the range for the next",
        "set fp8_amax_history_len: 1024");
    add((c_.deterministic == "true" || c_.deterministic == "strict") && c_.device != "cpu", {"deterministic"},
        "deterministic: true and strict make attention slower on a GPU, and much slower if documents are too "
        "long for its workspace",
        "set deterministic: false, unless equal bits are wanted");
  }

  void data() {
    add(c_.cutoff_len < 64, {"cutoff_len"}, "cutoff_len is below 64: most samples will be cut",
        "raise cutoff_len");
    add(c_.stage != "pt" && !c_.template_name, {"template"},
        "no template is named: conversations are written with the template of the tokenizer, if it has one",
        "set template");
    add(c_.eval_strategy == "no" && (c_.val_size > 0 || !c_.eval_dataset.empty()),
        {"eval_strategy", "val_size", "eval_dataset"}, "data are held out and never evaluated",
        "set eval_strategy: steps");
    add(c_.disable_shuffling, {"disable_shuffling"},
        "disable_shuffling: samples are trained in the order of the files, so similar rows share a step",
        "set disable_shuffling: false");
    for (const std::string& file : c_.eval_dataset) {
      std::error_code ignored;
      add(std::ranges::find(c_.dataset, file) != c_.dataset.end() &&
              std::filesystem::is_regular_file(file, ignored),
          {"eval_dataset"},
          "eval_dataset names '" + file +
              "', which is trained: the evaluation loss measures what was learned by heart",
          "name other rows, or set val_size in place of eval_dataset");
    }
  }

  void output() {
    add(c_.save_strategy == "no", {"save_strategy"},
        "save_strategy is no: a run that ends early cannot resume", "set save_strategy: steps");
    const bool measured = c_.mtbf_hours && !r_.is_set("save_steps") && c_.save_strategy == "steps";
    add(measured && !c_.save_total_limit, {"mtbf_hours"},
        "with mtbf_hours checkpoints may come often, and all are kept", "set save_total_limit");
    add(!measured && c_.save_strategy == "steps" && c_.max_steps > 0 &&
            c_.save_steps > static_cast<double>(c_.max_steps),
        {"save_steps", "max_steps"},
        "save_steps " + number_text(c_.save_steps) + " is beyond max_steps " + std::to_string(c_.max_steps) +
            ": the only checkpoint is the last, and a run that ends early starts again",
        "lower save_steps");
    add(!measured && c_.save_strategy == "steps" && !c_.save_total_limit && c_.max_steps > 0 &&
            c_.save_steps >= 1 && static_cast<double>(c_.max_steps) / c_.save_steps > 20,
        {"save_steps", "max_steps"}, "more than 20 checkpoints will be kept, and each holds the whole state",
        "set save_total_limit");
    add(c_.logging_steps >= 1 && c_.max_steps > 0 && c_.logging_steps > static_cast<double>(c_.max_steps),
        {"logging_steps", "max_steps"},
        "logging_steps " + number_text(c_.logging_steps) + " is beyond max_steps " +
            std::to_string(c_.max_steps) + ": only the last step is logged",
        "lower logging_steps");
  }

  void memory() {
    add(c_.zero_stage == 3 && !c_.overlap_comm, {"overlap_comm"},
        "zero_stage 3 without overlap_comm waits for every block's parameters", "set overlap_comm: true");
    add(c_.device != "cpu" && c_.per_device_train_batch_size == 1 && !c_.packing &&
            !c_.auto_find_batch_size && c_.cutoff_len < 1024,
        {"per_device_train_batch_size"}, "micro-batches of one short sample leave a GPU idle",
        "raise per_device_train_batch_size, or set packing: true");
  }

  void communication() {
    add(c_.device != "cpu" && c_.gpu_transport == "host", {"gpu_transport"},
        "gpu_transport: host is the slowest way between GPUs, for machines with GPUs that cannot reach each "
        "other",
        "set gpu_transport: auto, which chooses host if nothing else works");
  }

  static bool attention_only(const Strings& targets) {
    return std::ranges::all_of(targets, [](const std::string& target) {
      const std::string word = target.substr(target.rfind('.') + 1);
      return word == "q_proj" || word == "k_proj" || word == "v_proj" || word == "qkv_proj" ||
             word == "o_proj";
    });
  }

  /// Returns global_batch_size, or the samples per step on one rank if it is not set.
  std::int64_t samples_of_a_step() const {
    return c_.global_batch_size ? *c_.global_batch_size : resolve_batch(c_, 1).global;
  }

  Strings all_;
};

}  // namespace

Strings doubts(const Resolved& resolved) {
  Resolved own = resolved;
  return Doubts(own, {.environment = {}}).take();
}

std::string placed(const Resolved& resolved, const Strings& keys, const std::string& sentence) {
  Resolved own = resolved;
  return Doubts(own, {.environment = {}}).placed(keys, sentence);
}

namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";

class Located : RulesOf {
 public:
  using RulesOf::RulesOf;

  Problem of(Problem problem) const {
    const std::size_t named = problem.where.find("configuration key");
    if (named != std::string::npos) {
      const std::string places = places_of(keys_in(problem.where.substr(named), false));
      if (!places.empty()) problem.where.replace(named, std::string::npos, places);
    } else if (find_field(problem.where) != nullptr) {
      problem.where = places_of({problem.where});
    } else if (problem.where.empty()) {
      problem.where = places_of(keys_in(problem.what, true));
    }
    for (const std::string& key : keys_in(problem.what, true)) reword(problem.what, key);
    return problem;
  }

 private:
  /// Returns the names of keys among the words of a text. `unmistakable`: only names that are no English
  /// words.
  static Strings keys_in(const std::string& text, bool unmistakable) {
    Strings keys;
    for (std::size_t at = 0; (at = text.find_first_of(kLetters, at)) != std::string::npos;) {
      const std::size_t end = std::min(text.find_first_not_of(kLetters, at), text.size());
      const std::string word = text.substr(at, end - at);
      const Field* field = find_field(word);
      const bool counts = field != nullptr && field->status == Status::used &&
                          (!unmistakable || word.find('_') != std::string::npos);
      if (counts && std::ranges::find(keys, word) == keys.end()) keys.push_back(word);
      at = end;
    }
    return keys;
  }
  std::string places_of(const Strings& keys) const {
    std::string all;
    for (const std::string& key : keys) all += (all.empty() ? "" : ", ") + said(key) + " (" + at(key) + ")";
    return all;
  }
  void reword(std::string& text, const std::string& key) const {
    const std::string word = said(key);
    if (word == key) return;
    const std::size_t at = text.find(key);
    text.replace(at, key.size(), word);
  }
};

}  // namespace

Problem located(Problem problem, const Resolved& resolved) {
  Resolved own = resolved;
  return Located(own, {.environment = {}}).of(std::move(problem));
}

}  // namespace octet::config
