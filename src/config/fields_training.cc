// Keys of the batch, the optimizer, the schedule and the output of a run.
#include "settings.h"
#include "table.h"

namespace octet::config {
namespace {

constexpr double kMaxCount = 9007199254740992.0;  // 2^53: exact as a double

void add_batch(Table& t) {
  t.group("Batch");
  t.used("per_device_train_batch_size", &Config::per_device_train_batch_size,
         "Samples per micro-batch on each rank. auto means auto_find_batch_size: true.")
      .range(1, 1048576)
      .or_auto()
      .decides_numbers();
  t.used("auto_find_batch_size", &Config::auto_find_batch_size,
         "Choose the fastest micro-batch that fits the device. It divides global_batch_size, or with "
         "gradient_accumulation_steps sets the samples per step. One of the two is required.")
      .details("With gradient_accumulation_steps, the samples per step follow from the micro-batch.");
  t.used("per_device_eval_batch_size", &Config::per_device_eval_batch_size,
         "Samples per evaluation batch on each rank. null and auto: the size of a training micro-batch, so "
         "that evaluation needs no more memory.")
      .range(1, 1048576)
      .or_auto();
  t.used("gradient_accumulation_steps", &Config::gradient_accumulation_steps,
         "Micro-batches of one optimizer step on each rank. null: 1, or from global_batch_size. auto: about "
         "32 samples per step over all ranks, unless global_batch_size is set.")
      .range(1, 1048576)
      .or_auto()
      .decides_numbers();
  t.used("global_batch_size", &Config::global_batch_size,
         "Samples of one optimizer step over all ranks; the accumulation follows from it and the world size.")
      .range(1, 1099511627776.0)
      .decides_numbers();
}

// Hugging Face's names of AdamW and its 8-bit variants; other optimizers are refused.
void add_optimizer_name(Table& t) {
  Field& optim = t.used("optim", &Config::optim,
                        "Hugging Face's name of the optimizer. Only AdamW is built. The 8-bit names mean "
                        "optim_dtype: int8.")
                     .one_of({"adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_hf", "adamw",
                              "paged_adamw", "paged_adamw_32bit", "adamw_torch_8bit", "adamw_8bit",
                              "adamw_bnb_8bit", "paged_adamw_8bit"});
  for (const char* other : {"adafactor",
                            "sgd",
                            "adagrad",
                            "rmsprop",
                            "rmsprop_bnb",
                            "rmsprop_bnb_8bit",
                            "lion_32bit",
                            "lion_8bit",
                            "paged_lion_32bit",
                            "paged_lion_8bit",
                            "ademamix",
                            "ademamix_8bit",
                            "lomo",
                            "adalomo",
                            "galore_adamw",
                            "galore_adamw_8bit",
                            "apollo_adamw",
                            "grokadamw",
                            "schedule_free_adamw",
                            "stable_adamw",
                            "adamw_torch_4bit",
                            "adamw_anyprecision"}) {
    optim.refuse(other, "the optimizer is AdamW with moments in fp32, bf16 or int8 (optim_dtype)");
  }
}

void add_optimizer(Table& t) {
  t.group("Optimisation");
  add_optimizer_name(t);
  t.used("learning_rate", &Config::learning_rate, "Peak learning rate of AdamW.")
      .at_least(0)
      .decides_numbers();
  t.used("weight_decay", &Config::weight_decay, "Decoupled decay of matrices; never of norms and biases.")
      .at_least(0)
      .decides_numbers();
  t.used("adam_beta1", &Config::adam_beta1, "Decay of the first moment.")
      .at_least(0)
      .below(1)
      .decides_numbers();
  t.used("adam_beta2", &Config::adam_beta2, "Decay of the second moment.")
      .at_least(0)
      .below(1)
      .decides_numbers();
  t.used("adam_epsilon", &Config::adam_epsilon, "Added to the root of the second moment.")
      .above(0)
      .decides_numbers();
  t.used("max_grad_norm", &Config::max_grad_norm,
         "Gradients are scaled down to this global norm; 0: no clipping.")
      .at_least(0)
      .decides_numbers();
  t.used(
       "moe_routing_file", &Config::moe_routing_file,
       "Mixtures of experts: file of `trainer generate --save-routing`. Its experts are trained, and not the "
       "choice of the router.")
      .details(
          "The tokens of a question and its answer find their row. At most 8 tokens may follow them. The "
          "trained "
          "router computes the weights of the experts. Evaluations use its choice.")
      .decides_numbers();
  t.used("router_z_loss_coef", &Config::router_z_loss_coef,
         "Mixtures of experts: factor of the z-loss of each router, the mean over tokens of ln(sum of "
         "exp(logits))^2, which training adds; 0: none.")
      .alias("moe_z_loss_coeff")
      .range(0, 1e6)
      .decides_numbers();
  t.used(
       "moe_capacity_factor", &Config::moe_capacity_factor,
       "Mixtures of experts: in training, an expert takes at most ceil(factor * tokens * experts per token / "
       "experts) rows of a micro-batch; null: no limit.")
      .alias("moe_expert_capacity_factor")
      .range(1e-3, 1e6)
      .decides_numbers();
  t.used("seed", &Config::seed, "Seed of initial weights, of the order of samples and of rounding.")
      .range(0, kMaxCount)
      .decides_numbers();
  t.used("data_seed", &Config::data_seed, "Seed of the order of samples only; null: seed.")
      .range(0, kMaxCount)
      .decides_numbers();
}

void add_schedule(Table& t) {
  t.used("num_train_epochs", &Config::num_train_epochs, "Passes over the data; may be a fraction.")
      .above(0)
      .decides_numbers();
  t.used("max_steps", &Config::max_steps,
         "Optimizer steps; overrides num_train_epochs. -1: num_train_epochs decides.")
      .range(-1, kMaxCount)
      .decides_numbers();
  t.used("lr_scheduler_type", &Config::lr_scheduler_type,
         "Schedule of the learning rate: names of Hugging Face, and schedules of DeepSpeed with deepspeed_. "
         "reduce_lr_on_plateau needs eval_strategy and has no warm-up.")
      .details(
          "deepspeed_warmup, deepspeed_warmup_decay and deepspeed_warmup_cosine are WarmupLR, WarmupDecayLR "
          "and WarmupCosineLR of DeepSpeed. reduce_lr_on_plateau lowers the rate when the evaluation loss "
          "stops improving.")
      .one_of(schedule_types())
      .decides_numbers();
  t.used("lr_scheduler_kwargs", &Config::lr_scheduler_kwargs, "Arguments of the schedule.")
      .details(
          "cosine, cosine_with_restarts: num_cycles. cosine_with_min_lr: min_lr or min_lr_rate, num_cycles. "
          "cosine_warmup_with_min_lr: also warmup_lr_rate. polynomial: lr_end, power. inverse_sqrt: "
          "timescale. warmup_stable_decay: num_stable_steps, num_decay_steps, warmup_type, decay_type, "
          "min_lr_ratio, num_cycles; by default a third of the steps after the warm-up is stable, then the "
          "rate decays. deepspeed_warmup: warmup_type (log or linear), warmup_min_lr. "
          "deepspeed_warmup_decay: also total_num_steps. deepspeed_warmup_cosine: warmup_type, "
          "warmup_min_ratio, cos_min_ratio, total_num_steps. reduce_lr_on_plateau, as in PyTorch: mode min "
          "or max, factor 0.1, patience 10 and cooldown 0 (both evaluations), threshold 1e-4, threshold_mode "
          "rel or abs, min_lr 0, eps 1e-8.")
      .decides_numbers();
  t.used("warmup_steps", &Config::warmup_steps,
         "Steps in which the rate rises from 0; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .decides_numbers();
  t.used("warmup_ratio", &Config::warmup_ratio, "Warm-up as a share of all steps; warmup_steps wins.")
      .range(0, 1)
      .decides_numbers();
}

void add_logging(Table& t) {
  t.group("Output");
  t.used("output_dir", &Config::output_dir, "Folder of checkpoints, logs, plots and the final model.");
  t.used("overwrite_output_dir", &Config::overwrite_output_dir,
         "Start over even if output_dir has a run. Old checkpoints are removed when there is a new one. The "
         "same run, restarted before its end, resumes. false: resume the newest checkpoint.");
  t.used("resume_from_checkpoint", &Config::resume_from_checkpoint,
         "A checkpoint folder. true: the newest of output_dir. auto: the newest if there is one. false: "
         "none. null: overwrite_output_dir decides.");
  t.used("stop_grace", &Config::stop_grace,
         "Seconds after a stop request (SIGTERM, SIGINT, SIGHUP, SIGUSR2) in which more requests are "
         "ignored. A later one stops at once, without a checkpoint.")
      .range(0, 1e6);
  t.used("logging_steps", &Config::logging_steps, "Steps between log lines; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .above(0);
  t.used("logging_first_step", &Config::logging_first_step, "Log the first step too.");
  t.used("log_samples", &Config::log_samples,
         "Log the rows of the data set of each step to samples.jsonl, by rank and micro-batch.");
  t.used("report_to", &Config::report_to,
         "none, or tensorboard (all means the same): event files in logging_dir.")
      .one_of({"none", "all", "tensorboard", "wandb", "swanlab", "mlflow", "comet_ml", "trackio"});
  t.used("run_name", &Config::run_name, "Name of the run in logs; null is output_dir.");
  t.used("logging_dir", &Config::logging_dir,
         "Folder of TensorBoard files; null is output_dir/runs/DATE_HOST.");
  t.used("plot_loss", &Config::plot_loss, "Draw training_loss.svg and .png in output_dir.");
  t.used("gpu_hour_price", &Config::gpu_hour_price,
         "Price of one device for one hour; the summary then has the cost.")
      .at_least(0);
}

void add_saving(Table& t) {
  t.used("save_strategy", &Config::save_strategy,
         "When checkpoints are written. best: after each evaluation that improves metric_for_best_model.")
      .one_of({"steps", "epoch", "no", "best"});
  t.used("save_steps", &Config::save_steps, "Steps between checkpoints; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .above(0);
  t.used("mtbf_hours", &Config::mtbf_hours,
         "Mean time between failures of the machines. Without save_steps it sets the steps between "
         "checkpoints for the least cost of saves and failures. The first save follows after ten steps.")
      .above(0);
  t.used("memory_checkpoint_steps", &Config::memory_checkpoint_steps,
         "Steps between checkpoints in host memory, from which launch/supervise restarts a run. They take "
         "twice the state, and copies of another host. 0: none. auto: from mtbf_hours.")
      .details("auto uses the measured cost of a memory checkpoint. Without launch/supervise none are kept.")
      .range(0, kMaxCount)
      .or_auto();
  t.used("save_total_limit", &Config::save_total_limit, "Keep only the newest checkpoints; null keeps all.")
      .at_least(1);
  t.used("save_fallback_dir", &Config::save_fallback_dir,
         "Folder for checkpoints that output_dir cannot take (full, over quota, failing). The run makes a "
         "subfolder, and later starts look there too.");
  t.used("max_failed_saves", &Config::max_failed_saves,
         "Consecutive failed saves that end the run with exit code 78, after one more attempt. Retries "
         "follow after a tenth of the steps between checkpoints.")
      .at_least(1);
  t.used("export_dtype", &Config::export_dtype,
         "Format of the weights of the final model; null: bf16 with bf16: true, else fp32.")
      .one_of({"fp32", "bf16", "fp16"});
  t.used("export_size", &Config::export_size, "Largest size of a file of the final model, in GB.").above(0);
  t.used("load_best_model_at_end", &Config::load_best_model_at_end,
         "The final model is the checkpoint with the best metric_for_best_model, which save_total_limit does "
         "not remove. Only evaluated steps are compared.");
  t.used(
       "metric_for_best_model", &Config::metric_for_best_model,
       "The figure of an evaluation that finds the best model; null is loss. The name may begin with eval_.")
      .details(
          "Figures: loss; perplexity with stage: pt; accuracy with compute_accuracy: true; rewards and "
          "log-probabilities as in the log with stage: dpo, kto and rm; kd_loss, ce_loss and "
          "teacher_agreement with stage: kd.");
  t.used("greater_is_better", &Config::greater_is_better,
         "Whether a larger metric_for_best_model is better; null: not if its name ends in loss, and not for "
         "perplexity and kl.");
  t.used("early_stopping_steps", &Config::early_stopping_steps,
         "The run ends early after this many evaluations in a row without a better metric_for_best_model.")
      .at_least(1);
  t.used("save_async", &Config::save_async,
         "Write checkpoints during the next steps, from a copy of the state in host memory. auto: if the run "
         "saves before its end, and three quarters of the memory hold it with this copy.")
      .details(
          "The copy takes the bytes of a checkpoint divided by the number of ranks. A separate thread writes "
          "the checkpoint and reads it back.")
      .one_of({"auto", "true", "false"});
  t.used("eval_strategy", &Config::eval_strategy, "When the model is evaluated during the run.")
      .one_of({"no", "steps", "epoch"})
      .alias("evaluation_strategy");
  t.used("eval_steps", &Config::eval_steps, "Steps between evaluations; null is logging_steps.")
      .range(0, kMaxCount)
      .above(0);
  t.used("eval_delay", &Config::eval_delay,
         "Evaluations before this step are left out; with eval_strategy: epoch, before this epoch.")
      .at_least(0);
  t.used("eval_on_start", &Config::eval_on_start, "Evaluate before the first step too.");
  t.used("do_train", &Config::do_train, "Must be true: this program trains.");
}

}  // namespace

void add_training_fields(Table& table) {
  add_batch(table);
  add_optimizer(table);
  add_schedule(table);
  add_logging(table);
  add_saving(table);
}

// Keys of checks for silent data corruption and for spikes of loss and gradient norm.

void add_check_fields(Table& t) {
  t.group("Checks");
  t.used("sdc_steps", &Config::sdc_steps,
         "Steps between checks for silently corrupted bits: hashes of states, replicas and messages. The "
         "differing rank is named. Every checkpoint is checked before it is written. 0: none.")
      .range(0, 1e15);
  t.used("sdc_replay_steps", &Config::sdc_replay_steps,
         "Steps between replays: another rank recomputes a micro-batch, and a third decides. 0: none. Needs "
         "sdc_steps, and ranks on CPUs of one kind or deterministic: strict.")
      .range(0, 1e15);
  t.used("sdc_action", &Config::sdc_action,
         "After a failed check. stop: exit code 75, with the last verified checkpoint named. rollback: "
         "return to it and continue, at most three times in a row.")
      .one_of({"stop", "rollback"});
  t.used("loss_spike_factor", &Config::loss_spike_factor,
         "A step is a spike if its loss is more than this many times the median of the last hundred steps, "
         "from the eleventh step on. 0: off.")
      .at_least(0)
      .decides_numbers();
  t.used("grad_norm_spike_factor", &Config::grad_norm_spike_factor,
         "Like loss_spike_factor, for the gradient norm before clipping.")
      .at_least(0)
      .decides_numbers();
  t.used("spike_action", &Config::spike_action,
         "For spikes and steps that are not finite. skip: skip the update. rollback: return to the last "
         "checkpoint and leave out the data since. stop: end the run.")
      .details("With skip, a step with a finite gradient and an infinite loss is taken, with a warning.")
      .one_of({"skip", "rollback", "stop"});
}

}  // namespace octet::config
