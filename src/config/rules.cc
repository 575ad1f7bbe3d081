// Rules across keys.
#include <cmath>

#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "rules.h"

namespace octet::config {
namespace {

class Rules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    required();
    apply_adapter_rules(r_, options_);
    apply_data_rules(r_, options_);
    apply_evaluation_rules(r_, options_);
    apply_loss_rules(r_, options_);
    other_names();
    precision();
    storage();
    strictness();
    split_experts();
    sharding_groups();
    batch();
    schedule();
    output();
    apply_check_rules(r_, options_);
    apply_environment_rules(r_, options_);
  }

 private:
  void need(bool given, const std::string& key, const std::string& example) const {
    if (given) return;
    complain({.what = "'" + key + "' is not given",
              .expected = "'" + key + ": " + example + "'",
              .where = r_.path.empty() ? "command line" : r_.path,
              .fix = "add it to the file, or give it on the command line: " + key + "=" + example});
  }

  void required() {
    if (!options_.for_training) return;
    need(!c_.model_name_or_path.empty(), "model_name_or_path", "path/to/model");
    need(!c_.dataset.empty(), "dataset", "data/train.jsonl");
    need(!c_.output_dir.empty(), "output_dir", "runs/first");
    if (!c_.do_train) {
      complain({.what = named("do_train", "false") + " is not supported",
                .expected = "do_train: true",
                .found = said("do_train") + ": false",
                .where = at("do_train"),
                .fix = "this command trains; remove " + said("do_train")});
    }
  }

  // `key` implies that `own` is `value`. If `own` is given with another value, throws Error.
  void ask(const char* key, const char* own, std::string Config::*member, const std::string& value,
           const std::string& open = "") {
    if (c_.*member == value) return;
    if (r_.is_set(own) && c_.*member != open) {
      const std::string asked = value_text(*find_field(key), c_), given = c_.*member;
      complain({.what = named(key, asked) + " and " + named(own, given) + " exclude each other",
                .expected = std::string(own) + ": " + value + ", which is the meaning of " + said(key),
                .where = both(key, own),
                .fix = "keep one of the two"});
    }
    c_.*member = value;
    derive(own, key);
  }

  // Handles `per_device_train_batch_size: auto`, which LLaMA-Factory's DeepSpeed files and SFT-Play use.
  void automatic_batch() {
    if (c_.per_device_eval_batch_size == kAutomatic) {
      c_.per_device_eval_batch_size.reset();
      r_.origins.erase("per_device_eval_batch_size");
    }
    if (c_.per_device_train_batch_size != kAutomatic) return;
    if (r_.is_set("auto_find_batch_size") && !c_.auto_find_batch_size) {
      complain(
          {.what = named("per_device_train_batch_size", "auto") + " and " +
                   named("auto_find_batch_size", "false") + " exclude each other",
           .expected = "a number of samples, or auto_find_batch_size: true, which is the meaning of auto",
           .where = both("per_device_train_batch_size", "auto_find_batch_size"),
           .fix = "write a number, or remove " + said("auto_find_batch_size")});
    }
    c_.per_device_train_batch_size = Config().per_device_train_batch_size;
    if (!c_.auto_find_batch_size) derive("auto_find_batch_size", "per_device_train_batch_size");
    c_.auto_find_batch_size = true;
    r_.origins.erase("per_device_train_batch_size");
  }

  // Translates keys of Hugging Face that are other names of our keys.
  void other_names() {
    automatic_batch();
    if (c_.use_cpu) ask("use_cpu", "device", &Config::device, "cpu", "auto");
    if (c_.full_determinism && c_.deterministic != "strict")
      ask("full_determinism", "deterministic", &Config::deterministic, "true", "auto");
    if (c_.optim.ends_with("_8bit")) ask("optim", "optim_dtype", &Config::optim_dtype, "int8", "auto");
    if (c_.optim.starts_with("paged_")) {
      note(named("optim", c_.optim) +
           " pages nothing: the optimizer's moments stay on the device that computes. To store them in fewer "
           "bytes, set optim_dtype: int8, or shard them over the ranks (zero_stage: 1)");
    }
    const auto evaluates_in_bf16 = r_.extra.find("bf16_full_eval");
    if (evaluates_in_bf16 != r_.extra.end() && evaluates_in_bf16->second == "true" && !c_.bf16 &&
        !c_.pure_bf16) {
      complain({.what = named("bf16_full_eval", "true") + " needs 'bf16: true'",
                .expected = "evaluation in the format of training",
                .found = said("bf16") + ": false",
                .where = both("bf16_full_eval", "bf16"),
                .fix = set_to("bf16", "true") + ", or remove " + said("bf16_full_eval")});
    }
  }

  // pure_bf16 sets three keys, unless they are given.
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
        complain({.what = said("pure_bf16") + " stores parameters in bf16, and " +
                          named("param_dtype", "fp32") + " forbids it",
                  .expected = "param_dtype: bf16, or auto",
                  .found = said("param_dtype") + ": " + c_.param_dtype,
                  .where = both("pure_bf16", "param_dtype"),
                  .fix = "keep one of the two; bf16: true computes in bf16 with fp32 parameters"});
      }
    }
    if (c_.param_dtype == "bf16" && !c_.bf16 && !c_.pure_bf16) {
      complain({.what = named("param_dtype", "bf16") + " needs 'bf16: true'",
                .found = said("bf16") + ": false",
                .where = both("param_dtype", "bf16"),
                .fix = set_to("bf16", "true") + ", or " + set_to("param_dtype", "fp32") +
                       (c_.grad_dtype == "bf16" ? " and grad_dtype: fp32" : "")});
    }
    if (c_.grad_dtype == "bf16" && c_.param_dtype != "bf16") {
      complain({.what = named("grad_dtype", "bf16") + " needs 'param_dtype: bf16'",
                .found = said("param_dtype") + ": " + c_.param_dtype,
                .where = both("grad_dtype", "param_dtype"),
                .fix = set_to("param_dtype", "bf16") + (computes_in_bf16(c_) ? "" : " with bf16: true") +
                       ", or " + set_to("grad_dtype", "fp32")});
    }
  }

  void precision() {
    stored_formats();
    if (!c_.fp8) {
      for (const char* key :
           {"fp8_backend", "fp8_recipe", "fp8_format", "fp8_amax_history_len", "fp8_amax_compute_algo",
            "fp8_margin", "fp8_scale_granularity", "fp8_fast_accumulation", "fp8_fallback", "fp8_statistics",
            "fp8_transposed_weights"}) {
        if (changed(key)) note("'" + said(key) + "' (" + at(key) + ") is read only with fp8: true");
      }
    } else if (c_.fp8_recipe != "delayed") {
      for (const char* key : {"fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_margin"}) {
        if (changed(key)) note("'" + said(key) + "' (" + at(key) + ") is read only with fp8_recipe: delayed");
      }
      if (c_.fp8_recipe == "block") {
        for (const char* key :
             {"fp8_format", "fp8_scale_granularity", "fp8_fast_accumulation", "fp8_transposed_weights"}) {
          if (changed(key)) note("'" + said(key) + "' (" + at(key) + ") is not read with fp8_recipe: block");
        }
      }
    }
    backend();
  }

  // LLaMA-Factory silently does not use these backends for FP8, although guides name them.
  void backend() {
    const std::string& name = c_.fp8_backend;
    if (name == "te" && c_.fp8) {
      note(at("fp8_backend") + ": 'fp8_backend: te' means this program's own FP8 core");
    } else if (name == "torchao" || name == "msamp") {
      warn(at("fp8_backend") + ": 'fp8_backend: " + name +
           "' names a library that is not used: this program computes FP8 itself. LLaMA-Factory may silently "
           "train in bf16 with this value; to do: set fp8_backend: te or native, or remove it");
    }
  }

  // Warns about DeepSpeed's key for the dtype of gradient messages. Without it DeepSpeed uses the model's
  // dtype.
  void wire() {
    const auto found = r_.origins.find("reduce_dtype");
    if (found == r_.origins.end() || found->second.key != "communication_data_type") return;
    if (c_.reduce_dtype != "fp32" || c_.deterministic == "strict") return;
    warn(at("reduce_dtype") +
         ": communication_data_type: fp32 makes messages of gradients twice as long as bf16, and almost four "
         "times as long as FP8; to do: " +
         set_to("reduce_dtype", "bf16 (or fp8)") + ", since without either key messages are sent in fp32");
  }

  void storage() {
    wire();
    // Runs are reproducible on CPUs, and if `deterministic` is set.
    const bool same_bits = c_.deterministic == "true" || c_.deterministic == "strict" ||
                           (c_.deterministic == "auto" && c_.device == "cpu");
    if (c_.gpu_sums == "nccl" && same_bits) {
      complain({.what = "'gpu_sums: nccl' and " + named("deterministic", c_.deterministic) +
                        (c_.deterministic == "auto" ? " with 'device: cpu'" : "") + " exclude each other",
                .expected = "deterministic: false, since NCCL chooses the order of its sums",
                .where = both("gpu_sums", "deterministic"),
                .fix = "remove gpu_sums, or " + set_to("deterministic", "false")});
    }
    if (c_.hierarchical_comm == "true" && c_.deterministic == "strict") {
      complain({.what = "'hierarchical_comm: true' and 'deterministic: strict' exclude each other",
                .expected = "sums in an order that does not depend on the nodes",
                .where = both("hierarchical_comm", "deterministic"),
                .fix = "remove hierarchical_comm, or set deterministic: true"});
    }
    if (c_.error_feedback && c_.reduce_dtype == "fp32") {
      complain({.what = "'error_feedback: true' has no meaning with " + named("reduce_dtype", "fp32"),
                .expected = "a reduction that rounds: bf16, fp8 or int8",
                .where = both("error_feedback", "reduce_dtype"),
                .fix = set_to("reduce_dtype", "int8 or fp8") + ", or remove error_feedback"});
    }
    if (c_.gather_dtype != "compute" && c_.zero_stage == 0) {
      complain(
          {.what = "'gather_dtype: " + c_.gather_dtype + "' has no meaning with " + named("zero_stage", "0"),
           .expected = "parameters that are gathered, as at stages 1 to 3",
           .where = both("gather_dtype", "zero_stage"),
           .fix = set_to("zero_stage", "1, 2 or 3") + ", or remove gather_dtype"});
    }
    if (c_.optim_state_cpu_offload && c_.device != "cuda") {
      note("'" + said("optim_state_cpu_offload") + "' (" + at("optim_state_cpu_offload") +
           (c_.device == "cpu"
                ? ") changes nothing on a CPU: the optimizer's state is in the host's memory anyway"
                : ") has an effect only on GPUs; on a CPU the optimizer's state is in the host's memory "
                  "anyway"));
    }
    if (c_.gradient_checkpointing && *c_.gradient_checkpointing && c_.disable_gradient_checkpointing) {
      complain({.what = said("gradient_checkpointing") + " and " + said("disable_gradient_checkpointing") +
                        " exclude each other",
                .expected = one_of(said("gradient_checkpointing"), said("disable_gradient_checkpointing")),
                .found = "both are true",
                .where = both("gradient_checkpointing", "disable_gradient_checkpointing"),
                .fix = kOneOfTwo});
    }
    if (c_.recompute_requested == "none" && c_.gradient_checkpointing && *c_.gradient_checkpointing) {
      complain({.what = named("recompute", "none") + " and " + named("gradient_checkpointing", "true") +
                        " exclude each other",
                .expected = "the same choice in both keys",
                .found = "one switches recomputation off, the other on",
                .where = both("recompute", "gradient_checkpointing"),
                .fix = kOneOfTwo});
    }
    if (c_.recompute_requested && *c_.recompute_requested != "none" && c_.disable_gradient_checkpointing) {
      complain({.what = named("recompute", *c_.recompute_requested) + " and " +
                        named("disable_gradient_checkpointing", "true") + " exclude each other",
                .expected = "the same choice in both keys",
                .found = "one switches recomputation on, the other off",
                .where = both("recompute", "disable_gradient_checkpointing"),
                .fix = kOneOfTwo});
    }
  }

  // Refuses settings that make results depend on the number of ranks.
  void strictness() {
    if (c_.deterministic != "strict") return;
    const auto refuse = [&](bool off, const std::string& key, const std::string& value, const char* why,
                            const char* instead) {
      if (off) return;
      complain({.what = "'deterministic: strict' and " + named(key, value) + " exclude each other",
                .expected = key + ": " + instead + ", " + why,
                .where = both("deterministic", key),
                .fix = set_to(key, instead) + ", or deterministic: true"});
    };
    refuse(!c_.fp8 || c_.fp8_recipe != "delayed", "fp8_recipe", c_.fp8_recipe,
           "since delayed scales depend on how the samples are divided among the ranks", "current");
    refuse(c_.reduce_dtype == "fp32", "reduce_dtype", c_.reduce_dtype,
           "since a narrow wire rounds what each rank sends", "fp32");
    refuse(c_.grad_dtype != "bf16", "grad_dtype", c_.grad_dtype,
           "since gradients in bf16 are rounded before they are summed, in another order on other ranks",
           "fp32");
    refuse(c_.gather_dtype == "compute", "gather_dtype", c_.gather_dtype,
           "since a single rank gathers nothing", "compute");
    refuse(c_.exchange_dtype == "compute", "exchange_dtype", c_.exchange_dtype,
           "since a single rank exchanges nothing", "compute");
    refuse(!c_.auto_find_batch_size, "auto_find_batch_size", "true",
           "since bits depend on the size of a micro-batch", "false");
  }

  // Refuses a key of messages for split experts without such messages.
  void for_split_experts(bool off, const char* key) {
    if (off) return;
    complain({.what = named(key, value_text(*find_field(key), c_)) + " has no meaning with " +
                      named("expert_parallel_size", "1"),
              .expected = "experts that are split among ranks",
              .where = both(key, "expert_parallel_size"),
              .fix = set_to("expert_parallel_size", "2 or more") + ", or remove " + key});
  }

  // Refuses keys that are not built for experts that are split among ranks.
  void split_experts() {
    if (c_.expert_parallel_size == 1) {
      for_split_experts(c_.exchange_dtype == "compute", "exchange_dtype");
      return for_split_experts(!c_.exchange_rows_factor, "exchange_rows_factor");
    }
    const auto refuse = [&](bool off, const std::string& key, const std::string& value,
                            const std::string& instead) {
      if (off) return;
      complain({.what = named("expert_parallel_size", std::to_string(c_.expert_parallel_size)) + " and " +
                        named(key, value) + " together are not built",
                .expected = key + ": " + instead,
                .where = both("expert_parallel_size", key),
                .fix = set_to(key, instead) + ", or expert_parallel_size: 1"});
    };
    refuse(!c_.error_feedback, "error_feedback", "true", "false");
    refuse(c_.sdc_replay_steps == 0, "sdc_replay_steps", std::to_string(c_.sdc_replay_steps), "0");
  }

  // Checks zero_group_size, and refuses keys that are not built for sharding groups.
  void sharding_groups() {
    if (!c_.zero_group_size) return;
    std::string& size = *c_.zero_group_size;
    size = lower_case(size);
    const auto number = read_number(size);
    const bool ranks = number && *number == std::floor(*number) && *number >= 1 && *number <= 1 << 20;
    if (ranks) size = std::to_string(static_cast<std::int64_t>(*number));
    if (size != "auto" && size != "node" && !ranks) {
      complain({.what = named("zero_group_size", size) + " is no size of a group",
                .expected = "auto, node, or a number of ranks from 1 on",
                .where = at("zero_group_size"),
                .fix = set_to("zero_group_size", "node") + ", or remove it"});
    }
    if (c_.zero_stage == 0) {
      complain({.what = named("zero_group_size", size) + " has no meaning with " + named("zero_stage", "0"),
                .expected = "states that are sharded, as at stages 1 to 3",
                .where = both("zero_group_size", "zero_stage"),
                .fix = set_to("zero_stage", "1, 2 or 3") + ", or remove " + said("zero_group_size")});
    }
    const auto refuse = [&](bool off, const std::string& key, const std::string& value,
                            const std::string& instead) {
      if (off) return;
      complain(
          {.what = named("zero_group_size", size) + " and " + named(key, value) + " together are not built",
           .expected = key + ": " + instead,
           .where = both("zero_group_size", key),
           .fix = set_to(key, instead) + ", or remove " + said("zero_group_size")});
    };
    refuse(c_.expert_parallel_size == 1, "expert_parallel_size", std::to_string(c_.expert_parallel_size),
           "1");
    refuse(!c_.error_feedback, "error_feedback", "true", "false");
    refuse(c_.sdc_steps == 0, "sdc_steps", std::to_string(c_.sdc_steps), "0");
  }

  void batch() {
    if (c_.global_batch_size && c_.gradient_accumulation_steps == kAutomatic)
      c_.gradient_accumulation_steps.reset();
    if (c_.auto_find_batch_size && !c_.global_batch_size && !c_.gradient_accumulation_steps) {
      complain({.what = named("auto_find_batch_size", "true") + " needs global_batch_size",
                .expected = "a size of the optimizer step that does not depend on the device's memory",
                .where = at("auto_find_batch_size"),
                .fix = "set global_batch_size, or gradient_accumulation_steps: a number of micro-batches, or "
                       "auto for about 32 samples per step"});
    }
    if (c_.global_batch_size && c_.auto_find_batch_size && c_.gradient_accumulation_steps) {
      complain({.what = named("auto_find_batch_size", "true") + " and " +
                        said("gradient_accumulation_steps") + " exclude each other if there is " +
                        said("global_batch_size"),
                .expected = "two of the three: the third follows from them",
                .found = said("gradient_accumulation_steps") + ": " +
                         std::to_string(*c_.gradient_accumulation_steps) + ", " + said("global_batch_size") +
                         ": " + std::to_string(*c_.global_batch_size),
                .where = both("auto_find_batch_size", "gradient_accumulation_steps"),
                .fix = "remove " + said("gradient_accumulation_steps") +
                       ": it follows from the automatic micro-batch; or " + said("global_batch_size") + " (" +
                       at("global_batch_size") + ")"});
    }
  }

  void decides(const char* key, const char* unread) {
    warn(at(unread) + ": " + said(unread) + " is not read: " + said(key) + " (" + at(key) +
         ") decides; to do: " + kOneOfTwo);
  }

  // Steps between saves or evaluations that a strategy other than steps does not read.
  void unread_intervals() {
    for (const auto& [strategy, steps] :
         {std::pair("save_strategy", "save_steps"), std::pair("eval_strategy", "eval_steps")}) {
      const std::string chosen = value_text(*find_field(strategy), c_);
      // A number next to a written 'no' is left for later.
      if (chosen == "steps" || (chosen == "no" && r_.is_set(strategy)) || !r_.is_set(steps)) continue;
      warn(at(steps) + ": " + said(steps) + " is not read: " + named(strategy, chosen) + " (" + at(strategy) +
           ") decides; to do: " + set_to(strategy, "steps") + ", or remove " + said(steps));
    }
  }

  void schedule() {
    if (c_.max_steps == 0) {
      complain({.what = "value of '" + said("max_steps") + "' cannot be used",
                .expected = "-1 or a whole number of at least 1",
                .found = "0",
                .where = at("max_steps"),
                .fix = "remove it, and num_train_epochs sets the length"});
    }
    if (c_.max_steps > 0 && changed("num_train_epochs")) decides("max_steps", "num_train_epochs");
    for (const auto& [key, value] : {std::pair<const char*, double>{"warmup_steps", c_.warmup_steps},
                                     {"logging_steps", c_.logging_steps},
                                     {"save_steps", c_.save_steps},
                                     {"eval_steps", c_.eval_steps.value_or(1)}}) {
      if (value >= 1 && value != std::floor(value)) {
        complain({.what = "value of '" + said(key) + "' cannot be used",
                  .expected = "a share below 1 or a whole number of steps",
                  .found = number_text(value),
                  .where = at(key),
                  .fix = such_a_value(key)});
      }
    }
    unread_intervals();
    const bool plateau = c_.lr_scheduler_type == kPlateau;
    for (const auto& [key, value] : {std::pair<const char*, double>{"warmup_steps", c_.warmup_steps},
                                     {"warmup_ratio", c_.warmup_ratio}}) {
      if (!plateau || value == 0) continue;
      note(said(key) + " (" + at(key) + ") changes nothing: " + named("lr_scheduler_type", kPlateau) +
           " has no warm-up");
    }
    if (!plateau && c_.warmup_steps > 0 && c_.warmup_ratio > 0) decides("warmup_steps", "warmup_ratio");
    if (!plateau && c_.warmup_steps >= 1 && c_.max_steps > 0 &&
        c_.warmup_steps >= static_cast<double>(c_.max_steps)) {
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
        note(named("report_to", target) + " (" + at("report_to") +
             ") is not available; trainer_log.jsonl is always written");
      }
    }
    time_between_failures();
    c_.report_to = kept.empty() ? Strings{"none"} : kept;
    if (c_.report_to.size() > 1) std::erase(c_.report_to, "none");
    if (c_.resume_from_checkpoint && c_.resume_from_checkpoint->empty()) c_.resume_from_checkpoint.reset();
    if (c_.overwrite_output_dir && c_.resume_from_checkpoint) {
      const auto flag = read_bool(*c_.resume_from_checkpoint);
      if ((flag && *flag) || *c_.resume_from_checkpoint == "auto") {
        complain({.what = said("overwrite_output_dir") + " and " + said("resume_from_checkpoint") +
                          " exclude each other",
                  .expected = one_of(said("overwrite_output_dir") + " (a new run)",
                                     said("resume_from_checkpoint") + " (the earlier run)"),
                  .found = said("resume_from_checkpoint") + ": " + *c_.resume_from_checkpoint,
                  .where = both("overwrite_output_dir", "resume_from_checkpoint"),
                  .fix = kOneOfTwo});
      }
    }
  }

  void time_between_failures() {
    const bool memory = c_.memory_checkpoint_steps == kAutomatic;
    if (memory && !c_.mtbf_hours) {
      complain({.what = "memory_checkpoint_steps: auto needs mtbf_hours",
                .expected = "the mean time between failures of the run's machines, or a number of steps",
                .where = at("memory_checkpoint_steps"),
                .fix = "for example, add mtbf_hours: 24, or write memory_checkpoint_steps: 100"});
    }
    if (!c_.mtbf_hours) return;
    const std::string unread = memory ? "is read only for checkpoints in memory" : "is not read";
    if (r_.is_set("save_steps"))
      note(said("save_steps") + " (" + at("save_steps") + ") decides; mtbf_hours " + unread);
    if (c_.save_strategy != "steps") {
      note(memory ? "without save_strategy: steps, mtbf_hours " + unread
                  : "mtbf_hours is read only with save_strategy: steps");
    }
  }
};

}  // namespace

std::string listed(const Strings& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

void apply_rules(Resolved& resolved, const LoadOptions& options) {
  apply_path_rules(resolved, options);
  Rules(resolved, options).apply();
}

}  // namespace octet::config
