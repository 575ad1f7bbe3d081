// keys: the parts of the configuration. A function that reads some keys takes the parts with these keys, and
// a Config converts to each of its parts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace octet::config {

using Strings = std::vector<std::string>;
/// Named arguments of a schedule: numbers, or words such as "cosine".
using Arguments = std::map<std::string, std::variant<double, std::string>>;

/// Value of an integer key that is `auto`: the program chooses the number.
inline constexpr std::int64_t kAutomatic = -1;

// The initialisers are the defaults. Fields have the names of their keys (`template` is `template_name`);
// their meaning is the documentation of the key in the table.

/// Trained parameters: adapters, frozen modules, and the quantised base.
struct TuningKeys {
  std::string finetuning_type = "full";
  std::int64_t lora_rank = 8;
  std::optional<double> lora_alpha;
  double lora_dropout = 0;
  Strings lora_target = {"all"};
  bool use_rslora = false;
  bool use_dora = false;
  std::optional<double> loraplus_lr_ratio;
  Strings additional_target;
  std::optional<std::string> adapter_name_or_path;
  bool create_new_adapter = false;
  std::int64_t freeze_trainable_layers = 2;
  Strings freeze_trainable_modules = {"all"};
  Strings freeze_extra_modules;
  std::optional<std::int64_t> quantization_bit;
  std::string quantization_type = "nf4";
  bool double_quantization = true;
};

/// The model that a run starts from, and its trained parameters.
struct ModelKeys : TuningKeys {
  std::string model_name_or_path;
  bool train_from_scratch = false;
};

/// Seeds of random numbers.
struct SeedKeys {
  std::int64_t seed = 42;
  std::optional<std::int64_t> data_seed;

  /// Returns the seed for the order of samples: data_seed, or else seed.
  std::uint64_t order_seed() const;
};

/// Changes to the loss of trained tokens, and noise on their embeddings.
struct TokenLossKeys {
  double label_smoothing_factor = 0;
  bool use_dft_loss = false;
  bool use_eaft_loss = false;
  double eaft_alpha = 1.0;
  std::optional<double> neftune_noise_alpha;
  bool compute_accuracy = false;
};

/// Preferences: stage: dpo, kto and rm.
struct PreferenceKeys {
  std::string pref_loss = "sigmoid";
  double pref_beta = 0.1;
  double pref_ftx = 0;
  double dpo_label_smoothing = 0;
  double simpo_gamma = 0.5;
  std::optional<double> ld_alpha;
  double kto_chosen_weight = 1.0;
  double kto_rejected_weight = 1.0;
  std::optional<std::string> ref_model;
  std::optional<bool> precompute_ref_log_probs;
};

/// The distributions of a teacher: stage: kd.
struct TeacherKeys {
  std::optional<std::string> teacher_logprobs;
  double kd_ratio = 0.5;
  double kd_temperature = 1;
  double kd_beta = 0;
  std::int64_t kd_topk = 64;
  std::string kd_rest = "bucket";
};

/// Conversations as tokens and labels.
struct TemplateKeys {
  std::string stage = "sft";
  std::optional<std::string> template_name;
  std::optional<std::string> default_system;
  bool enable_thinking = true;
  bool preserve_thinking = false;
  std::optional<std::string> tool_format;
  bool split_special_tokens = false;
  bool train_on_prompt = false;
  bool mask_history = false;
};

/// Data sets, and the order of their rows.
struct DatasetKeys {
  Strings dataset;
  std::string dataset_dir = "data";
  Strings eval_dataset;
  std::optional<std::string> dataset_train_split;
  std::optional<std::string> dataset_test_split;
  std::optional<std::string> messages_column;
  std::optional<std::string> prompt_column;
  std::optional<std::string> response_column;
  double val_size = 0.0;
  std::optional<std::int64_t> max_samples;
  std::int64_t max_broken_rows = 10;
  std::string mix_strategy = "concat";
  Strings interleave_probs;
  std::optional<std::int64_t> preprocessing_num_workers;
  bool disable_shuffling = false;
  bool streaming = false;
  std::int64_t buffer_size = 16384;
  std::optional<std::string> tokenized_path;
  bool overwrite_cache = false;
  bool dataloader_drop_last = false;
};

/// Documents as sequences.
struct SequenceKeys {
  std::int64_t cutoff_len = 2048;
  std::string truncation = "cut";
  std::optional<std::int64_t> pack_factor;
  bool packing = false;
  bool neat_packing = false;
  std::string packing_strategy = "best_fit";
  std::int64_t preprocessing_batch_size = 1000;
};

/// Data, from rows to sequences.
struct DataKeys : SeedKeys, TemplateKeys, DatasetKeys, SequenceKeys {};

/// Micro-batches and the size of a step.
struct BatchKeys {
  std::int64_t per_device_train_batch_size = 8;
  bool auto_find_batch_size = false;
  std::optional<std::int64_t> per_device_eval_batch_size;
  std::optional<std::int64_t> gradient_accumulation_steps;
  std::optional<std::int64_t> global_batch_size;
};

/// Number of steps, and their learning rates.
struct ScheduleKeys {
  double learning_rate = 5e-5;
  double num_train_epochs = 3.0;
  std::int64_t max_steps = -1;
  std::string lr_scheduler_type = "linear";
  Arguments lr_scheduler_kwargs;
  double warmup_steps = 0.0;
  double warmup_ratio = 0.0;
};

/// The update of a step.
struct OptimizerKeys {
  std::string optim = "adamw_torch";
  double weight_decay = 0.0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;
};

/// Formats of GEMMs, of stored states, and of the final model.
struct PrecisionKeys {
  bool bf16 = false;
  bool pure_bf16 = false;
  bool fp8 = false;
  std::string fp8_backend = "auto";
  std::string fp8_recipe = "delayed";
  std::string fp8_format = "hybrid";
  std::int64_t fp8_amax_history_len = 1024;
  std::string fp8_amax_compute_algo = "max";
  std::int64_t fp8_margin = 0;
  std::string fp8_scale_granularity = "auto";
  std::string fp8_fast_accumulation = "forward";
  std::string fp8_fallback = "warn";
  std::string fp8_statistics = "layers";
  std::string fp8_transposed_weights = "auto";
  /// These three are "auto" until a storage is chosen for the device (storages()).
  std::string param_dtype = "auto";
  std::string grad_dtype = "auto";
  std::string optim_dtype = "auto";
  std::optional<std::string> export_dtype;
};

/// Device memory in exchange for time.
struct MemoryKeys {
  std::optional<std::string> recompute_requested;  ///< value of the key `recompute`; see recompute()
  std::optional<bool> gradient_checkpointing;
  bool disable_gradient_checkpointing = false;
  bool optim_state_cpu_offload = false;

  /// Returns which activations the backward pass recomputes: "none", "full", … It follows from `recompute`,
  /// or else from gradient_checkpointing / disable_gradient_checkpointing.
  std::string recompute() const;
};

/// Routers of a mixture of experts.
struct RouterKeys {
  double router_z_loss_coef = 0.0;
  std::optional<double> moe_capacity_factor;
  std::optional<std::string> moe_routing_file;
};

/// Formats, memory and routers of the passes of a model.
struct ComputeKeys : PrecisionKeys, MemoryKeys, RouterKeys {};

/// Slices of the states on the ranks, and their messages.
struct ShardingKeys {
  std::int64_t zero_stage = 0;
  std::optional<std::string> zero_group_size;  ///< auto, node or a number of ranks
  std::string deepspeed;
  bool overlap_comm = true;
  std::string reduce_dtype = "fp32";
  bool error_feedback = false;
  std::string gather_dtype = "compute";
  std::string exchange_dtype = "compute";
  std::optional<double> exchange_rows_factor;
  std::string hierarchical_comm = "auto";
  std::int64_t expert_parallel_size = 1;
};

/// Devices, transports, and the order of sums.
struct MachineKeys {
  std::string device = "auto";
  bool use_cpu = false;
  std::string gpu_transport = "auto";
  std::string gpu_sums = "auto";
  std::string deterministic = "auto";
  bool full_determinism = false;
  std::int64_t ddp_timeout = 1800;
};

/// The output folder, checkpoints, and the final model.
struct SaveKeys {
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::optional<std::string> resume_from_checkpoint;
  double stop_grace = 5;
  std::string save_strategy = "steps";
  double save_steps = 500;
  std::optional<std::int64_t> save_total_limit;
  std::optional<std::string> save_fallback_dir;
  std::int64_t max_failed_saves = 10;
  std::string save_async = "auto";
  std::optional<double> mtbf_hours;
  std::int64_t memory_checkpoint_steps = 0;  ///< or kAutomatic
  bool load_best_model_at_end = false;
  double export_size = 5;
};

/// Silent faults of bits and steps.
struct FaultKeys {
  std::int64_t sdc_steps = 0;
  std::int64_t sdc_replay_steps = 0;
  std::string sdc_action = "stop";
  double loss_spike_factor = 0;
  double grad_norm_spike_factor = 0;
  std::string spike_action = "skip";
};

/// Evaluations during training, or instead of it.
struct EvaluationKeys {
  std::string eval_strategy = "no";
  std::optional<double> eval_steps;
  double eval_delay = 0;
  bool eval_on_start = false;
  std::optional<std::string> metric_for_best_model;
  std::optional<bool> greater_is_better;
  std::optional<std::int64_t> early_stopping_steps;
  bool do_train = true;
};

/// Logs, plots and prices.
struct LogKeys {
  double logging_steps = 500;
  bool logging_first_step = false;
  bool log_samples = false;
  Strings report_to = {"none"};
  std::optional<std::string> run_name;
  std::optional<std::string> logging_dir;
  bool plot_loss = false;
  std::optional<double> gpu_hour_price;

  /// Whether report_to selects TensorBoard files ("tensorboard" or "all").
  bool tensorboard() const;
};

}  // namespace octet::config
