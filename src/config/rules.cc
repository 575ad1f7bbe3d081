// What several keys mean together.
#include <cmath>

#include "octet/base/strings.h"
#include "rules.h"

namespace octet::config {
namespace {

class Rules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    required();
    qlora();
    adapters();
    freezing();
    quantisation();
    apply_data_rules(r_, options_);
    other_names();
    precision();
    storage();
    strictness();
    batch();
    schedule();
    output();
    apply_check_rules(r_, options_);
    environment();
  }

 private:
  void need(bool given, const std::string& key, const std::string& example) const {
    if (given) return;
    complain({.what = "'" + key + "' is not given",
              .expected = "'" + key + ": " + example + "'",
              .where = r_.path.empty() ? "command line" : r_.path});
  }

  void required() {
    if (!options_.for_training) return;
    need(!c_.model_name_or_path.empty(), "model_name_or_path", "path/to/model");
    need(!c_.dataset.empty(), "dataset", "data/train.jsonl");
    need(!c_.output_dir.empty(), "output_dir", "runs/first");
    if (!c_.do_train) {
      complain({.what = "'do_train: false' is not supported",
                .where = at("do_train"),
                .fix = "this command trains; remove the key"});
    }
  }

  // Adapters are asked for by finetuning_type alone; in LLaMA-Factory it is lora where nobody says.
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
      complain({.what = "'" + said(key) + "' asks for adapters, and finetuning_type is not set",
                .expected = "finetuning_type: lora, which LLaMA-Factory takes where nothing is said, or full",
                .where = at(key),
                .fix = "set finetuning_type: lora, or remove the key"});
    }
    if (lora && c_.lora_dropout >= 1) {
      complain({.what = "lora_dropout: 1 leaves an adapter nothing to read",
                .expected = "at least 0 and below 1",
                .found = number_text(c_.lora_dropout),
                .where = at("lora_dropout"),
                .fix = "set lora_dropout: 0.05, or leave it out"});
    }
    if (lora && c_.use_dora && c_.lora_dropout > 0) {
      complain({.what = "dropout beside DoRA is not built",
                .expected = "lora_dropout: 0, or use_dora: false",
                .found = "lora_dropout: " + number_text(c_.lora_dropout),
                .where = both("lora_dropout", "use_dora"),
                .fix = "set lora_dropout: 0"});
    }
    if (lora && c_.train_from_scratch && c_.adapter_name_or_path) {
      complain({.what = "adapters belong to the weights that they were trained beside, and "
                        "'train_from_scratch: true' begins with random ones",
                .where = both("adapter_name_or_path", "train_from_scratch"),
                .fix = "remove one of the two"});
    }
    if (lora && c_.create_new_adapter && !c_.adapter_name_or_path) {
      complain({.what = "'create_new_adapter: true' needs adapters to add to the base first",
                .expected = "adapter_name_or_path",
                .where = at("create_new_adapter"),
                .fix = "remove the key: without adapter_name_or_path adapters are new"});
    }
    if (lora && c_.loraplus_lr_ratio && *c_.loraplus_lr_ratio <= 0) {
      complain({.what = "loraplus_lr_ratio is no ratio of learning rates",
                .expected = "a number above 0; 16 is LoRA+'s",
                .found = number_text(*c_.loraplus_lr_ratio),
                .where = at("loraplus_lr_ratio"),
                .fix = "set loraplus_lr_ratio: 16, or leave it out"});
    }
  }

  // SFT-Play's word for adapters over a base in 4 bits.
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
        if (changed(key))
          note(std::string("'") + key + "' (" + at(key) + ") is read only with quantization_bit");
      }
      return;
    }
    const std::int64_t bits = *c_.quantization_bit;
    if (bits != 4) {
      complain({.what = "'quantization_bit: " + std::to_string(bits) + "' is not supported",
                .expected = "4 (NF4)",
                .where = at("quantization_bit"),
                .fix = bits == 8
                           ? "set fp8: true without quantization_bit, which keeps the weights in 8 bits "
                             "and computes in them; or quantization_bit: 4"
                           : "set quantization_bit: 4"});
    }
    if (c_.finetuning_type != "lora") {
      complain(
          {.what = "'quantization_bit: 4' needs 'finetuning_type: lora'",
           .expected = "adapters beside weights that stay as they are: quantised weights are not trained",
           .found = "finetuning_type: " + c_.finetuning_type,
           .where = both("quantization_bit", "finetuning_type"),
           .fix = "set finetuning_type: lora, or remove quantization_bit"});
    }
    const bool several = c_.adapter_name_or_path && c_.adapter_name_or_path->find(',') != std::string::npos;
    if (several || c_.create_new_adapter) {
      complain(
          {.what = "a base in 4 bits takes one adapter, which is trained on",
           .expected = "the folder of one in adapter_name_or_path, and no create_new_adapter",
           .found = "adapters to add to the base",
           .where = both(several ? "adapter_name_or_path" : "create_new_adapter", "quantization_bit"),
           .fix = "merge them into the base as it was (trainer export --merge), and quantise the result"});
    }
  }

  void freezing() {
    const bool freeze = c_.finetuning_type == "freeze";
    for (const char* key : {"freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"}) {
      if (freeze || !changed(key)) continue;
      note(std::string("'") + key + "' (" + at(key) + ") is read only with finetuning_type: freeze");
    }
    if (!freeze) return;
    if (changed("lora_target")) {
      complain({.what = "'lora_target' names modules for adapters, and finetuning_type: freeze has none",
                .expected = "freeze_trainable_modules, or finetuning_type: lora",
                .found = value_text(*find_field("lora_target"), c_),
                .where = both("lora_target", "finetuning_type"),
                .fix = "remove one of them"});
    }
    if (c_.train_from_scratch) {
      complain(
          {.what =
               "freeze trains a part of a model that was trained before, and train_from_scratch begins at "
               "random weights",
           .where = both("finetuning_type", "train_from_scratch"),
           .fix = "set train_from_scratch: false, or finetuning_type: full"});
    }
  }

  // `key` asks for `own` to be `value`, which it becomes; where it was given it must be that already.
  void ask(const char* key, const char* own, std::string Config::*member, const std::string& value,
           const std::string& open = "") {
    if (c_.*member == value) return;
    if (r_.is_set(own) && c_.*member != open) {
      const std::string asked = value_text(*find_field(key), c_), given = c_.*member;
      complain({.what = std::string("'") + key + ": " + asked + "' and '" + own + ": " + given +
                        "' exclude each other",
                .expected = std::string(own) + ": " + value + ", for which " + key + " stands",
                .where = both(key, own),
                .fix = "keep one of the two"});
    }
    c_.*member = value;
    derive(own, key);
  }

  // Keys of Hugging Face that stand for keys of ours.
  void other_names() {
    if (c_.use_cpu) ask("use_cpu", "device", &Config::device, "cpu", "auto");
    if (c_.full_determinism && c_.deterministic != "strict")
      ask("full_determinism", "deterministic", &Config::deterministic, "true", "auto");
    if (c_.optim.ends_with("_8bit")) ask("optim", "optim_dtype", &Config::optim_dtype, "int8", "auto");
    if (c_.optim.starts_with("paged_")) {
      note(
          "'" + said("optim") + ": " + c_.optim +
          "' pages nothing: the optimizer's moments stay where the program computes, and do not move to host "
          "memory; optim_dtype: int8 makes them small, and zero_stage: 1 shares them out among ranks");
    }
    const auto evaluates_in_bf16 = r_.extra.find("bf16_full_eval");
    if (evaluates_in_bf16 != r_.extra.end() && evaluates_in_bf16->second == "true" && !c_.bf16 &&
        !c_.pure_bf16) {
      complain({.what = "'bf16_full_eval: true' needs 'bf16: true'",
                .expected = "evaluation in the format of training",
                .found = "bf16: false",
                .where = both("bf16_full_eval", "bf16"),
                .fix = "set bf16: true, or remove bf16_full_eval"});
    }
  }

  // pure_bf16 stands for three keys; those that are given win.
  void stored_formats() {
    if (c_.pure_bf16) {
      for (const auto& [key, member] : {std::pair{"param_dtype", &Config::param_dtype},
                                        {"grad_dtype", &Config::grad_dtype},
                                        {"optim_dtype", &Config::optim_dtype}}) {
        if (r_.is_set(key) && c_.*member != "auto") continue;
        c_.*member = "bf16";
        derive(key, "pure_bf16");
      }
      if (c_.param_dtype != "bf16") {
        complain({.what = "pure_bf16 stores parameters in bf16, and 'param_dtype: fp32' forbids it",
                  .where = both("pure_bf16", "param_dtype"),
                  .fix = "keep one of the two; bf16: true computes in bf16 with fp32 parameters"});
      }
    }
    if (c_.param_dtype == "bf16" && !c_.bf16 && !c_.pure_bf16) {
      complain({.what = "'param_dtype: bf16' needs 'bf16: true'",
                .found = "bf16: false",
                .where = both("param_dtype", "bf16"),
                .fix = "set bf16: true, or param_dtype: fp32"});
    }
    if (c_.grad_dtype == "bf16" && c_.param_dtype != "bf16") {
      complain({.what = "'grad_dtype: bf16' needs 'param_dtype: bf16'",
                .found = "param_dtype: " + c_.param_dtype,
                .where = both("grad_dtype", "param_dtype"),
                .fix = "set both to bf16, or grad_dtype: fp32"});
    }
  }

  void precision() {
    stored_formats();
    if (!c_.fp8) {
      for (const char* key : {"fp8_recipe", "fp8_format", "fp8_amax_history_len", "fp8_amax_compute_algo",
                              "fp8_margin", "fp8_scale_granularity", "fp8_fast_accumulation", "fp8_fallback",
                              "fp8_statistics", "fp8_transposed_weights"}) {
        if (changed(key)) note(std::string("'") + key + "' (" + at(key) + ") is read only with fp8: true");
      }
    } else if (c_.fp8_recipe != "delayed") {
      for (const char* key : {"fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_margin"}) {
        if (changed(key))
          note(std::string("'") + key + "' (" + at(key) + ") is read only with fp8_recipe: delayed");
      }
      if (c_.fp8_recipe == "block") {
        for (const char* key :
             {"fp8_format", "fp8_scale_granularity", "fp8_fast_accumulation", "fp8_transposed_weights"}) {
          if (changed(key))
            note(std::string("'") + key + "' (" + at(key) + ") is not read with fp8_recipe: block");
        }
      }
    }
    if (c_.fp8 && c_.fp8_backend != "auto" && c_.fp8_backend != "native") {
      note("'fp8_backend: " + c_.fp8_backend + "' means this program's own FP8 core");
    }
  }

  void storage() {
    // On CPUs, and where it is told to, every run has the same bits.
    const bool same_bits = c_.deterministic == "true" || c_.deterministic == "strict" ||
                           (c_.deterministic == "auto" && c_.device == "cpu");
    if (c_.gpu_sums == "nccl" && same_bits) {
      complain({.what = "'gpu_sums: nccl' and 'deterministic: " + c_.deterministic + "'" +
                        (c_.deterministic == "auto" ? " with 'device: cpu'" : "") + " exclude each other",
                .expected = "deterministic: false, since NCCL sums in an order of its own",
                .where = both("gpu_sums", "deterministic"),
                .fix = "remove gpu_sums, or set deterministic: false"});
    }
    if (c_.hierarchical_comm == "true" && c_.deterministic == "strict") {
      complain({.what = "'hierarchical_comm: true' and 'deterministic: strict' exclude each other",
                .expected = "sums in an order that does not depend on the nodes",
                .where = both("hierarchical_comm", "deterministic"),
                .fix = "remove hierarchical_comm, or set deterministic: true"});
    }
    if (c_.error_feedback && c_.reduce_dtype == "fp32") {
      complain({.what = "'error_feedback: true' has no meaning with 'reduce_dtype: fp32'",
                .expected = "a reduction that rounds: bf16, fp8 or int8",
                .where = both("error_feedback", "reduce_dtype"),
                .fix = "set reduce_dtype to int8 or fp8, or remove error_feedback"});
    }
    if (c_.gather_dtype != "compute" && c_.zero_stage == 0) {
      complain({.what = "'gather_dtype: " + c_.gather_dtype + "' has no meaning with 'zero_stage: 0'",
                .expected = "parameters that are gathered, as at stages 1 to 3",
                .where = both("gather_dtype", "zero_stage"),
                .fix = "set zero_stage to 1, 2 or 3, or remove gather_dtype"});
    }
    if (c_.optim_state_cpu_offload && c_.device != "cuda") {
      note(
          "'optim_state_cpu_offload' changes nothing on a CPU, where the optimizer's state lies in the "
          "host's "
          "memory anyway");
    }
    if (c_.gradient_checkpointing && *c_.gradient_checkpointing && c_.disable_gradient_checkpointing) {
      complain({.what = "gradient_checkpointing and disable_gradient_checkpointing exclude each other",
                .where = both("gradient_checkpointing", "disable_gradient_checkpointing")});
    }
    if (c_.recompute_requested == "none" && c_.gradient_checkpointing && *c_.gradient_checkpointing) {
      complain({.what = "'recompute: none' and 'gradient_checkpointing: true' exclude each other",
                .where = both("recompute", "gradient_checkpointing")});
    }
    if (c_.recompute_requested && *c_.recompute_requested != "none" && c_.disable_gradient_checkpointing) {
      complain({.what = "'recompute: " + *c_.recompute_requested +
                        "' and 'disable_gradient_checkpointing: true' exclude each other",
                .where = both("recompute", "disable_gradient_checkpointing")});
    }
  }

  // What makes bits depend on the number of ranks.
  void strictness() {
    if (c_.deterministic != "strict") return;
    const auto refuse = [&](bool off, const std::string& key, const std::string& value, const char* why,
                            const char* instead) {
      if (off) return;
      complain({.what = "'deterministic: strict' and '" + key + ": " + value + "' exclude each other",
                .expected = key + ": " + instead + ", " + why,
                .where = both("deterministic", key),
                .fix = std::string("set ") + key + ": " + instead + ", or deterministic: true"});
    };
    refuse(!c_.fp8 || c_.fp8_recipe != "delayed", "fp8_recipe", c_.fp8_recipe,
           "since delayed scales follow from what the ranks computed side by side", "current");
    refuse(c_.reduce_dtype == "fp32", "reduce_dtype", c_.reduce_dtype,
           "since a narrow wire rounds what each rank sends", "fp32");
    refuse(c_.grad_dtype != "bf16", "grad_dtype", c_.grad_dtype,
           "since gradients in bf16 are rounded before they are summed, in another order on other ranks",
           "fp32");
    refuse(c_.gather_dtype == "compute", "gather_dtype", c_.gather_dtype,
           "since a rank that is alone gathers nothing", "compute");
    refuse(!c_.auto_find_batch_size, "auto_find_batch_size", "true",
           "since bits depend on the size of a micro-batch", "false");
  }

  void batch() {
    if (c_.global_batch_size && c_.gradient_accumulation_steps == kAutomatic)
      c_.gradient_accumulation_steps.reset();
    if (c_.auto_find_batch_size && !c_.global_batch_size && !c_.gradient_accumulation_steps) {
      complain({.what = "'auto_find_batch_size: true' needs global_batch_size",
                .expected = "a size of the optimizer step that does not depend on the device's memory",
                .where = at("auto_find_batch_size"),
                .fix = "set global_batch_size, or gradient_accumulation_steps: a number of micro-batches, or "
                       "auto for about 32 samples a step"});
    }
    if (c_.global_batch_size && c_.auto_find_batch_size && c_.gradient_accumulation_steps) {
      complain(
          {.what = "'auto_find_batch_size: true' and gradient_accumulation_steps exclude each other beside "
                   "global_batch_size",
           .where = both("auto_find_batch_size", "gradient_accumulation_steps"),
           .fix = "remove gradient_accumulation_steps: it follows from the micro-batch that is found; or "
                  "global_batch_size (" +
                  at("global_batch_size") + ")"});
    }
  }

  void schedule() {
    if (c_.max_steps == 0) {
      complain({.what = "value of 'max_steps' cannot be used",
                .expected = "-1 or a whole number of at least 1",
                .found = "0",
                .where = at("max_steps")});
    }
    if (c_.max_steps > 0 && changed("num_train_epochs"))
      note("max_steps decides; num_train_epochs is not read");
    for (const auto& [key, value] : {std::pair<const char*, double>{"warmup_steps", c_.warmup_steps},
                                     {"logging_steps", c_.logging_steps},
                                     {"save_steps", c_.save_steps},
                                     {"eval_steps", c_.eval_steps.value_or(1)}}) {
      if (value >= 1 && value != std::floor(value)) {
        complain({.what = std::string("value of '") + key + "' cannot be used",
                  .expected = "a share below 1 or a whole number of steps",
                  .found = number_text(value),
                  .where = at(key)});
      }
    }
    if (c_.warmup_steps > 0 && c_.warmup_ratio > 0) note("warmup_steps decides; warmup_ratio is not read");
    if (c_.warmup_steps >= 1 && c_.max_steps > 0 && c_.warmup_steps >= static_cast<double>(c_.max_steps)) {
      note("the run of " + std::to_string(c_.max_steps) + " steps ends before its warm-up of " +
           number_text(c_.warmup_steps) + " does");
    }
    check_schedule_arguments(c_, at("lr_scheduler_type"), at("lr_scheduler_kwargs"));
  }

  void output() {
    Strings kept;
    for (const auto& target : c_.report_to) {
      if (target == "none" || target == "all" || target == "tensorboard") {
        kept.push_back(target);
      } else {
        note("'report_to: " + target + "' is not available; trainer_log.jsonl is always written");
      }
    }
    time_between_failures();
    c_.report_to = kept.empty() ? Strings{"none"} : kept;
    if (c_.report_to.size() > 1) std::erase(c_.report_to, "none");
    if (c_.resume_from_checkpoint && c_.resume_from_checkpoint->empty()) c_.resume_from_checkpoint.reset();
    if (c_.overwrite_output_dir && c_.resume_from_checkpoint) {
      const auto flag = read_bool(*c_.resume_from_checkpoint);
      if ((flag && *flag) || *c_.resume_from_checkpoint == "auto") {
        complain({.what = "overwrite_output_dir and resume_from_checkpoint exclude each other",
                  .where = both("overwrite_output_dir", "resume_from_checkpoint")});
      }
    }
  }

  void time_between_failures() {
    const bool memory = c_.memory_checkpoint_steps == kAutomatic;
    if (memory && !c_.mtbf_hours) {
      complain({.what = "memory_checkpoint_steps: auto follows from mtbf_hours, which is not given",
                .expected = "the mean time between failures of the run's machines, or a number of steps",
                .where = at("memory_checkpoint_steps"),
                .fix = "add mtbf_hours: 24, say, or write memory_checkpoint_steps: 100"});
    }
    if (!c_.mtbf_hours) return;
    const std::string unread = memory ? "is read for checkpoints in memory alone" : "is not read";
    if (r_.is_set("save_steps")) note("save_steps decides; mtbf_hours " + unread);
    if (c_.save_strategy != "steps") {
      note(memory ? "without save_strategy: steps mtbf_hours " + unread
                  : "mtbf_hours is read only with save_strategy: steps");
    }
  }

  // A switch of Transformer Engine is answered and not obeyed: what decides numbers is a key.
  void environment() {
    const auto found = options_.environment.find("NVTE_FP8_ALLREDUCE");
    if (found == options_.environment.end() || found->second != "1") return;
    const std::string asks = "environment NVTE_FP8_ALLREDUCE=1 asks for FP8 reductions: ";
    if (r_.is_set("reduce_dtype")) {
      note(asks + "reduce_dtype: " + c_.reduce_dtype + " is set (" + at("reduce_dtype") +
           "), and that counts");
    } else {
      note(asks + "set reduce_dtype: fp8, which sends gradients in FP8 and sums them in fp32");
    }
  }
};

}  // namespace

void apply_rules(Resolved& resolved, const LoadOptions& options) {
  apply_path_rules(resolved, options);
  Rules(resolved, options).apply();
}

}  // namespace octet::config
