#include "octet/config/lint.h"

#include <algorithm>

#include "octet/config/derive.h"
#include "settings.h"
#include "value.h"

namespace octet::config {
namespace {

class Doubts {
 public:
  explicit Doubts(const Resolved& resolved) : r_(resolved), c_(resolved.config), all_(resolved.warnings) {}

  Strings take() {
    optimisation();
    precision();
    data();
    output();
    memory();
    communication();
    return std::move(all_);
  }

 private:
  void add(bool doubtful, const std::string& sentence) {
    if (doubtful) all_.push_back(sentence);
  }

  void optimisation() {
    add(c_.learning_rate == 0, "learning_rate is 0: nothing is learned");
    const bool lora = c_.finetuning_type == "lora";
    add(lora && c_.learning_rate > 0 && c_.learning_rate < 5e-5,
        "learning_rate is below 5e-5: adapters need about ten times the rate of full fine-tuning, 1e-4 to "
        "5e-4");
    const bool own = lora && (!c_.adapter_name_or_path || c_.create_new_adapter);
    add(own && attention_only(c_.lora_target),
        "lora_target names only modules of attention: adapters in the MLP (gate_proj, up_proj, down_proj) "
        "learn more with the same number of parameters; all names both");
    add(lora && samples_of_a_step() > 256,
        "a step trains " + std::to_string(samples_of_a_step()) +
            " samples: with adapters, batches above 256 learn less from the same data than full fine-tuning");
    add(own && c_.lora_alpha == 0.0, "lora_alpha is 0: the output of adapters is multiplied by 0");
    add(!lora && !c_.train_from_scratch && c_.learning_rate > 5e-4,
        "learning_rate " + number_text(c_.learning_rate) +
            " is high for fine-tuning all weights; 1e-5 to 5e-5 is usual");
    add(c_.max_grad_norm == 0, "max_grad_norm is 0: gradients are not clipped");
    const bool plateau = c_.lr_scheduler_type == kPlateau;
    add(!plateau && (c_.warmup_ratio > 0.5 ||
                     (c_.max_steps > 0 && c_.warmup_steps > static_cast<double>(c_.max_steps) / 2)),
        "the rate rises for more than half of the run; lower warmup_steps or warmup_ratio");
    add(c_.max_steps > 0 && r_.is_set("num_train_epochs"),
        "max_steps and num_train_epochs are both set: max_steps counts");
    add(!plateau && c_.warmup_steps > 0 && c_.warmup_ratio > 0,
        "warmup_steps and warmup_ratio are both set: warmup_steps counts");
    if (plateau) follows_evaluations();
    add(c_.num_train_epochs > 20 && c_.max_steps <= 0,
        "num_train_epochs is more than 20: fine-tuning mostly overfits earlier");
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
        "lr_scheduler_kwargs: {mode: max} treats a larger evaluation loss as better; min is usual");
    add(number("min_lr", 0) >= c_.learning_rate && c_.learning_rate > 0,
        "lr_scheduler_kwargs: min_lr is not below learning_rate: the rate never falls");
    if (c_.max_steps <= 0 || c_.eval_strategy != "steps") return;
    const std::int64_t each = interval_steps(c_.eval_steps.value_or(c_.logging_steps), c_.max_steps);
    const double patience = number("patience", 10);
    // The first evaluation sets the best loss. A reduction after the last step has no effect.
    const std::int64_t used = (c_.max_steps - 1) / each;
    add(static_cast<double>(used) < patience + 2,
        "reduce_lr_on_plateau waits for " + number_text(patience) +
            " evaluations without improvement, but the run has only " + std::to_string(used) +
            " before its last step: the rate never falls; lower patience or eval_steps");
  }

  void precision() {
    add(!c_.bf16 && !c_.pure_bf16 && c_.device != "cpu",
        "neither bf16 nor pure_bf16 is set: everything that is not FP8 computes in fp32, which is slow on "
        "GPUs");
    add(c_.fp8 && c_.device == "cpu", "fp8 on a CPU emulates a GPU, and is slower there than bf16");
    add(c_.fp8 && c_.fp8_recipe == "delayed" && c_.fp8_amax_history_len < 16,
        "fp8_amax_history_len is short: one small step shrinks the range for the next; 1024 is usual");
    add((c_.deterministic == "true" || c_.deterministic == "strict") && c_.device != "cpu",
        "deterministic: true and strict make attention slower on a GPU, and much slower if documents are too "
        "long for its workspace");
  }

  void data() {
    add(c_.cutoff_len < 64, "cutoff_len is below 64: most samples will be cut");
    add(c_.stage == "sft" && !c_.template_name,
        "no template is named: conversations are written with the template of the tokenizer, if it has one");
    add(c_.eval_strategy == "no" && (c_.val_size > 0 || !c_.eval_dataset.empty()),
        "data are held out and never evaluated; set eval_strategy");
    add(c_.disable_shuffling, "disable_shuffling: samples are trained in the order of the files");
  }

  void output() {
    add(c_.save_strategy == "no", "save_strategy is no: a run that ends early cannot resume");
    const bool measured = c_.mtbf_hours && !r_.is_set("save_steps") && c_.save_strategy == "steps";
    add(measured && !c_.save_total_limit,
        "with mtbf_hours checkpoints may come often, and all are kept; set save_total_limit");
    add(!measured && c_.save_strategy == "steps" && c_.max_steps > 0 &&
            c_.save_steps > static_cast<double>(c_.max_steps),
        "save_steps is beyond max_steps: the only checkpoint is the last");
    add(!measured && c_.save_strategy != "no" && !c_.save_total_limit && c_.max_steps > 0 &&
            c_.save_steps >= 1 && static_cast<double>(c_.max_steps) / c_.save_steps > 20,
        "more than 20 checkpoints will be kept; set save_total_limit");
    add(c_.logging_steps >= 1 && c_.max_steps > 0 && c_.logging_steps > static_cast<double>(c_.max_steps),
        "logging_steps is beyond max_steps: no step will be logged");
  }

  void memory() {
    add(c_.zero_stage == 3 && !c_.overlap_comm,
        "zero_stage 3 without overlap_comm waits for every block's parameters");
    add(c_.device != "cpu" && c_.per_device_train_batch_size == 1 && !c_.packing &&
            !c_.auto_find_batch_size && c_.cutoff_len < 1024,
        "micro-batches of one short sample leave a GPU idle; raise per_device_train_batch_size, or set "
        "packing");
  }

  void communication() {
    add(c_.device != "cpu" && c_.gpu_transport == "host",
        "gpu_transport: host is the slowest way between GPUs, for machines with GPUs that cannot reach each "
        "other; auto chooses it if nothing else works");
  }

  static bool attention_only(const Strings& targets) {
    return std::ranges::all_of(targets, [](const std::string& target) {
      const std::string word = target.substr(target.rfind('.') + 1);
      return word == "q_proj" || word == "k_proj" || word == "v_proj" || word == "o_proj";
    });
  }

  /// Returns global_batch_size, or the samples per step on one rank if it is not set.
  std::int64_t samples_of_a_step() const {
    return c_.global_batch_size ? *c_.global_batch_size : resolve_batch(c_, 1).global;
  }

  const Resolved& r_;
  const Config& c_;
  Strings all_;
};

}  // namespace

Strings doubts(const Resolved& resolved) {
  return Doubts(resolved).take();
}

}  // namespace octet::config
