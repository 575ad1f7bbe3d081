#include <algorithm>

#include "config/support.h"
#include "octet/base/files.h"
#include "octet/config/warnings.h"
#include "support/temporary_folder.h"

namespace octet::config::test::rules_test {
namespace {

TEST(Rules, KeysThatExcludeEachOtherAreNamedWithTheirPlaces) {
  const std::string message = refusal("mask_history: true\ntrain_on_prompt: true");
  EXPECT_SAYS(message, "mask_history (test.yaml:4)");
  EXPECT_SAYS(message, "train_on_prompt (test.yaml:5)");
  EXPECT_SAYS(refusal("val_size: 0.1\neval_dataset: e"), "exclude each other");
  EXPECT_SAYS(refusal("gradient_checkpointing: true\ndisable_gradient_checkpointing: true"),
              "exclude each other");
  EXPECT_SAYS(refusal("recompute: none\ngradient_checkpointing: true"), "exclude each other");
  EXPECT_SAYS(refusal("recompute: full\ndisable_gradient_checkpointing: true"), "exclude each other");
  EXPECT_SAYS(refusal("neat_packing: true\npacking: false"), "forbids");
  EXPECT_SAYS(refusal("overwrite_output_dir: true\nresume_from_checkpoint: true"), "exclude each other");
}

TEST(Rules, AFoundMicroBatchNeedsAStepOfAGivenSize) {
  EXPECT_SAYS(refusal("auto_find_batch_size: true"), "needs global_batch_size");
  EXPECT_SAYS(refusal("auto_find_batch_size: true\nglobal_batch_size: 8\ngradient_accumulation_steps: 2"),
              "exclude each other");
  EXPECT_SAYS(refusal("auto_find_batch_size: true\nglobal_batch_size: 8\ndeterministic: strict"),
              "exclude each other");
  const Config c = read("auto_find_batch_size: true\nglobal_batch_size: 24").config;
  EXPECT_EQ(possible_micro_batches(c, 2), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(possible_micro_batches(c, 24), (std::vector<std::int64_t>{1}));
  EXPECT_THROW(possible_micro_batches(c, 5), Error);
  EXPECT_EQ(
      read("gradient_accumulation_steps: auto\nglobal_batch_size: 24").config.gradient_accumulation_steps,
      std::nullopt)
      << "it follows from the step that is given";
}

TEST(Doubts, AreSaidForWhatOneWouldRarelyMean) {
  const auto said = [](const std::string& yaml, const std::string& part) {
    for (const std::string& doubt : doubts(read(yaml))) {
      if (says(doubt, part)) return true;
    }
    return false;
  };
  const std::string calm = "bf16: true\ntemplate: t\nmax_steps: 1000\nlogging_steps: 10\n";
  EXPECT_EQ(doubts(read(calm)), Strings{});
  EXPECT_TRUE(said(calm + "learning_rate: 0.001", "high for fine-tuning"));
  EXPECT_FALSE(said(calm + "learning_rate: 0.001\ntrain_from_scratch: true", "high for fine-tuning"));
  EXPECT_TRUE(said(calm + "learning_rate: 0", "nothing is learned"));
  EXPECT_TRUE(said(calm + "max_grad_norm: 0", "not clipped"));
  EXPECT_TRUE(said(calm + "warmup_steps: 501", "for more than half of the run"));
  EXPECT_FALSE(said(calm + "warmup_steps: 500", "half of the run"));
  EXPECT_TRUE(said(calm + "warmup_ratio: 0.6", "for more than half of the run"));
  EXPECT_TRUE(said(calm + "num_train_epochs: 2", "num_train_epochs is not read: max_steps"));
  EXPECT_TRUE(said(calm + "val_size: 0.1", "never evaluated"));
  EXPECT_TRUE(said(calm + "save_steps: 2000", "the only checkpoint"));
  EXPECT_TRUE(said(calm + "save_steps: 10", "save_total_limit"));
  EXPECT_TRUE(said(calm + "fp8: true\nfp8_amax_history_len: 1", "fp8_amax_history_len"));
  EXPECT_TRUE(said("template: t", "computes in fp32"));
  const std::string lora = calm + "finetuning_type: lora\nlearning_rate: 2e-4\n";
  EXPECT_EQ(doubts(read(lora)), Strings{});
  EXPECT_TRUE(said(calm + "finetuning_type: lora\nlearning_rate: 4e-5", "adapters need about ten times"));
  EXPECT_FALSE(said(calm + "learning_rate: 4e-5", "adapters"));
  EXPECT_TRUE(said(lora + "lora_alpha: 0", "lora_alpha is 0"));
  EXPECT_TRUE(said(lora + "lora_target: q_proj,v_proj", "only modules of attention"));
  EXPECT_TRUE(said(lora + "lora_target: self_attn.o_proj", "only modules of attention"));
  EXPECT_FALSE(said(lora + "lora_target: q_proj,up_proj", "only modules of attention"));
  EXPECT_FALSE(said(lora + "lora_target: q_proj\nadapter_name_or_path: a", "only modules of attention"))
      << "the adapter says where it is";
  EXPECT_TRUE(said(lora + "global_batch_size: 512", "trains 512 samples"));
  EXPECT_TRUE(
      said(lora + "per_device_train_batch_size: 64\ngradient_accumulation_steps: 8", "trains 512 samples"));
  EXPECT_FALSE(said(lora + "global_batch_size: 256", "samples"));
  EXPECT_FALSE(said(calm + "global_batch_size: 512", "samples"));
  EXPECT_TRUE(said(calm + "gpu_transport: host", "slowest way between GPUs"));
  EXPECT_FALSE(said(calm + "gpu_transport: nccl", "gpu_transport"));
}

// Each doubt is one warning with its place, its harm and what to do. The row's last line has the place.
TEST(Doubts, AreOneLineEachWithPlaceHarmAndFix) {
  const std::string calm = "bf16: true\ntemplate: t\nmax_steps: 1000\nlogging_steps: 10\n";
  const std::string lora = calm + "finetuning_type: lora\nlearning_rate: 2e-4\n";
  const std::string plateau =
      calm + "val_size: 0.1\neval_strategy: steps\neval_steps: 50\nlr_scheduler_type: reduce_lr_on_plateau\n";
  const std::pair<std::string, const char*> rows[] = {
      {calm, "learning_rate: 0"},
      {calm, "learning_rate: 0.001"},
      {calm, "max_grad_norm: 0"},
      {calm, "num_train_epochs: 2"},
      {calm, "warmup_steps: 501"},
      {calm, "warmup_ratio: 0.6"},
      {calm + "warmup_steps: 20\n", "warmup_ratio: 0.1"},
      {"bf16: true\ntemplate: t\n", "num_train_epochs: 21"},
      {lora, "lora_alpha: 0"},
      {lora, "lora_target: q_proj,v_proj"},
      {lora, "global_batch_size: 512"},
      {calm + "finetuning_type: lora\n", "learning_rate: 4e-5"},
      {plateau, "lr_scheduler_kwargs: {mode: max}"},
      {plateau, "lr_scheduler_kwargs: {min_lr: 1}"},
      {plateau, "lr_scheduler_kwargs: {patience: 30}"},
      {"template: t\n", "bf16: false"},
      {calm + "device: cpu\n", "fp8: true"},
      {calm + "fp8: true\n", "fp8_amax_history_len: 1"},
      {calm, "deterministic: true"},
      {calm, "cutoff_len: 63"},
      {calm, "val_size: 0.1"},
      {calm, "eval_dataset: e"},
      {calm, "disable_shuffling: true"},
      {calm, "save_strategy: 'no'"},
      {calm, "mtbf_hours: 3"},
      {calm, "save_steps: 2000"},
      {calm, "save_steps: 10"},
      {"bf16: true\ntemplate: t\nmax_steps: 1000\n", "logging_steps: 2000"},
      {"bf16: true\ntemplate: t\nsave_steps: 20\n", "max_steps: 30"},
      {calm + "zero_stage: 3\n", "overlap_comm: false"},
      {calm + "cutoff_len: 512\n", "per_device_train_batch_size: 1"},
      {calm, "gpu_transport: host"},
      {calm + "save_strategy: epoch\n", "save_steps: 9"},
      {calm + "val_size: 0.1\neval_strategy: epoch\n", "eval_steps: 9"},
      {calm, "eval_steps: 9"},
      {calm + "fp8: true\n", "fp8_backend: torchao"},
  };
  for (const auto& [yaml, line] : rows) {
    const Resolved resolved = read(yaml + line);
    const std::string key = std::string(line).substr(0, std::string(line).find(':'));
    const std::string place = resolved.origins.at(key).where + ": ";
    EXPECT_TRUE(place.starts_with("test.yaml:")) << place;
    const Strings all = doubts(resolved);
    ASSERT_EQ(all.size(), 1u) << line;
    EXPECT_TRUE(all[0].starts_with(place)) << line << "\n" << all[0];
    const std::size_t fix = all[0].find("; to do: ");
    ASSERT_NE(fix, std::string::npos) << all[0];
    EXPECT_EQ(all[0].find("to do: ", fix + 10), std::string::npos) << all[0];
    EXPECT_EQ(all[0].find('\n'), std::string::npos);
    for (const std::string& note : resolved.notes)
      EXPECT_EQ(note.find(place.substr(0, place.size() - 2)), std::string::npos) << "said twice: " << note;
  }
  for (const char* off : {"eval_strategy: 'no'\neval_steps: 9", "save_strategy: steps\nsave_steps: 90"})
    EXPECT_EQ(doubts(read(calm + off)), Strings{}) << off;
  for (const char* open : {"template: t\nlogging_steps: 10\n", "bf16: true\nlogging_steps: 10\n"}) {
    const Strings all = doubts(read(open));
    ASSERT_EQ(all.size(), 1u) << open;
    EXPECT_TRUE(all[0].starts_with("test.yaml: ")) << "nobody set it: " << all[0];
  }
}

// What is refused comes with what to do, and not with a reason alone.
TEST(EvaluationRules, TheBestModelHasAFigureOfItsRun) {
  const std::string evaluates = "eval_strategy: steps\nval_size: 0.1\nsave_strategy: best\n";
  const std::string several = refusal(evaluates + "early_stopping_steps: 2\nmetric_for_best_model: bleu");
  EXPECT_EQ(several.find(", or "), std::string::npos) << "another key would still read it: " << several;
  EXPECT_SAYS(refusal(evaluates + "metric_for_best_model: bleu"), ", or set save_strategy: steps");
  const auto warned = [&](const std::string& keys) { return read(evaluates + keys).warnings; };
  EXPECT_TRUE(
      warned("compute_accuracy: true\nmetric_for_best_model: accuracy\ngreater_is_better: true").empty());
  const Strings worst =
      warned("compute_accuracy: true\nmetric_for_best_model: accuracy\ngreater_is_better: false");
  ASSERT_EQ(worst.size(), 1u);
  EXPECT_SAYS(worst.front(), "takes the model with the smallest accuracy as the best");
}

TEST(Refusals, OfOtherTrainersKeysSayWhatToDo) {
  const char* const does[] = {"remove ", "use ", "write ", "change ", "cut ", "set ", "keep "};
  const std::string axolotl = "base_model: m\ndatasets: [{path: d, type: chat_template}]\noutput_dir: o\n";
  const std::string verl = "model: {partial_pretrain: m}\ndata: {train_files: d}\n";
  const std::pair<std::string, const char*> rows[] = {
      {axolotl, "sequence_parallel_degree: 2"},
      {axolotl, "tensor_parallel_size: 2"},
      {axolotl, "batch_size: 8"},
      {axolotl, "load_in_8bit: true"},
      {axolotl, "trl: {beta: 0.1}"},
      {axolotl, "float32: true"},
      {axolotl, "tokens: [a]"},
      {axolotl, "model_config: {a: 1}"},
      {axolotl, "dataset_shard_num: 3"},
      {axolotl, "trainer_cls: a.b"},
      {axolotl, "gpu_memory_limit: 10"},
      {verl, "ulysses_sequence_parallel_size: 2"},
      {verl, "trainer: {default_hdfs_dir: d}"},
      {"", "use_galore: true"},
      {"", "fp16: true"},
      {"", "use_asft_loss: true"},
      {"", "deepspeed: {sparse_gradients: true}"},
      {"", "deepspeed: {amp: {enabled: true}}"},
      {"", "deepspeed: {tensor_parallel: {autotp_size: 2}}"},
      {"", "deepspeed: {compression_training: {a: 1}}"},
      {"", "deepspeed: {zero_optimization: {offload_param: {device: cpu}}}"},
      {"", "deepspeed: {zero_optimization: {zero_quantized_gradients: true}}"},
  };
  for (const auto& [file, line] : rows) {
    const std::string ours = file.empty() ? "model_name_or_path: m\ndataset: d\noutput_dir: o\n" : file;
    try {
      config::load_text(ours + line, "test.yaml", {}, {.for_training = true, .environment = {}});
      ADD_FAILURE() << line;
    } catch (const Error& e) {
      const std::string fix = e.problem().fix;
      EXPECT_TRUE(std::ranges::any_of(does, [&](const char* verb) { return fix.starts_with(verb); }) ||
                  fix.ends_with("remove it"))
          << line << "\n"
          << e.what();
    }
  }
}

// A doubt names the word of another trainer, next to which our key would be given twice.
TEST(Doubts, NameTheWordsOfOtherTrainers) {
  const Resolved verl = config::load_text(
      "model: {partial_pretrain: m}\ndata: {train_files: d}\ntrainer:\n  save_freq: -1\n  test_freq: "
      "-1\noutput_dir: "
      "o\n",
      "test.yaml", {}, {.for_training = true, .environment = {}});
  const Strings all = doubts(verl);
  const auto saves = std::ranges::find_if(all, [](const std::string& d) { return says(d, "save_strategy"); });
  ASSERT_NE(saves, all.end());
  EXPECT_EQ(
      *saves,
      "test.yaml:4 (trainer.save_freq): save_strategy is no: a run that ends early cannot resume; to do: "
      "set save_strategy: steps in place of trainer.save_freq");
}

TEST(Doubts, OfEvaluationNameAFileThatIsTrained) {
  const octet::test::TemporaryFolder folder("trained");
  write_file_atomically(folder / "a.jsonl", "{}\n");
  const std::string calm = "bf16: true\ntemplate: t\nlogging_steps: 10\neval_strategy: steps\n";
  const std::string a = folder / "a.jsonl";
  const std::tuple<std::string, std::string, bool> rows[] = {
      {a, a, true},
      {"b.jsonl," + a, a, true},
      {a, "b.jsonl," + a, true},
      {a, folder / "b.jsonl", false},
      {folder.path(), folder.path(), false},  // a folder has several splits
      {"named", "named", false},
  };
  for (const auto& [trained, evaluated, doubtful] : rows) {
    const Resolved resolved = config::load_text("model_name_or_path: m\noutput_dir: o\ndataset: " + trained +
                                                    "\neval_dataset: " + evaluated + "\n" + calm,
                                                "test.yaml", {}, {.for_training = true, .environment = {}});
    const Strings all = doubts(resolved);
    EXPECT_EQ(all.size(), doubtful ? 1u : 0u) << trained << " " << evaluated;
    for (const std::string& doubt : all)
      EXPECT_SAYS(doubt, "test.yaml:4: eval_dataset names '" + a + "', which is trained");
  }
}

TEST(Derive, Bf16IsComputedInWithEitherKey) {
  for (const auto& [yaml, bf16] : {std::pair("bf16: true", true),
                                   {"pure_bf16: true", true},
                                   {"bf16: false\npure_bf16: true", true},
                                   {"bf16: false", false},
                                   {"fp8: true", false},
                                   {"fp8: true\nbf16: true", true}})
    EXPECT_EQ(computes_in_bf16(read(yaml).config), bf16) << yaml;
}

TEST(Rules, WhatIsForConversationsNeedsSft) {
  for (const char* key : {"neat_packing", "mask_history", "train_on_prompt"}) {
    EXPECT_SAYS(refusal(std::string("stage: pt\n") + key + ": true"), "stage: sft");
  }
}

TEST(Rules, PackingFollowsTheStage) {
  EXPECT_FALSE(read("stage: sft").config.packing);
  EXPECT_TRUE(read("stage: pt").config.packing);
  EXPECT_FALSE(read("stage: pt\npacking: false").config.packing);
  EXPECT_TRUE(read("neat_packing: true").config.packing);
}

TEST(Rules, EvaluationNeedsSomethingToEvaluate) {
  EXPECT_SAYS(refusal("eval_strategy: steps"), "nothing to evaluate");
  EXPECT_NO_THROW(read("eval_strategy: steps\nval_size: 100"));
  EXPECT_NO_THROW(read("evaluation_strategy: epoch\neval_dataset: e"));
}

TEST(Rules, KeysThatStandForOthersMustNotContradictThem) {
  EXPECT_EQ(read("use_cpu: true").config.device, "cpu");
  EXPECT_EQ(read("use_cpu: true\ndevice: auto").config.device, "cpu");
  EXPECT_EQ(read("use_cpu: true\ndevice: cpu").config.device, "cpu");
  const std::string message = refusal("use_cpu: true\ndevice: cuda");
  EXPECT_SAYS(message, "'use_cpu: true' and 'device: cuda' exclude each other");
  EXPECT_SAYS(message, "device (test.yaml:5)");
  EXPECT_EQ(read("full_determinism: true").config.deterministic, "true");
  EXPECT_EQ(read("full_determinism: true\ndeterministic: strict").config.deterministic, "strict");
  EXPECT_SAYS(refusal("full_determinism: true\ndeterministic: false"), "exclude each other");
  EXPECT_EQ(read("optim: paged_adamw_8bit").config.optim_dtype, "int8");
  EXPECT_EQ(read("optim: paged_adamw_32bit").config.optim_dtype, "auto");
  EXPECT_SAYS(refusal("optim: adamw_8bit\noptim_dtype: fp32"), "exclude each other");
  EXPECT_SAYS(read("use_cpu: true").origins.at("device").where, "use_cpu");
}

TEST(Rules, OffloadingChangesNothingOnACpu) {
  EXPECT_TRUE(notes(read("optim_state_cpu_offload: true"), "an effect only on GPUs"));
  EXPECT_TRUE(notes(read("optim_state_cpu_offload: true\ndevice: cpu"), "changes nothing on a CPU"));
  const Resolved gpu = read("optim_state_cpu_offload: true\ndevice: cuda");
  EXPECT_TRUE(gpu.config.optim_state_cpu_offload);
  EXPECT_FALSE(notes(gpu, "optim_state_cpu_offload"));
  // A run may resume with another value of this key.
  EXPECT_EQ(resume_hash(gpu.config), resume_hash(read("device: cuda").config));
}

TEST(Rules, PureBf16StandsForThreeKeysOfWhichTheGivenOnesWin) {
  const Resolved r = read("pure_bf16: true");
  EXPECT_EQ(r.config.param_dtype + r.config.grad_dtype + r.config.optim_dtype, "bf16bf16bf16");
  EXPECT_SAYS(r.origins.at("optim_dtype").where, "pure_bf16");
  const Resolved mixed = read("pure_bf16: true\noptim_dtype: int8\ngrad_dtype: fp32");
  EXPECT_EQ(mixed.config.param_dtype + mixed.config.grad_dtype + mixed.config.optim_dtype, "bf16fp32int8");
  EXPECT_SAYS(refusal("pure_bf16: true\nparam_dtype: fp32"), "forbids it");
}

TEST(Rules, FormatsThatDoNotGoTogetherAreRefused) {
  EXPECT_SAYS(refusal("param_dtype: bf16"), "needs 'bf16: true'");
  EXPECT_SAYS(refusal("param_dtype: bf16\nfp8: true"), "needs 'bf16: true'");
  EXPECT_SAYS(refusal("grad_dtype: bf16\nbf16: true"), "needs 'param_dtype: bf16'");
  EXPECT_EQ(read("param_dtype: bf16\nbf16: true\nfp8: true").config.param_dtype, "bf16");
  EXPECT_EQ(read("optim_dtype: int8").config.optim_dtype, "int8");
}

TEST(Rules, SchedulesTakeOnlyTheirOwnArguments) {
  const Config c = read("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6}").config;
  EXPECT_EQ(std::get<double>(c.lr_scheduler_kwargs.at("min_lr")), 1e-6);
  EXPECT_SAYS(refusal("lr_scheduler_type: cosine_with_min_lr"), "needs one of");
  EXPECT_SAYS(
      refusal("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1, min_lr_rate: 1}"),
      "both");
  EXPECT_SAYS(refusal("lr_scheduler_kwargs: {min_lr: 1}"), "unknown argument 'min_lr' of 'linear'");
  EXPECT_SAYS(refusal("lr_scheduler_kwargs: {min_lr:1}"), "'min_lr:1' without a value");
  EXPECT_SAYS(refusal("lr_scheduler_kwargs: {min_lr:1}"), "write a blank after the colon");
  EXPECT_SAYS(refusal("lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {powr: 1}"),
              "did you mean 'power'?");
  EXPECT_SAYS(refusal("lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {power: x}"), "number");
  EXPECT_NO_THROW(read("lr_scheduler_type: warmup_stable_decay"));
  const std::string ahead = "lr_scheduler_type: cosine_warmup_with_min_lr\nlr_scheduler_kwargs: ";
  EXPECT_NO_THROW(read(ahead + "{min_lr_rate: 0.1, warmup_lr_rate: 0.2, num_cycles: 1}"));
  EXPECT_SAYS(refusal(ahead + "{warmup_lr_rate: 0.2}"), "needs one of min_lr and min_lr_rate");
  EXPECT_SAYS(refusal(ahead + "{min_lr_rate: 0.1, lr_end: 1}"), "unknown argument 'lr_end'");
  EXPECT_SAYS(refusal("lr_scheduler_type: deepspeed_warmup\nlr_scheduler_kwargs: {warmup_type: cosine}"),
              "log, linear");
  EXPECT_SAYS(refusal("lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {warmup_type: log}"),
              "linear, cosine, 1-sqrt");
  EXPECT_NO_THROW(
      read("lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 5, decay_type: "
           "linear}"));
  const std::string plateau =
      "val_size: 2\neval_strategy: epoch\nlr_scheduler_type: reduce_lr_on_plateau\nlr_scheduler_kwargs: ";
  EXPECT_NO_THROW(
      read(plateau +
           "{mode: max, factor: 0.5, patience: 3, threshold: 1e-3, threshold_mode: abs, cooldown: 1, "
           "min_lr: 1e-6, eps: 0}"));
  EXPECT_SAYS(refusal(plateau + "{factor: 1}"), "at least 0 and below 1");
  EXPECT_SAYS(refusal(plateau + "{patience: 1.5}"), "a whole number");
  EXPECT_SAYS(refusal(plateau + "{cooldown: 1.5}"), "a whole number");
  EXPECT_SAYS(refusal(plateau + "{mode: least}"), "min, max");
  EXPECT_SAYS(refusal(plateau + "{threshold_mode: 3}"), "rel, abs");
  EXPECT_SAYS(refusal(plateau + "{patient: 3}"), "did you mean 'patience'?");
  EXPECT_SAYS(refusal("lr_scheduler_kwargs: 3"), "map");
  EXPECT_SAYS(refusal("lr_scheduler_kwargs: {power: {a: 1}}"), "power");
}

TEST(Rules, ARateThatFollowsEvaluationsNeedsThem) {
  const std::string plateau = "lr_scheduler_type: reduce_lr_on_plateau\n";
  EXPECT_SAYS(refusal(plateau), "with eval_dataset or val_size");
  const std::string held_out = refusal(plateau + "val_size: 2");
  EXPECT_SAYS(held_out, "'lr_scheduler_type: reduce_lr_on_plateau' needs evaluations");
  EXPECT_EQ(held_out.find("val_size"), std::string::npos) << held_out;
  const std::string evaluates = plateau + "val_size: 2\neval_strategy: steps\n";
  EXPECT_SAYS(refusal(evaluates + "metric_for_best_model: rougeL"), "the learning rate cannot follow");
  EXPECT_NO_THROW(read(evaluates + "metric_for_best_model: loss\ngreater_is_better: false"));
  EXPECT_TRUE(notes(read(evaluates + "warmup_ratio: 0.1"), "has no warm-up"));
  EXPECT_TRUE(notes(read(evaluates + "warmup_steps: 9\nmax_steps: 3"), "warmup_steps"));
  EXPECT_FALSE(notes(read(evaluates + "warmup_steps: 9\nmax_steps: 3"), "before its warm-up"));
  EXPECT_FALSE(notes(read(evaluates), "has no warm-up"));
}

TEST(Rules, WhatIsEvaluatedDecidesTheNumbersOfARateThatFollowsIt) {
  const std::string held_out = "val_size: 2\neval_strategy: steps\neval_steps: ";
  const std::string plateau = "lr_scheduler_type: reduce_lr_on_plateau\n" + held_out;
  const auto of = [](const std::string& yaml) { return read(yaml).config; };
  EXPECT_EQ(resume_differences(of(plateau + "5"), of(plateau + "7")), Strings{"eval_steps: 5 -> 7"});
  EXPECT_NE(resume_hash(of(plateau + "5")), resume_hash(of(plateau + "7")));
  EXPECT_EQ(resume_differences(of(held_out + "5"), of(held_out + "7")), Strings{});
  EXPECT_EQ(resume_hash(of(held_out + "5")), resume_hash(of(held_out + "7")));
}

TEST(Rules, AnArgumentOfTheScheduleCanBeOverriddenAlone) {
  const std::string yaml = "lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {power: 2, lr_end: 1e-6}";
  const Config c = read(yaml, {"lr_scheduler_kwargs.power=3"}).config;
  EXPECT_EQ(std::get<double>(c.lr_scheduler_kwargs.at("power")), 3);
  EXPECT_EQ(std::get<double>(c.lr_scheduler_kwargs.at("lr_end")), 1e-6);
}

TEST(Rules, ForeignReportersAreNotedAndDropped) {
  const Resolved r = read("report_to: [wandb, tensorboard]");
  EXPECT_EQ(r.config.report_to, Strings{"tensorboard"});
  EXPECT_TRUE(notes(r, "wandb"));
  EXPECT_TRUE(read("report_to: all").config.tensorboard());
  EXPECT_EQ(read("report_to: wandb").config.report_to, Strings{"none"});
}

TEST(Rules, AWarmUpLongerThanTheRunIsSaid) {
  EXPECT_TRUE(notes(read("max_steps: 10\nwarmup_steps: 100"), "ends before its warm-up"));
}

TEST(Rules, WhatARecipeDoesNotReadIsSaid) {
  EXPECT_TRUE(notes(read("bf16: true\nfp8: true\nfp8_recipe: block\nfp8_transposed_weights: at_use"),
                    "is not read with fp8_recipe: block"));
  const std::string fast = "bf16: true\nfp8_fast_accumulation: all\n";
  EXPECT_TRUE(notes(read(fast + "fp8: true\nfp8_recipe: block"), "is not read with fp8_recipe: block"));
  EXPECT_TRUE(notes(read(fast), "is read only with fp8: true"));
  EXPECT_FALSE(notes(read(fast + "fp8: true"), "fp8_fast_accumulation"));
}

TEST(Derive, TheAccumulationFollowsFromTheGlobalBatch) {
  Config c = read("per_device_train_batch_size: 2\nglobal_batch_size: 64").config;
  EXPECT_EQ(resolve_batch(c, 8).accumulation, 4);
  EXPECT_EQ(resolve_batch(c, 1).accumulation, 32);
  EXPECT_EQ(resolve_batch(c, 32).global, 64);
  c.global_batch_size.reset();
  EXPECT_EQ(resolve_batch(c, 8).global, 16);
  c.gradient_accumulation_steps = 3;
  EXPECT_EQ(resolve_batch(c, 8).global, 48);
  c.global_batch_size = 48;
  EXPECT_EQ(resolve_batch(c, 8).accumulation, 3);
}

TEST(Derive, AStepRunsNoMoreMicroBatchesThanAnEpochFills) {
  struct Row {
    std::int64_t micro, accumulation, world, samples, passes;
  };
  for (const Row& row : {Row{1, 4, 1, 100, 4},
                         {1, 1048576, 1, 2, 2},
                         {1, 1048576, 2, 3, 2},
                         {4, 1048576, 1, 5, 2},
                         {4, 8, 2, 64, 8},
                         {4, 8, 2, 57, 8},
                         {4, 8, 2, 56, 7},
                         {2, 3, 8, 1, 1},
                         {2, 3, 1, 0, 1}}) {
    SCOPED_TRACE(row.samples);
    Config c;
    c.per_device_train_batch_size = row.micro;
    c.gradient_accumulation_steps = row.accumulation;
    const Batch asked = resolve_batch(c, row.world), run = within_epoch(asked, row.samples);
    EXPECT_EQ(asked.passes, row.accumulation);
    EXPECT_EQ(run.passes, row.passes);
    EXPECT_EQ(run.accumulation, row.accumulation) << "the order of the samples stays";
    EXPECT_EQ(run.global, row.micro * row.accumulation * row.world);
  }
}

TEST(Derive, ABatchThatDoesNotDivideNamesNumbersThatDo) {
  const auto message = [](const std::string& yaml, std::int64_t world) -> std::string {
    try {
      resolve_batch(read(yaml).config, world);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const std::string text = message("per_device_train_batch_size: 5\nglobal_batch_size: 64", 4);
  EXPECT_SAYS(text, "a multiple of 20");
  EXPECT_SAYS(text, "per_device_train_batch_size: 4 or 8");
  EXPECT_SAYS(text, "global_batch_size: 60 or 80");
  EXPECT_SAYS(message("per_device_train_batch_size: 3\nglobal_batch_size: 28", 4),
              "per_device_train_batch_size: 1 or 7");
  EXPECT_SAYS(message("per_device_train_batch_size: 8\nglobal_batch_size: 4", 3), "global_batch_size: 24");
  EXPECT_SAYS(
      message("per_device_train_batch_size: 1\nglobal_batch_size: 8\ngradient_accumulation_steps: 3", 4),
      "gradient_accumulation_steps 2");
}

TEST(Rules, AnAutomaticMicroBatchIsAutoFindBatchSize) {
  for (const std::string yaml :
       {"per_device_train_batch_size: auto\nglobal_batch_size: 32",
        "per_device_train_batch_size: AUTO\ngradient_accumulation_steps: auto",
        "auto_find_batch_size: true\nper_device_train_batch_size: auto\nglobal_batch_size: 32"}) {
    const Resolved resolved = read(yaml);
    EXPECT_TRUE(resolved.config.auto_find_batch_size) << yaml;
    EXPECT_EQ(resolved.config.per_device_train_batch_size, Config().per_device_train_batch_size) << yaml;
    const Resolved again = load_text(resolved.to_yaml(), "resolved.yaml", {}, quiet());
    EXPECT_TRUE(again.config.auto_find_batch_size) << yaml;
  }
  EXPECT_EQ(read("per_device_eval_batch_size: auto").config.per_device_eval_batch_size, std::nullopt);
  EXPECT_SAYS(refusal("per_device_train_batch_size: auto"),
              "'per_device_train_batch_size' (auto_find_batch_size: true) needs global_batch_size");
  EXPECT_SAYS(refusal("per_device_train_batch_size: auto\nauto_find_batch_size: false\nglobal_batch_size: 8"),
              "exclude each other");
  EXPECT_SAYS(
      refusal("per_device_train_batch_size: auto\nglobal_batch_size: 8\nfp8: true\nfp8_recipe: current\n"
              "bf16: true\ndeterministic: strict"),
      "per_device_train_batch_size");
}

TEST(Derive, SharesBecomeSteps) {
  Config c = read("warmup_ratio: 0.03").config;
  EXPECT_EQ(warmup_steps(c, 101), 4);
  c = read("warmup_steps: 0.1").config;
  EXPECT_EQ(warmup_steps(c, 100), 10);
  c = read("warmup_steps: 7\nwarmup_ratio: 0.5").config;
  EXPECT_EQ(warmup_steps(c, 100), 7);
  c = read("warmup_steps: 0.2\nwarmup_ratio: 0.5").config;
  EXPECT_EQ(warmup_steps(c, 100), 20) << "a share given as warmup_steps wins as well";
  EXPECT_EQ(interval_steps(0.05, 10), 1);
  EXPECT_EQ(interval_steps(25, 10), 25);
}

TEST(Derive, ThePartialGroupAtTheEndOfAnEpochSteps) {
  EXPECT_EQ(steps_per_epoch(10, 4), 3);
  EXPECT_EQ(steps_per_epoch(8, 4), 2);
  EXPECT_EQ(steps_per_epoch(0, 4), 1);
  EXPECT_EQ(total_steps(read("num_train_epochs: 1.5").config, 3), 5);
  EXPECT_EQ(total_steps(read("max_steps: 2").config, 3), 2);
  EXPECT_EQ(total_steps(read("max_steps: 1\nnum_train_epochs: 5").config, 3), 1);
  Config none = read("num_train_epochs: 1.5").config;
  none.max_steps = 0;
  EXPECT_EQ(total_steps(none, 3), 5);
  EXPECT_THROW(total_steps(read("num_train_epochs: 1e300").config, 3), Error);
}

}  // namespace
}  // namespace octet::config::test::rules_test
