// Rules for adapters, freezing and quantised bases.
#include "rules.h"

namespace octet::config {
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
