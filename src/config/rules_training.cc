// Rules for schedules, and for the checks for silent errors.
#include <algorithm>
#include <cmath>

#include "octet/base/strings.h"
#include "rules.h"
#include "settings.h"

namespace octet::config {

// Rules for the checks for silent errors.

namespace {

class CheckRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    factor("loss_spike_factor", c_.loss_spike_factor);
    factor("grad_norm_spike_factor", c_.grad_norm_spike_factor);
    replays();
    goes_back("sdc_action", c_.sdc_action);
    goes_back("spike_action", c_.spike_action);
    if (c_.sdc_steps == 0 && changed("sdc_action"))
      note("'sdc_action' (" + at("sdc_action") + ") is read only with sdc_steps");
  }

 private:
  void factor(const char* key, double value) const {
    if (value == 0 || value > 1) return;
    complain({.what = std::string("value of '") + key + "' cannot be used",
              .expected = "a number above 1, or 0 to switch the check off",
              .found = number_text(value),
              .where = at(key),
              .fix = std::string("set ") + key + ": 5, or leave it out"});
  }

  void replays() const {
    if (c_.sdc_replay_steps == 0) return;
    if (c_.sdc_steps == 0) {
      complain({.what = "'sdc_replay_steps' needs 'sdc_steps'",
                .expected = "a number of steps between checks; replays are reported with them",
                .found = "sdc_steps: 0",
                .where = both("sdc_replay_steps", "sdc_steps"),
                .fix = "set sdc_steps: 100, or remove sdc_replay_steps"});
    }
    const bool on_gpu = c_.device == "cuda" && c_.deterministic == "auto";
    if (c_.deterministic == "false" || on_gpu) {
      complain({.what = "'sdc_replay_steps' and " + named("deterministic", c_.deterministic) +
                        (on_gpu ? " with 'device: cuda'" : "") + " exclude each other",
                .expected = "the same bits on every rank",
                .where = both("sdc_replay_steps", "deterministic"),
                .fix = "set deterministic: strict, or remove sdc_replay_steps"});
    }
  }

  void goes_back(const char* key, const std::string& action) const {
    if (action != "rollback" || c_.save_strategy != "no") return;
    complain({.what = std::string("'") + key + ": rollback' and " + named("save_strategy", "no") +
                      " exclude each other",
              .expected = "checkpoints, to which the run can return",
              .where = both(key, "save_strategy"),
              .fix = set_to("save_strategy", "steps") + ", or " + key + ": stop"});
  }
};

}  // namespace

void apply_check_rules(Resolved& resolved, const LoadOptions& options) {
  CheckRules(resolved, options).apply();
}

// The schedules, their arguments, and the allowed values.

namespace {

struct Known {
  const char* type;
  Strings names;
};

// All schedules in documentation order, with their arguments.
const Known kKnown[] = {
    {"linear", {}},
    {"cosine", {"num_cycles"}},
    {"cosine_with_restarts", {"num_cycles"}},
    {"polynomial", {"lr_end", "power"}},
    {"constant", {}},
    {"constant_with_warmup", {}},
    {"inverse_sqrt", {"timescale"}},
    {"cosine_with_min_lr", {"min_lr", "min_lr_rate", "num_cycles"}},
    {"cosine_warmup_with_min_lr", {"min_lr", "min_lr_rate", "num_cycles", "warmup_lr_rate"}},
    {"warmup_stable_decay",
     {"num_stable_steps", "num_decay_steps", "min_lr_ratio", "num_cycles", "decay_type", "warmup_type"}},
    {kPlateau, {"mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"}},
    {"deepspeed_warmup", {"warmup_type", "warmup_min_lr"}},
    {"deepspeed_warmup_decay", {"warmup_type", "warmup_min_lr", "total_num_steps"}},
    {"deepspeed_warmup_cosine", {"warmup_type", "warmup_min_ratio", "cos_min_ratio", "total_num_steps"}},
};

void check_name(const std::string& name, const std::string& type, const std::string& where) {
  Strings names;
  for (const Known& known : kKnown) {
    if (type == known.type) names = known.names;
  }
  if (std::ranges::find(names, name) != names.end()) return;
  const std::string near = nearest_name(name, names);
  complain({.what = "unknown argument '" + name + "' of '" + type + "'",
            .expected = names.empty() ? "no arguments" : listed(names),
            .where = where,
            .fix = near.empty() ? (names.empty() ? "remove it" : "give one of these, or remove it")
                                : "did you mean '" + near + "'?"});
}

// Returns the words that an argument accepts; empty for numbers.
Strings words_of(const std::string& name, const std::string& type) {
  if (name == "mode") return {"min", "max"};
  if (name == "threshold_mode") return {"rel", "abs"};
  if (name != "decay_type" && name != "warmup_type") return {};
  return type.starts_with("deepspeed_") ? Strings{"log", "linear"} : Strings{"linear", "cosine", "1-sqrt"};
}

void check_argument(const std::string& name, const std::variant<double, std::string>& value,
                    const std::string& type, const std::string& where) {
  const Strings words = words_of(name, type);
  const bool counts = name == "patience" || name == "cooldown", share = name == "factor";
  const auto* text = std::get_if<std::string>(&value);
  const auto* number = std::get_if<double>(&value);
  const bool fits = !words.empty() ? text != nullptr && std::ranges::find(words, *text) != words.end()
                                   : number != nullptr && *number >= 0 && !(share && *number >= 1) &&
                                         !(counts && *number != std::floor(*number));
  if (fits) return;
  complain({.what = "argument '" + name + "' of the schedule cannot be used",
            .expected = !words.empty() ? listed(words)
                        : counts       ? "a whole number of at least 0"
                        : share        ? "a number of at least 0 and below 1"
                                       : "a number of at least 0",
            .found = text != nullptr ? "'" + *text + "'" : number_text(*number),
            .where = where,
            .fix = such_a_value("lr_scheduler_kwargs")});
}

}  // namespace

Strings schedule_types() {
  Strings types;
  for (const Known& known : kKnown) types.emplace_back(known.type);
  return types;
}

void check_schedule_arguments(const Config& config, const std::string& type_at,
                              const std::string& arguments_at) {
  const std::string& type = config.lr_scheduler_type;
  const Arguments& arguments = config.lr_scheduler_kwargs;
  for (const auto& [name, value] : arguments) {
    check_name(name, type, arguments_at);
    check_argument(name, value, type, arguments_at);
  }
  const bool floor = arguments.contains("min_lr"), rate = arguments.contains("min_lr_rate");
  if (type.ends_with("with_min_lr") && floor == rate) {
    complain({.what = type + " needs one of min_lr and min_lr_rate",
              .found = floor ? "both" : "neither",
              .where = floor ? arguments_at : type_at,
              .fix = "lr_scheduler_kwargs: {min_lr_rate: 0.1}"});
  }
}

// Rules for adapters, freezing and quantised bases.

namespace {

class AdapterRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    qlora();
    adapters();
    freezing();
    quantisation();
  }

 private:
  // Adapters are only selected by finetuning_type. In LLaMA-Factory lora is its default.
  void adapters() {
    const bool lora = c_.finetuning_type == "lora";
    for (const char* key :
         {"lora_rank", "lora_alpha", "lora_dropout", "lora_target", "use_rslora", "use_dora",
          "loraplus_lr_ratio", "additional_target", "adapter_name_or_path", "create_new_adapter"}) {
      const std::string value = r_.is_set(key) ? value_text(*find_field(key), c_) : "null";
      if (lora || value == "null" || value == "false" || value == "[]" || value == "0") continue;
      if (r_.is_set("finetuning_type")) {
        if (!changed(key)) continue;
        note("'" + said(key) + "' (" + at(key) + ") is read only with finetuning_type: lora");
        continue;
      }
      complain({.what = "'" + said(key) + "' is for adapters, but finetuning_type is not set",
                .expected = "finetuning_type: lora, the default of LLaMA-Factory, or full",
                .where = at(key),
                .fix = "set finetuning_type: lora, or remove " + said(key)});
    }
    if (lora && c_.lora_dropout >= 1) {
      complain({.what = named("lora_dropout", number_text(c_.lora_dropout)) +
                        " drops the whole input of an adapter",
                .expected = "at least 0 and below 1",
                .found = number_text(c_.lora_dropout),
                .where = at("lora_dropout"),
                .fix = set_to("lora_dropout", "0.05") + ", or leave it out"});
    }
    if (lora && c_.use_dora && c_.lora_dropout > 0) {
      complain({.what = "dropout with DoRA is not supported",
                .expected = "lora_dropout: 0, or use_dora: false",
                .found = said("lora_dropout") + ": " + number_text(c_.lora_dropout),
                .where = both("lora_dropout", "use_dora"),
                .fix = set_to("lora_dropout", "0")});
    }
    if (lora && c_.train_from_scratch && c_.adapter_name_or_path) {
      complain({.what = "adapters need the weights of their base, but 'train_from_scratch: true' begins with "
                        "random weights",
                .expected = one_of(said("adapter_name_or_path"), said("train_from_scratch")),
                .found = said("adapter_name_or_path") + ": " + *c_.adapter_name_or_path,
                .where = both("adapter_name_or_path", "train_from_scratch"),
                .fix = "remove one of the two"});
    }
    if (lora && c_.create_new_adapter && !c_.adapter_name_or_path) {
      complain({.what = "'create_new_adapter: true' needs adapters to add to the base first",
                .expected = "adapter_name_or_path",
                .where = at("create_new_adapter"),
                .fix = "remove the key: without adapter_name_or_path, adapters are always new"});
    }
    if (lora && c_.loraplus_lr_ratio && *c_.loraplus_lr_ratio <= 0) {
      complain({.what = "loraplus_lr_ratio is not a ratio of learning rates",
                .expected = "a number above 0; 16 is LoRA+'s",
                .found = number_text(*c_.loraplus_lr_ratio),
                .where = at("loraplus_lr_ratio"),
                .fix = set_to("loraplus_lr_ratio", "16") + ", or leave it out"});
    }
  }

  // Translates SFT-Play's word for adapters over a 4-bit base.
  void qlora() {
    if (c_.finetuning_type != "qlora") return;
    c_.finetuning_type = "lora";
    if (c_.quantization_bit) return;
    c_.quantization_bit = 4;
    derive("quantization_bit", "finetuning_type");
  }

  void quantisation() {
    if (!c_.quantization_bit) {
      for (const char* key : {"quantization_type", "double_quantization"}) {
        if (changed(key)) note("'" + said(key) + "' (" + at(key) + ") is read only with quantization_bit");
      }
      return;
    }
    const std::int64_t bits = *c_.quantization_bit;
    if (bits != 4) {
      const char* adapters_too = c_.finetuning_type == "lora" ? "" : " with finetuning_type: lora";
      complain({.what = named("quantization_bit", std::to_string(bits)) + " is not supported",
                .expected = "4 (NF4)",
                .where = at("quantization_bit"),
                .fix = (bits == 8 ? "set fp8: true without " + said("quantization_bit") +
                                        ", which keeps the weights in 8 bits and computes in them; or "
                                  : "") +
                       set_to("quantization_bit", "4") + adapters_too});
    }
    if (c_.finetuning_type != "lora") {
      complain({.what = named("quantization_bit", "4") + " needs 'finetuning_type: lora'",
                .expected = "adapters and fixed weights: quantised weights are not trained",
                .found = said("finetuning_type") + ": " + c_.finetuning_type,
                .where = both("quantization_bit", "finetuning_type"),
                .fix = set_to("finetuning_type", "lora") + ", or remove " + said("quantization_bit")});
    }
    const bool several = c_.adapter_name_or_path && c_.adapter_name_or_path->find(',') != std::string::npos;
    if (several || c_.create_new_adapter) {
      complain(
          {.what = "a base in 4 bits supports only one adapter, and continues to train it",
           .expected = "one folder in adapter_name_or_path, and no create_new_adapter",
           .found = "adapters to add to the base",
           .where = both(several ? "adapter_name_or_path" : "create_new_adapter", "quantization_bit"),
           .fix = "merge them into the unquantised base (trainer export --merge), and quantise the result"});
    }
  }

  void freezing() {
    const bool freeze = c_.finetuning_type == "freeze";
    for (const char* key : {"freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"}) {
      if (freeze || !changed(key)) continue;
      note("'" + said(key) + "' (" + at(key) + ") is read only with finetuning_type: freeze");
    }
    if (!freeze) return;
    if (changed("lora_target")) {
      complain({.what = "'" + said("lora_target") +
                        "' is for adapters, but finetuning_type: freeze has no adapters",
                .expected = "freeze_trainable_modules, or finetuning_type: lora",
                .found = value_text(*find_field("lora_target"), c_),
                .where = both("lora_target", "finetuning_type"),
                .fix = "remove " + said("lora_target") + ", or " + set_to("finetuning_type", "lora")});
    }
    if (c_.train_from_scratch) {
      complain(
          {.what =
               "freeze trains a part of a model that was trained before, and train_from_scratch begins at "
               "random weights",
           .where = both("finetuning_type", "train_from_scratch"),
           .fix = "set train_from_scratch: false, or " + set_to("finetuning_type", "full")});
    }
  }
};

}  // namespace

void apply_adapter_rules(Resolved& resolved, const LoadOptions& options) {
  AdapterRules(resolved, options).apply();
}

}  // namespace octet::config
