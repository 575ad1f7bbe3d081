// Keys of the batch, the optimizer, the schedule and of what a run writes.
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
  t.used(
      "auto_find_batch_size", &Config::auto_find_batch_size,
      "Take the micro-batch from the memory of the device instead of per_device_train_batch_size: the "
      "fastest that fits and divides global_batch_size; or, with gradient_accumulation_steps instead of it, "
      "the fastest that fits, and the number of samples per step follows from it. One of the two must be "
      "given.");
  t.used("per_device_eval_batch_size", &Config::per_device_eval_batch_size,
         "Samples per evaluation batch on each rank; null: as many as a micro-batch of training has, so that "
         "evaluation takes no more memory. auto means null.")
      .range(1, 1048576)
      .or_auto();
  t.used("gradient_accumulation_steps", &Config::gradient_accumulation_steps,
         "Micro-batches of one optimizer step on each rank; null is 1, or follows from global_batch_size. "
         "auto: without global_batch_size as many as come nearest to 32 samples per step over all ranks.")
      .range(1, 1048576)
      .or_auto()
      .decides_numbers();
  t.used("global_batch_size", &Config::global_batch_size,
         "Samples of one optimizer step over all ranks; the accumulation follows from it and the world size.")
      .range(1, 1099511627776.0)
      .decides_numbers();
}

// Hugging Face's names of AdamW, of its 8-bit forms, and of what is something else.
void add_optimizer_name(Table& t) {
  Field& optim =
      t.used("optim", &Config::optim,
             "The optimizer by Hugging Face's names, of which those of AdamW are built; the 8-bit ones mean "
             "optim_dtype: int8.")
          .one_of({"adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_hf", "adamw", "paged_adamw",
                   "paged_adamw_32bit", "adamw_torch_8bit", "adamw_8bit", "adamw_bnb_8bit",
                   "paged_adamw_8bit"});
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
         "Gradients are scaled down to this global norm; 0 leaves them.")
      .at_least(0)
      .decides_numbers();
  t.used("seed", &Config::seed, "Seed of initial weights, of the order of samples and of rounding.")
      .range(0, kMaxCount)
      .decides_numbers();
  t.used("data_seed", &Config::data_seed, "Seed of the order of samples alone; null is seed.")
      .range(0, kMaxCount)
      .decides_numbers();
}

void add_schedule(Table& t) {
  t.used("num_train_epochs", &Config::num_train_epochs, "Passes over the data; may be a fraction.")
      .above(0)
      .decides_numbers();
  t.used("max_steps", &Config::max_steps,
         "Optimizer steps; -1 lets num_train_epochs decide, otherwise it wins.")
      .range(-1, kMaxCount)
      .decides_numbers();
  t.used("lr_scheduler_type", &Config::lr_scheduler_type,
         "Course of the learning rate: Hugging Face's schedules, and DeepSpeed's WarmupLR, WarmupDecayLR and "
         "WarmupCosineLR under names that begin with deepspeed_. reduce_lr_on_plateau needs evaluations "
         "(eval_strategy) and lowers the rate where their loss gets no better; it has no warm-up.")
      .one_of(schedule_types())
      .decides_numbers();
  t.used("lr_scheduler_kwargs", &Config::lr_scheduler_kwargs,
         "Arguments of the schedule: num_cycles (cosine, cosine_with_restarts); min_lr or min_lr_rate, "
         "num_cycles (cosine_with_min_lr, and with warmup_lr_rate cosine_warmup_with_min_lr); lr_end, power "
         "(polynomial); timescale (inverse_sqrt); num_stable_steps, num_decay_steps, warmup_type, "
         "decay_type, min_lr_ratio, num_cycles (warmup_stable_decay, which is stable for a third of what "
         "follows the warm-up and then decays unless told); warmup_type (log or linear), "
         "warmup_min_lr (deepspeed_warmup, and with total_num_steps deepspeed_warmup_decay); warmup_type, "
         "warmup_min_ratio, cos_min_ratio, total_num_steps (deepspeed_warmup_cosine); mode min or max, "
         "factor 0.1, patience 10 and cooldown 0 (both evaluations), threshold 1e-4, threshold_mode rel or "
         "abs, min_lr 0, eps 1e-8 (reduce_lr_on_plateau, as in PyTorch).")
      .decides_numbers();
  t.used("warmup_steps", &Config::warmup_steps,
         "Steps in which the rate rises from 0; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .decides_numbers();
  t.used("warmup_ratio", &Config::warmup_ratio, "The same as a share of all steps; warmup_steps wins.")
      .range(0, 1)
      .decides_numbers();
}

void add_logging(Table& t) {
  t.group("Output");
  t.used("output_dir", &Config::output_dir, "Folder of checkpoints, logs, plots and the final model.");
  t.used(
      "overwrite_output_dir", &Config::overwrite_output_dir,
      "Start afresh although output_dir holds a run, whose checkpoints go when there is a new one; this run, "
      "started again before its end, goes on. Otherwise the newest checkpoint is resumed.");
  t.used("resume_from_checkpoint", &Config::resume_from_checkpoint,
         "A checkpoint folder; true takes the newest of output_dir, auto too where there is one, false none; "
         "null as overwrite_output_dir says.");
  t.used("stop_grace", &Config::stop_grace,
         "Seconds after a request to stop (SIGTERM, SIGINT, SIGHUP, SIGUSR2) in which further ones change "
         "nothing; one after that stops at once, without a checkpoint.")
      .range(0, 1e6);
  t.used("logging_steps", &Config::logging_steps, "Steps between log lines; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .above(0);
  t.used("logging_first_step", &Config::logging_first_step, "Log the first step too.");
  t.used("log_samples", &Config::log_samples,
         "Write to samples.jsonl which rows of the data set each step trained, by rank and micro-batch.");
  t.used("report_to", &Config::report_to,
         "none, or tensorboard (all means the same): event files in logging_dir.")
      .one_of({"none", "all", "tensorboard", "wandb", "swanlab", "mlflow", "comet_ml", "trackio"});
  t.used("run_name", &Config::run_name, "Name of the run in logs; null is output_dir.");
  t.used("logging_dir", &Config::logging_dir,
         "Folder of TensorBoard files; null is output_dir/runs/DATE_HOST.");
  t.used("plot_loss", &Config::plot_loss, "Draw training_loss.svg and .png in output_dir.");
  t.used("gpu_hour_price", &Config::gpu_hour_price,
         "Price of one device for one hour: the summary tells the cost.")
      .at_least(0);
}

void add_saving(Table& t) {
  t.used("save_strategy", &Config::save_strategy, "When checkpoints are written.")
      .one_of({"steps", "epoch", "no", "best"})
      .refuse("best", "keeping the best checkpoint is not built; use steps or epoch");
  t.used("save_steps", &Config::save_steps, "Steps between checkpoints; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .above(0);
  t.used(
       "mtbf_hours", &Config::mtbf_hours,
       "Mean time between failures of the machines that the run uses. With it, and without save_steps, the "
       "steps between checkpoints follow from what a save and a step are measured to take, so that the time "
       "which saves and failures cost is least; the first checkpoint comes after ten steps.")
      .above(0);
  t.used("memory_checkpoint_steps", &Config::memory_checkpoint_steps,
         "Steps between checkpoints in the memory of the hosts, from which a run under launch/supervise goes "
         "on when it is started again: each host keeps what its ranks hold, twice, and as much of another "
         "host where there are several. 0: none. auto: they follow from mtbf_hours, as those between "
         "checkpoints on the disk do, and from what one of these is measured to take. Without "
         "launch/supervise none are kept.")
      .range(0, kMaxCount)
      .or_auto();
  t.used("save_total_limit", &Config::save_total_limit, "Keep only the newest checkpoints; null keeps all.")
      .at_least(1);
  t.used(
      "save_fallback_dir", &Config::save_fallback_dir,
      "Folder for checkpoints that output_dir does not take (full, over its quota, failing): a folder of the "
      "run's own is made in it, and a later start looks there, too.");
  t.used("max_failed_saves", &Config::max_failed_saves,
         "Saves that fail one behind the other and end the run, with exit code 78, after one more attempt. "
         "Until then it goes on, and tries again after a tenth of the steps between checkpoints.")
      .at_least(1);
  t.used("export_dtype", &Config::export_dtype,
         "Format of the final model's weights; null is bf16 with bf16: true, else fp32.")
      .one_of({"fp32", "bf16", "fp16"});
  t.used("export_size", &Config::export_size, "GB of a file of the final model at most.").above(0);
  t.used("load_best_model_at_end", &Config::load_best_model_at_end,
         "The final model is that of the checkpoint whose evaluation loss was the smallest, which "
         "save_total_limit does not remove. Checkpoints of steps that were not evaluated are not compared.");
  t.used(
       "save_async", &Config::save_async,
       "Write checkpoints beside the next steps, not between them: the state is copied to host memory, whose "
       "size is a checkpoint's divided by the ranks, and a thread of its own writes it and reads it back. "
       "auto: where the run saves before its end, and three quarters of the memory hold it with that copy.")
      .one_of({"auto", "true", "false"});
  t.used("eval_strategy", &Config::eval_strategy, "When the model is evaluated during the run.")
      .one_of({"no", "steps", "epoch"})
      .alias("evaluation_strategy");
  t.used("eval_steps", &Config::eval_steps, "Steps between evaluations; null is logging_steps.")
      .range(0, kMaxCount)
      .above(0);
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

}  // namespace octet::config
