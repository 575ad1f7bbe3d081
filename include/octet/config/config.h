// config: the user's settings as one flat struct of typed values.
//
// One table (schema.h) defines each key: name, type, default, range, choices, documentation and aliases. It
// also says whether the key is used, accepted without effect, or refused. Parsing, --help, docs/config.md and
// the resolved dump are generated from the table.
//
// Each dialect (SFT-Play, verl, axolotl) has its own table that translates its keys, and so has DeepSpeed's
// JSON. A configuration has at most one dialect. This module does not depend on the world size; functions
// that need it have it as an argument (derive.h). No key is ignored silently: it is used, noted once, or
// refused with a reason.
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

/// The resolved configuration. The initialisers are the defaults. Fields have the names of their keys
/// (`template` is `template_name`); their meaning is the documentation of the key in the table.
struct Config {
  // Model
  std::string model_name_or_path;
  bool train_from_scratch = false;

  // Data
  std::string stage = "sft";
  std::optional<std::string> template_name;
  std::optional<std::string> default_system;
  bool enable_thinking = true;
  bool preserve_thinking = false;
  std::optional<std::string> tool_format;
  bool split_special_tokens = false;
  Strings dataset;
  std::string dataset_dir = "data";
  Strings eval_dataset;
  std::optional<std::string> dataset_train_split;
  std::optional<std::string> dataset_test_split;
  std::optional<std::string> messages_column;
  std::optional<std::string> prompt_column;
  std::optional<std::string> response_column;
  double val_size = 0.0;
  std::int64_t cutoff_len = 2048;
  std::string truncation = "cut";
  std::optional<std::int64_t> pack_factor;
  bool packing = false;
  bool neat_packing = false;
  std::string packing_strategy = "best_fit";
  std::int64_t preprocessing_batch_size = 1000;
  std::optional<std::int64_t> max_samples;
  std::int64_t max_broken_rows = 10;
  std::string mix_strategy = "concat";
  Strings interleave_probs;
  bool train_on_prompt = false;
  bool mask_history = false;
  std::optional<std::int64_t> preprocessing_num_workers;
  bool disable_shuffling = false;
  bool streaming = false;
  std::int64_t buffer_size = 16384;
  std::optional<std::string> tokenized_path;
  bool overwrite_cache = false;
  bool dataloader_drop_last = false;

  // Batch and optimisation
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
  std::int64_t per_device_train_batch_size = 8;
  bool auto_find_batch_size = false;
  std::optional<std::int64_t> per_device_eval_batch_size;
  std::optional<std::int64_t> gradient_accumulation_steps;
  std::optional<std::int64_t> global_batch_size;
  std::string optim = "adamw_torch";
  double learning_rate = 5e-5;
  double weight_decay = 0.0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;
  double num_train_epochs = 3.0;
  std::int64_t max_steps = -1;
  std::string lr_scheduler_type = "linear";
  Arguments lr_scheduler_kwargs;
  double warmup_steps = 0.0;
  double warmup_ratio = 0.0;
  std::int64_t seed = 42;
  std::optional<std::int64_t> data_seed;

  // Precision
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
  std::string param_dtype =
      "auto";  ///< these three are "auto" until a storage is chosen for the device (storages())
  std::string grad_dtype = "auto";
  std::string optim_dtype = "auto";

  // Sharding, communication, memory
  std::string device = "auto";
  bool use_cpu = false;
  std::int64_t zero_stage = 0;
  bool overlap_comm = true;
  std::string gpu_transport = "auto";
  std::string gpu_sums = "auto";
  std::string reduce_dtype = "fp32";
  std::int64_t expert_parallel_size = 1;
  bool error_feedback = false;
  std::string gather_dtype = "compute";
  std::string hierarchical_comm = "auto";
  std::string deterministic = "auto";
  bool full_determinism = false;
  std::string fp8_transposed_weights = "auto";
  std::optional<std::string> recompute_requested;  ///< value of the key `recompute`; see recompute()
  std::optional<bool> gradient_checkpointing;
  bool disable_gradient_checkpointing = false;
  bool optim_state_cpu_offload = false;
  std::int64_t ddp_timeout = 1800;
  std::string deepspeed;

  // Output
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::optional<std::string> resume_from_checkpoint;
  double stop_grace = 5;
  double logging_steps = 500;
  bool logging_first_step = false;
  bool log_samples = false;
  std::string save_strategy = "steps";
  double save_steps = 500;
  std::optional<std::int64_t> save_total_limit;
  std::optional<std::string> save_fallback_dir;
  std::int64_t max_failed_saves = 10;
  std::optional<std::string> export_dtype;
  double export_size = 5;
  bool load_best_model_at_end = false;
  std::string save_async = "auto";
  std::optional<double> mtbf_hours;
  std::int64_t memory_checkpoint_steps = 0;  ///< or kAutomatic
  std::int64_t sdc_steps = 0;
  std::int64_t sdc_replay_steps = 0;
  std::string sdc_action = "stop";
  double loss_spike_factor = 0;
  double grad_norm_spike_factor = 0;
  std::string spike_action = "skip";
  std::string eval_strategy = "no";
  std::optional<double> eval_steps;
  Strings report_to = {"none"};
  std::optional<std::string> run_name;
  std::optional<std::string> logging_dir;
  bool plot_loss = false;
  bool do_train = true;
  std::optional<double> gpu_hour_price;

  /// Returns which activations the backward pass recomputes: "none", "full", … It follows from `recompute`,
  /// or else from gradient_checkpointing / disable_gradient_checkpointing.
  std::string recompute() const;
  /// Whether report_to selects TensorBoard files ("tensorboard" or "all").
  bool tensorboard() const;
  /// Returns the seed for the order of samples: data_seed, or else seed.
  std::uint64_t order_seed() const;
};

/// The source of a value, weakest first.
enum class Source : std::uint8_t { fallback, environment, deepspeed, yaml, override_ };

/// Source and place ("config.yaml:12", "command line", "DS_JSON: zero_optimization.stage").
struct Origin {
  Source source = Source::fallback;
  std::string where;
  std::string key = {};  ///< the key as the user wrote it; empty: the native name
};

/// A resolved configuration with the origins of its values.
struct Resolved {
  Config config;
  std::string path;  ///< the YAML or JSON file; empty if everything is on the command line
  std::map<std::string, Origin> origins;  ///< by key; keys not listed have their default
  Strings notes;                          ///< sentences for the log, each logged once
  Strings warnings;     ///< settings that are silently harmful in other trainers: place, harm and fix
  std::string dialect;  ///< trainer of the foreign keys in the configuration; empty: only keys of Octet
  std::map<std::string, std::string> extra;  ///< accepted keys that change nothing, as written

  bool is_set(const std::string& key) const { return origins.contains(key); }
  /// Returns the whole resolved configuration as YAML, which loads to the same configuration.
  std::string to_yaml() const;
};

using Environment = std::map<std::string, std::string>;
/// Returns the variables of this process at its first call.
Environment process_environment();

struct LoadOptions {
  /// Training needs a model, data and an output folder; other commands need less.
  bool for_training = true;
  Environment environment = process_environment();
};

/// Reads the arguments of a command: at most one path that ends in .yaml, .yml or .json, and overrides, in
/// any order. Overrides are key=value, --key=value, --key value, or --flag for a bool ("a.b=c" changes an
/// entry of a map). Throws Error (ExitCode::usage) for anything unknown, mistyped, out of range,
/// contradictory or unsupported.
Resolved load(const Strings& arguments, const LoadOptions& options = {});

/// Like load(), but reads YAML text from memory. `name` names the file in messages.
Resolved load_text(const std::string& yaml, const std::string& name, const Strings& overrides = {},
                   const LoadOptions& options = {});

/// Returns a hash (32 hexadecimal digits) of all keys that decide the numbers of a run: model, data, order,
/// batch, schedule, precision. Folders, logging, saving, stage and overlap do not change it.
std::string resume_hash(const Config& config);

/// Returns the keys in resume_hash() that differ between a saved run and this run, each as "key: saved ->
/// now". A resumed run reports them.
Strings resume_differences(const Config& saved, const Config& now);

}  // namespace octet::config
