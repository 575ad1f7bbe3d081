// Common user errors, one row each: the message with its location and fix, and the exit code. Nothing is
// written (wrong_messages_test.cc). The fix is tested as well (wrong_mends_test.cc). Errors that depend on
// several ranks are in wrong_input_test.cc.
#pragma once

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>

#include "cli/task.h"

namespace octet::test::wrong_inputs {

namespace fs = std::filesystem;

// Placeholders in all texts: {} is the folder of the test, BASE a valid configuration of ten lines, and
// TRAINER the program.
struct Wrong {
  std::string_view name, arguments;
  std::string_view file, contents;  ///< a file to write first; empty: none
  int code;
  std::string_view what;   ///< the message's first line
  std::string_view found;  ///< required parts of its other lines; empty: no such line
  std::string_view where;
  std::string_view fix;
};

using namespace std::string_view_literals;  // for strings with arbitrary bytes

// clang-format off
inline constexpr Wrong kInputs[] = {
      {"typo_of_a_key", "{}/typo_of_a_key.yaml", "typo_of_a_key.yaml", "BASElerning_rate: 1e-4\n", 64, "unknown key 'lerning_rate'", "", "{}/typo_of_a_key.yaml:11", "did you mean 'learning_rate'?"},
      {"a_key_twice", "{}/a_key_twice.yaml", "a_key_twice.yaml", "BASEmax_steps: 3\n", 64, "key 'max_steps' occurs twice", "first in line 8, again in line 11", "{}/a_key_twice.yaml:11", "keep one of the two"},
      {"a_tab", "{}/a_tab.yaml", "a_tab.yaml", "BASE\tseed: 3\n", 64, "not valid YAML", "illegal tab when looking for indentation", "{}/a_tab.yaml:11", "correct the line"},
      {"a_list", "{}/a_list.yaml", "a_list.yaml", "- seed: 3\n", 64, "a configuration is a map of keys to values", "a list of 1", "{}/a_list.yaml", "write one 'key: value' per line"},
      {"torn_yaml", "{}/torn_yaml.yaml", "torn_yaml.yaml", "dataset: [a, b\n", 64, "not valid YAML", "end of sequence flow not found", "{}/torn_yaml.yaml:2", "correct the line"},
      {"two_documents", "{}/two_documents.yaml", "two_documents.yaml", "seed: 3\n---\nseed: 4\n", 64, "the file holds several YAML documents", "", "{}/two_documents.yaml", "remove '---' between them"},
      {"a_tag", "{}/a_tag.yaml", "a_tag.yaml", "seed: !!python/object:os.system 3\n", 64, "YAML tags are not supported", "tag:yaml.org,2002:python/object:os.system", "{}/a_tag.yaml:1", "write the plain value"},
      {"no_utf8", "{}/no_utf8.yaml", "no_utf8.yaml", "run_name: \377\376\012"sv, 64, "this is not a text file in UTF-8", "a binary file, or another encoding", "{}/no_utf8.yaml", "save the file as UTF-8 text"},
      {"torn_json", "{}/torn_json.json", "torn_json.json", "{\"seed\": 3,", 64, "not valid JSON", "unexpected end of input", "{}/torn_json.json", "correct it there: a comma, a quote or a bracket"},
      {"rate_in_words", "{}/rate_in_words.yaml", "rate_in_words.yaml", "BASElearning_rate: fast\n", 64, "value of 'learning_rate' cannot be used", "'fast'", "{}/rate_in_words.yaml:11", "give such a value; 'trainer --help learning_rate' says more"},
      {"rate_not_a_number", "{}/rate_not_a_number.yaml", "rate_not_a_number.yaml", "BASElearning_rate: .nan\n", 64, "value of 'learning_rate' cannot be used", "'.nan'", "{}/rate_not_a_number.yaml:11", "give such a value; 'trainer --help learning_rate' says more"},
      {"rate_infinite", "{}/rate_infinite.yaml", "rate_infinite.yaml", "BASElearning_rate: .inf\n", 64, "value of 'learning_rate' cannot be used", "'.inf'", "{}/rate_infinite.yaml:11", "give such a value; 'trainer --help learning_rate' says more"},
      {"rate_negative", "{}/rate_negative.yaml", "rate_negative.yaml", "BASElearning_rate: -1e-4\n", 64, "value of 'learning_rate' cannot be used", "'-1e-4'", "{}/rate_negative.yaml:11", "give such a value; 'trainer --help learning_rate' says more"},
      {"octal", "{}/octal.yaml", "octal.yaml", "BASEseed: 010\n", 64, "value of 'seed' cannot be used", "'010'", "{}/octal.yaml:11", "leave out the leading zero: YAML reads such numbers as octal"},
      {"sexagesimal", "{}/sexagesimal.yaml", "sexagesimal.yaml", "BASElogging_steps: 1:30\n", 64, "value of 'logging_steps' cannot be used", "'1:30'", "{}/sexagesimal.yaml:11", "give such a value; 'trainer --help logging_steps' says more"},
      {"half_a_step", "{}/base.yaml per_device_train_batch_size=2.5", "", "", 64, "value of 'per_device_train_batch_size' cannot be used", "'2.5'", "command line", "give such a value; 'trainer --help per_device_train_batch_size' says more"},
      {"a_word_for_a_flag", "{}/a_word_for_a_flag.yaml", "a_word_for_a_flag.yaml", "BASEbf16: perhaps\n", 64, "value of 'bf16' cannot be used", "'perhaps'", "{}/a_word_for_a_flag.yaml:11", "give such a value; 'trainer --help bf16' says more"},
      {"a_list_for_a_number", "{}/a_list_for_a_number.yaml", "a_list_for_a_number.yaml", "BASEseed: [3, 4]\n", 64, "value of 'seed' cannot be used", "a list of 2", "{}/a_list_for_a_number.yaml:11", "give such a value; 'trainer --help seed' says more"},
      {"a_map_for_a_word", "{}/a_map_for_a_word.yaml", "a_map_for_a_word.yaml", "BASErun_name: {a: b}\n", 64, "value of 'run_name' cannot be used", "a map of 1 keys", "{}/a_map_for_a_word.yaml:11", "give such a value; 'trainer --help run_name' says more"},
      {"too_large", "{}/too_large.yaml", "too_large.yaml", "BASElogging_steps: 1e30\n", 64, "value of 'logging_steps' cannot be used", "'1e30'", "{}/too_large.yaml:11", "give such a value; 'trainer --help logging_steps' says more"},
      {"cutoff_of_one", "{}/base.yaml cutoff_len=1", "", "", 64, "value of 'cutoff_len' cannot be used", "'1'", "command line", "give such a value; 'trainer --help cutoff_len' says more"},
      {"stage_ppo", "{}/stage_ppo.yaml", "stage_ppo.yaml", "BASEstage: ppo\n", 64, "'stage: ppo' is not supported", "", "{}/stage_ppo.yaml:11", "use pt (pre-training), sft (supervised fine-tuning), kd (distillation), dpo (preferences between two answers), kto (judged answers) or rm (a reward model)"},
      {"tokens_and_pairs", "{}/tokens_and_pairs.yaml", "tokens_and_pairs.yaml", "BASEstage: dpo\nuse_dft_loss: true\n", 64, "'use_dft_loss' is for the loss of tokens, but stage: dpo has the loss of pairs", "", "use_dft_loss ({}/tokens_and_pairs.yaml:12), stage ({}/tokens_and_pairs.yaml:11)", "remove use_dft_loss, or set stage: sft"},
      {"two_token_losses", "{}/two_token_losses.yaml", "two_token_losses.yaml", "BASEuse_dft_loss: true\nuse_eaft_loss: true\n", 64, "use_dft_loss and use_eaft_loss exclude each other", "", "use_dft_loss ({}/two_token_losses.yaml:11), use_eaft_loss ({}/two_token_losses.yaml:12)", "remove one of the two"},
      {"smoothing_of_hinge", "{}/smoothing_of_hinge.yaml", "smoothing_of_hinge.yaml", "BASEstage: dpo\npref_loss: hinge\ndpo_label_smoothing: 0.1\n", 64, "'dpo_label_smoothing' needs 'pref_loss: sigmoid'", "pref_loss: hinge", "dpo_label_smoothing ({}/smoothing_of_hinge.yaml:13), pref_loss ({}/smoothing_of_hinge.yaml:12)", "set pref_loss: sigmoid, or remove dpo_label_smoothing"},
      {"adapters_off_without_adapters", "{}/adapters_off_without_adapters.yaml", "adapters_off_without_adapters.yaml", "BASEstage: dpo\nprecompute_ref_log_probs: false\n", 64, "only adapters can be switched off to get the reference", "", "precompute_ref_log_probs ({}/adapters_off_without_adapters.yaml:12), finetuning_type (default)", "remove precompute_ref_log_probs"},
      {"streamed_pairs", "{}/streamed_pairs.yaml", "streamed_pairs.yaml", "BASEstage: dpo\nstreaming: true\n", 64, "stage: dpo needs all answers before the first step, but streaming reads them later", "", "streaming ({}/streamed_pairs.yaml:12), stage ({}/streamed_pairs.yaml:11)", "set streaming: false"},
      {"replayed_judgements", "{}/replayed_judgements.yaml", "replayed_judgements.yaml", "BASEstage: kto\nsdc_replay_steps: 5\ndeterministic: strict\n", 64, "'sdc_replay_steps' cannot replay stage: kto, which reads all answers of a step", "", "sdc_replay_steps ({}/replayed_judgements.yaml:12), stage ({}/replayed_judgements.yaml:11)", "remove sdc_replay_steps"},
      {"kd_without_teacher", "{}/kd_without_teacher.yaml", "kd_without_teacher.yaml", "BASEstage: kd\n", 64, "stage: kd has no teacher", "", "{}/kd_without_teacher.yaml:11", "score the data with trainer generate TEACHER --score --logprobs 64 --out FILE.h5, and set teacher_logprobs: FILE.h5"},
      {"teacher_without_kd", "{}/teacher_without_kd.yaml", "teacher_without_kd.yaml", "BASEteacher_logprobs: scores.h5\n", 64, "'teacher_logprobs' is read only with stage: kd", "stage: sft", "teacher_logprobs ({}/teacher_without_kd.yaml:11), stage (default)", "set stage: kd, or remove teacher_logprobs"},
      {"teacher_in_the_process", "{}/teacher_in_the_process.yaml", "teacher_in_the_process.yaml", "BASEstage: kd\nteacher_model_name_or_path: models/teacher\n", 64, "'teacher_model_name_or_path: models/teacher' is not supported", "", "{}/teacher_in_the_process.yaml:12", "a teacher in the same process is not built; score the data with trainer generate TEACHER --score --logprobs 64 --out FILE.h5, and set teacher_logprobs"},
      {"streamed_teacher", "{}/streamed_teacher.yaml", "streamed_teacher.yaml", "BASEstage: kd\nteacher_logprobs: scores.h5\nstreaming: true\n", 64, "stage: kd compares all rows with the file of the teacher before the first step, but streaming reads them later", "", "streaming ({}/streamed_teacher.yaml:13), stage ({}/streamed_teacher.yaml:11)", "set streaming: false"},
      {"teacher_of_joined_rows", "{}/teacher_of_joined_rows.yaml", "teacher_of_joined_rows.yaml", "BASEstage: kd\nteacher_logprobs: scores.h5\npacking: true\npacking_strategy: llamafactory\n", 64, "the teacher scores each row alone, but LLaMA-Factory's packing joins rows", "", "packing_strategy ({}/teacher_of_joined_rows.yaml:14), stage ({}/teacher_of_joined_rows.yaml:11)", "set packing_strategy: best_fit, or packing: false"},
      {"replayed_teacher", "{}/replayed_teacher.yaml", "replayed_teacher.yaml", "BASEstage: kd\nteacher_logprobs: scores.h5\nsdc_replay_steps: 5\ndeterministic: strict\n", 64, "'sdc_replay_steps' cannot replay stage: kd", "", "sdc_replay_steps ({}/replayed_teacher.yaml:13), stage ({}/replayed_teacher.yaml:11)", "remove sdc_replay_steps"},
      {"smoothing_with_a_teacher", "{}/smoothing_with_a_teacher.yaml", "smoothing_with_a_teacher.yaml", "BASEstage: kd\nteacher_logprobs: scores.h5\nlabel_smoothing_factor: 0.1\n", 64, "'label_smoothing_factor' is for the loss of tokens, but stage: kd has the loss of a teacher", "", "label_smoothing_factor ({}/smoothing_with_a_teacher.yaml:13), stage ({}/smoothing_with_a_teacher.yaml:11)", "remove label_smoothing_factor, or set stage: sft"},
      {"stage_unknown", "{}/stage_unknown.yaml", "stage_unknown.yaml", "BASEstage: sfft\n", 64, "value of 'stage' cannot be used", "'sfft'", "{}/stage_unknown.yaml:11", "did you mean 'sft'?"},
      {"zero_stage_four", "{}/zero_stage_four.yaml", "zero_stage_four.yaml", "BASEzero_stage: 4\n", 64, "value of 'zero_stage' cannot be used", "'4'", "{}/zero_stage_four.yaml:11", "give such a value; 'trainer --help zero_stage' says more"},
      {"adapters_of_another_kind", "{}/adapters_of_another_kind.yaml", "adapters_of_another_kind.yaml", "BASEfinetuning_type: oft\n", 64, "'finetuning_type: oft' is not supported", "", "{}/adapters_of_another_kind.yaml:11", "these adapters are not built; train others with finetuning_type: lora"},
      {"optimizer_sgd", "{}/optimizer_sgd.yaml", "optimizer_sgd.yaml", "BASEoptim: sgd\n", 64, "'optim: sgd' is not supported", "", "{}/optimizer_sgd.yaml:11", "the optimizer is AdamW with moments in fp32, bf16 or int8 (optim_dtype)"},
      {"optimizer_unknown", "{}/optimizer_unknown.yaml", "optimizer_unknown.yaml", "BASEoptim: adam_w\n", 64, "value of 'optim' cannot be used", "'adam_w'", "{}/optimizer_unknown.yaml:11", "did you mean 'adamw'?"},
      {"scheduler_unknown", "{}/scheduler_unknown.yaml", "scheduler_unknown.yaml", "BASElr_scheduler_type: cosin\n", 64, "value of 'lr_scheduler_type' cannot be used", "'cosin'", "{}/scheduler_unknown.yaml:11", "did you mean 'cosine'?"},
      {"plateau", "{}/plateau.yaml", "plateau.yaml", "BASElr_scheduler_type: reduce_lr_on_plateau\n", 64, "'lr_scheduler_type: reduce_lr_on_plateau' needs evaluations, but 'eval_strategy: no' makes none", "eval_strategy: no", "lr_scheduler_type ({}/plateau.yaml:11), eval_strategy (default)", "set eval_strategy: steps or epoch with eval_dataset or val_size, or set lr_scheduler_type: cosine"},
      {"plateau_by_rouge", "{}/plateau_by_rouge.yaml", "plateau_by_rouge.yaml", "BASElr_scheduler_type: reduce_lr_on_plateau\nmetric_for_best_model: rougeL\nval_size: 0.1\neval_strategy: steps\n", 64, "the learning rate cannot follow 'metric_for_best_model: rougeL'", "", "{}/plateau_by_rouge.yaml:12", "set metric_for_best_model: eval_loss, or set lr_scheduler_type: cosine"},
      {"scheduler_argument", "{}/scheduler_argument.yaml", "scheduler_argument.yaml", "BASElr_scheduler_type: cosine\nlr_scheduler_kwargs: {min_lr: 0.1}\n", 64, "unknown argument 'min_lr' of 'cosine'", "", "{}/scheduler_argument.yaml:12", "remove it"},
      {"scheduler_without_argument", "{}/scheduler_without_argument.yaml", "scheduler_without_argument.yaml", "BASElr_scheduler_type: cosine_with_min_lr\n", 64, "cosine_with_min_lr needs one of min_lr and min_lr_rate", "neither", "{}/scheduler_without_argument.yaml:11", "lr_scheduler_kwargs: {min_lr_rate: 0.1}"},
      {"checkpointing_on_and_off", "{}/checkpointing_on_and_off.yaml", "checkpointing_on_and_off.yaml", "BASEgradient_checkpointing: true\ndisable_gradient_checkpointing: true\n", 64, "gradient_checkpointing and disable_gradient_checkpointing exclude each other", "both are true", "gradient_checkpointing ({}/checkpointing_on_and_off.yaml:11), disable_gradient_checkpointing ({}/checkpointing_on_and_off.yaml:12)", "remove one of the two"},
      {"fp16", "{}/fp16.yaml", "fp16.yaml", "BASEfp16: true\n", 64, "'fp16: true' is not supported", "", "{}/fp16.yaml:11", "fp16 needs loss scaling, which is not built; use bf16: true"},
      {"label_smoothing", "{}/label_smoothing.yaml", "label_smoothing.yaml", "BASElabel_smoothing_factor: 1\n", 64, "value of 'label_smoothing_factor' cannot be used", "'1'", "{}/label_smoothing.yaml:11", "give such a value; 'trainer --help label_smoothing_factor' says more"},
      {"fsdp", "{}/fsdp.yaml", "fsdp.yaml", "BASEfsdp: full_shard\n", 64, "'fsdp: full_shard' is not supported", "", "{}/fsdp.yaml:11", "sharding is zero_stage here"},
      {"asft", "{}/asft.yaml", "asft.yaml", "BASEuse_asft_loss: true\n", 64, "'use_asft_loss: true' is not supported", "", "{}/asft.yaml:11", "this loss is not built; use_dft_loss and use_eaft_loss are"},
      {"galore", "{}/galore.yaml", "galore.yaml", "BASEuse_galore: true\n", 64, "'use_galore: true' is not supported", "", "{}/galore.yaml:11", "the optimizer is AdamW"},
      {"group_by_length", "{}/group_by_length.yaml", "group_by_length.yaml", "BASEgroup_by_length: true\n", 64, "'group_by_length: true' is not supported", "", "{}/group_by_length.yaml:11", "batches of equal length would change the order of samples; use packing"},
      {"predict_with_generate", "{}/predict_with_generate.yaml", "predict_with_generate.yaml", "BASEpredict_with_generate: true\n", 64, "'predict_with_generate: true' is not supported", "", "{}/predict_with_generate.yaml:11", "evaluation computes the loss; answers come from trainer generate"},
      {"feedback_without_rounding", "{}/feedback_without_rounding.yaml", "feedback_without_rounding.yaml", "BASEerror_feedback: true\n", 64, "'error_feedback: true' has no meaning with 'reduce_dtype: fp32'", "", "error_feedback ({}/feedback_without_rounding.yaml:11), reduce_dtype (default)", "set reduce_dtype: int8 or fp8, or remove error_feedback"},
      {"gather_at_stage_0", "{}/gather_at_stage_0.yaml", "gather_at_stage_0.yaml", "BASEgather_dtype: bf16\n", 64, "'gather_dtype: bf16' has no meaning with 'zero_stage: 0'", "", "gather_dtype ({}/gather_at_stage_0.yaml:11), zero_stage (default)", "set zero_stage: 1, 2 or 3, or remove gather_dtype"},
      {"bf16_states_without_bf16", "{}/bf16_states_without_bf16.yaml", "bf16_states_without_bf16.yaml", "BASEparam_dtype: bf16\n", 64, "'param_dtype: bf16' needs 'bf16: true'", "bf16: false", "param_dtype ({}/bf16_states_without_bf16.yaml:11), bf16 (default)", "set bf16: true, or set param_dtype: fp32"},
      {"weights_of_one_set", "{}/weights_of_one_set.yaml", "weights_of_one_set.yaml", "BASEinterleave_probs: [0.5, 0.5]\n", 64, "interleave_probs is read only when datasets are interleaved", "mix_strategy: concat", "interleave_probs ({}/weights_of_one_set.yaml:11), mix_strategy (default)", "set mix_strategy: interleave_under, or remove interleave_probs"},
      {"best_of_nothing", "{}/best_of_nothing.yaml", "best_of_nothing.yaml", "BASEload_best_model_at_end: true\n", 64, "'load_best_model_at_end: true' needs evaluated checkpoints, but 'eval_strategy: no' makes none", "eval_strategy: no", "load_best_model_at_end ({}/best_of_nothing.yaml:11), eval_strategy (default)", "set eval_strategy: steps with eval_dataset or val_size, or set load_best_model_at_end: false"},
      {"best_by_rouge", "{}/best_by_rouge.yaml", "best_by_rouge.yaml", "BASEload_best_model_at_end: true\nmetric_for_best_model: rougeL\nval_size: 0.1\neval_strategy: steps\n", 64, "the best model cannot be found by 'metric_for_best_model: rougeL'", "", "{}/best_by_rouge.yaml:12", "set metric_for_best_model: eval_loss, or set load_best_model_at_end: false; trainer generate CHECKPOINT --file HELD_OUT --rouge-l scores a checkpoint"},
      {"best_by_accuracy", "{}/best_by_accuracy.yaml", "best_by_accuracy.yaml", "BASEload_best_model_at_end: true\nmetric_for_best_model: eval_accuracy\nval_size: 0.1\neval_strategy: steps\n", 64, "the best model cannot be found by 'metric_for_best_model: eval_accuracy'", "", "{}/best_by_accuracy.yaml:12", "set compute_accuracy: true, or set metric_for_best_model: eval_loss, or set load_best_model_at_end: false"},
      {"early_without_evaluations", "{}/early_without_evaluations.yaml", "early_without_evaluations.yaml", "BASEearly_stopping_steps: 3\n", 64, "'early_stopping_steps: 3' needs evaluations, but 'eval_strategy: no' makes none", "eval_strategy: no", "early_stopping_steps ({}/early_without_evaluations.yaml:11), eval_strategy (default)", "set eval_strategy: steps or epoch with eval_dataset or val_size, or remove early_stopping_steps"},
      {"best_without_evaluations", "{}/best_without_evaluations.yaml", "best_without_evaluations.yaml", "BASEsave_strategy: best\n", 64, "'save_strategy: best' needs evaluations, but 'eval_strategy: no' makes none", "eval_strategy: no", "save_strategy ({}/best_without_evaluations.yaml:11), eval_strategy (default)", "set eval_strategy: steps or epoch with eval_dataset or val_size, or set save_strategy: steps"},
      {"start_without_evaluations", "{}/start_without_evaluations.yaml", "start_without_evaluations.yaml", "BASEeval_on_start: true\nval_size: 2\n", 64, "'eval_on_start: true' needs evaluations, but 'eval_strategy: no' makes none", "eval_strategy: no", "eval_on_start ({}/start_without_evaluations.yaml:11), eval_strategy (default)", "set eval_strategy: steps or epoch, or remove eval_on_start"},
      {"evaluation_of_nothing", "{}/evaluation_of_nothing.yaml", "evaluation_of_nothing.yaml", "BASEeval_strategy: steps\n", 64, "'eval_strategy: steps' has nothing to evaluate", "neither", "{}/evaluation_of_nothing.yaml:11", "set eval_dataset or val_size, or set eval_strategy: no"},
      {"held_out_twice", "{}/held_out_twice.yaml", "held_out_twice.yaml", "BASEval_size: 0.1\neval_dataset: {}/made/data/held_out.jsonl\n", 64, "val_size and eval_dataset exclude each other", "val_size: 0.1", "val_size ({}/held_out_twice.yaml:11), eval_dataset ({}/held_out_twice.yaml:12)", "remove one of the two"},
      {"all_held_out", "{}/all_held_out.yaml", "all_held_out.yaml", "BASEval_size: 1000\n", 64, "val_size leaves no rows for training", "1,000", "val_size ({}/all_held_out.yaml:11)", "hold out fewer rows"},
      {"eight_bits", "{}/eight_bits.yaml", "eight_bits.yaml", "BASEfinetuning_type: lora\nquantization_bit: 8\n", 64, "'quantization_bit: 8' is not supported", "", "{}/eight_bits.yaml:12", "set fp8: true without quantization_bit, which keeps the weights in 8 bits and computes in them; or set quantization_bit: 4"},
      {"four_bits_of_all", "{}/four_bits_of_all.yaml", "four_bits_of_all.yaml", "BASEquantization_bit: 4\n", 64, "'quantization_bit: 4' needs 'finetuning_type: lora'", "finetuning_type: full", "quantization_bit ({}/four_bits_of_all.yaml:11), finetuning_type (default)", "set finetuning_type: lora, or remove quantization_bit"},
      {"rank_without_adapters", "{}/rank_without_adapters.yaml", "rank_without_adapters.yaml", "BASElora_rank: 8\n", 64, "'lora_rank' is for adapters, but finetuning_type is not set", "", "{}/rank_without_adapters.yaml:11", "set finetuning_type: lora, or remove lora_rank"},
      {"adapters_of_rank_0", "{}/adapters_of_rank_0.yaml", "adapters_of_rank_0.yaml", "BASEfinetuning_type: lora\nlora_rank: 0\n", 64, "value of 'lora_rank' cannot be used", "'0'", "{}/adapters_of_rank_0.yaml:12", "give such a value; 'trainer --help lora_rank' says more"},
      {"no_such_module", "{}/no_such_module.yaml", "no_such_module.yaml", "BASEfinetuning_type: lora\nlora_target: [q_prj]\n", 64, "no module of the model is called 'q_prj'", "q_prj", "lora_target ({}/no_such_module.yaml:12), lora_rank (default), additional_target (default)", "did you mean 'q_proj'?"},
      {"save_steps_0", "{}/save_steps_0.yaml", "save_steps_0.yaml", "BASEsave_steps: 0\n", 64, "value of 'save_steps' cannot be used", "'0'", "{}/save_steps_0.yaml:11", "give such a value; 'trainer --help save_steps' says more"},
      {"beta_of_one", "{}/beta_of_one.yaml", "beta_of_one.yaml", "BASEadam_beta2: 1.0\n", 64, "value of 'adam_beta2' cannot be used", "'1.0'", "{}/beta_of_one.yaml:11", "give such a value; 'trainer --help adam_beta2' says more"},
      {"fp8_recipe", "{}/fp8_recipe.yaml", "fp8_recipe.yaml", "BASEfp8: true\nfp8_recipe: delay\n", 64, "value of 'fp8_recipe' cannot be used", "'delay'", "{}/fp8_recipe.yaml:12", "did you mean 'delayed'?"},
      {"fp8_format", "{}/fp8_format.yaml", "fp8_format.yaml", "BASEfp8: true\nfp8_format: e4m4\n", 64, "value of 'fp8_format' cannot be used", "'e4m4'", "{}/fp8_format.yaml:12", "did you mean 'e4m3'?"},
      {"device", "{}/device.yaml", "device.yaml", "BASEuse_cpu: maybe\n", 64, "value of 'use_cpu' cannot be used", "'maybe'", "{}/device.yaml:11", "give such a value; 'trainer --help use_cpu' says more"},
      {"recompute", "{}/recompute.yaml", "recompute.yaml", "BASErecompute: some\n", 64, "value of 'recompute' cannot be used", "'some'", "{}/recompute.yaml:11", "give such a value; 'trainer --help recompute' says more"},
      {"deterministic", "{}/deterministic.yaml", "deterministic.yaml", "BASEdeterministic: maybe\n", 64, "value of 'deterministic' cannot be used", "'maybe'", "{}/deterministic.yaml:11", "give such a value; 'trainer --help deterministic' says more"},
      {"pack_factor_without_cuts", "{}/pack_factor_without_cuts.yaml", "pack_factor_without_cuts.yaml", "BASEpack_factor: 2\ntruncation: error\n", 64, "'pack_factor' cuts texts, but 'truncation: error' forbids", "truncation: error", "pack_factor ({}/pack_factor_without_cuts.yaml:11), truncation ({}/pack_factor_without_cuts.yaml:12)", "remove pack_factor, or set truncation: cut"},
      {"batch_that_does_not_divide", "{}/base.yaml per_device_train_batch_size=5", "", "", 64, "global_batch_size 24 is not a multiple of the micro-batches of all ranks", "24", "global_batch_size ({}/base.yaml:6)", "per_device_train_batch_size: 4 or 6; or global_batch_size: 20 or 25"},
      {"two_sizes_of_a_step", "{}/two_sizes_of_a_step.yaml", "two_sizes_of_a_step.yaml", "BASEgradient_accumulation_steps: 3\n", 64, "global_batch_size and gradient_accumulation_steps disagree", "3", "global_batch_size ({}/two_sizes_of_a_step.yaml:6), gradient_accumulation_steps ({}/two_sizes_of_a_step.yaml:11)", "give only one of the two"},
      {"tokens_of_no_folder", "{}/tokens_of_no_folder.yaml", "tokens_of_no_folder.yaml", "BASEtokenized_path: {}/made/model/config.json\n", 64, "cannot make a folder", "Not a directory", "{}/made/model/config.json", "choose a folder that can be written"},
      {"deepspeed_missing", "{}/deepspeed_missing.yaml", "deepspeed_missing.yaml", "BASEdeepspeed: {}/none.json\n", 64, "the DeepSpeed JSON does not exist", "{}/none.json", "{}/deepspeed_missing.yaml:11", "check the path, or remove 'deepspeed' and set zero_stage"},
      {"deepspeed_stage", "{}/deepspeed_stage.yaml", "deepspeed_stage.yaml", "BASEdeepspeed: {zero_optimization: {stage: 5}}\n", 64, "value of 'zero_optimization.stage' cannot be used", "'5'", "{}/deepspeed_stage.yaml: deepspeed:11: zero_optimization.stage", "give such a value; 'trainer --help zero_stage' says more"},
      {"deepspeed_key", "{}/deepspeed_key.yaml", "deepspeed_key.yaml", "BASEdeepspeed: {zero_optimisation: {stage: 1}}\n", 64, "unknown DeepSpeed key 'zero_optimisation'", "", "{}/deepspeed_key.yaml: deepspeed:11: zero_optimisation", "did you mean 'zero_optimization'?"},
      {"deepspeed_fp16", "{}/deepspeed_fp16.yaml", "deepspeed_fp16.yaml", "BASEdeepspeed: {fp16: {enabled: true}}\n", 64, "'fp16.enabled' is not supported", "'true'", "{}/deepspeed_fp16.yaml: deepspeed:11: fp16.enabled", "fp16 is not built; use bf16"},
      {"deepspeed_disagrees", "{}/deepspeed_disagrees.yaml", "deepspeed_disagrees.yaml", "BASEdeepspeed: {zero_optimization: {stage: 1}}\nzero_stage: 2\n", 64, "the YAML and the DeepSpeed JSON disagree on 'zero_stage'", "2 ({}/deepspeed_disagrees.yaml:12) and 1 ({}/deepspeed_disagrees.yaml: deepspeed:11: zero_optimization.stage)", "{}/deepspeed_disagrees.yaml:12", "write \"auto\" in the JSON, or make them equal"},
      {"deepspeed_nvme", "{}/deepspeed_nvme.yaml", "deepspeed_nvme.yaml", "BASEdeepspeed: {zero_optimization: {offload_optimizer: {device: nvme}}}\n", 64, "'zero_optimization.offload_optimizer.device' is not supported", "'nvme'", "{}/deepspeed_nvme.yaml: deepspeed:11: zero_optimization.offload_optimizer.device", "cpu, which keeps the optimizer's state in host memory"},
      {"deepspeed_fp8", "{}/deepspeed_fp8.yaml", "deepspeed_fp8.yaml", "BASEdeepspeed: {fp8: {enabled: true}}\n", 64, "DeepSpeed has no 'fp8' section: it silently ignores this one", "a section 'fp8'", "{}/deepspeed_fp8.yaml: deepspeed:11: fp8", "remove the section and set 'fp8: true' in the YAML"},
      {"verl_strategy", "{}/verl_strategy.yaml", "verl_strategy.yaml", "BASEmodel: {strategy: megatron}\n", 64, "value of 'model.strategy' cannot be used", "'megatron'", "{}/verl_strategy.yaml:11", "give such a value, or remove the key"},
      {"verl_sequences", "{}/verl_sequences.yaml", "verl_sequences.yaml", "BASEulysses_sequence_parallel_size: 4\n", 64, "'ulysses_sequence_parallel_size' is not supported", "'4'", "{}/verl_sequences.yaml:11", "sequences are not split over ranks"},
      {"verl_truncation", "{}/verl_truncation.yaml", "verl_truncation.yaml", "BASEdata: {truncation: middle}\n", 64, "value of 'data.truncation' cannot be used", "'middle'", "{}/verl_truncation.yaml:11", "give one of these, or set 'truncation' to cut or error"},
      {"sft_play_mode", "{}/sft_play_mode.yaml", "sft_play_mode.yaml", "BASEtuning: {mode: ptuning}\n", 64, "value of 'tuning.mode' cannot be used", "'ptuning'", "{}/sft_play_mode.yaml:11", "give such a value; 'trainer --help finetuning_type' says more"},
      {"sft_play_section", "{}/sft_play_section.yaml", "sft_play_section.yaml", "BASEtrain: 3\n", 64, "unknown key 'train'", "", "{}/sft_play_section.yaml:11", "remove it; 'trainer train --help' lists the keys"},
      {"sft_play_split", "{}/sft_play_split.yaml", "sft_play_split.yaml", "BASEdata: {split: {train_ratio: 7}}\n", 64, "value of 'data.split.train_ratio' cannot be used", "'7'", "{}/sft_play_split.yaml:11", "give such a value, or remove the key"},
      {"include_missing", "{}/include_missing.yaml", "include_missing.yaml", "BASEinclude: nowhere.yaml\n", 64, "the included configuration does not exist", "nowhere.yaml", "{}/include_missing.yaml:11", "check the path, or remove the line"},
      {"interpolation", "{}/interpolation.yaml", "interpolation.yaml", "BASErun_name: ${nothing.there}\n", 64, "an interpolation refers to a key without a plain value", "${nothing.there}", "{}/interpolation.yaml:11", "give the key in the file or on the command line"},
      {"axolotl_adapter", "{}/axolotl_adapter.yaml", "axolotl_adapter.yaml", "base_model: m\nadapter: ia3\n", 64, "value of 'adapter' cannot be used", "'ia3'", "{}/axolotl_adapter.yaml:2", "write adapter: lora, or remove it to train all parameters"},
      {"axolotl_typo", "{}/axolotl_typo.yaml", "axolotl_typo.yaml", "base_model: m\nsequence_length: 9\n", 64, "unknown key 'sequence_length'", "", "{}/axolotl_typo.yaml:2", "did you mean 'sequence_len'?"},
      {"mixed_trainers", "{}/mixed_trainers.yaml", "mixed_trainers.yaml", "BASEtrain: {epochs: 1, seed: 3}\ntrainer: {save_freq: 5}\n", 64, "keys of SFT-Play and of verl are in one configuration", "train.epochs ({}/mixed_trainers.yaml:11) is SFT-Play's, trainer.save_freq ({}/mixed_trainers.yaml:12) is verl's", "{}/mixed_trainers.yaml:12", "write train.save_steps (SFT-Play) or save_steps in place of trainer.save_freq"},
      {"mixed_command_line", "{}/mixed_command_line.yaml trainer.nnodes=2", "mixed_command_line.yaml", "BASEtrain: {seed: 3}\n", 64, "keys of SFT-Play and of verl are in one configuration", "train.seed ({}/mixed_command_line.yaml:11) is SFT-Play's, trainer.nnodes (command line) is verl's", "command line", "remove trainer.nnodes (the launcher says how many ranks there are)"},
      {"sft_play_typo", "{}/sft_play_typo.yaml", "sft_play_typo.yaml", "BASEmode: sft\nmodel: {max_seq_length: 64}\n", 64, "unknown key 'model.max_seq_length'", "", "{}/sft_play_typo.yaml:12", "did you mean 'model.max_seq_len'?"},
      {"verl_typo", "{}/verl_typo.yaml", "verl_typo.yaml", "BASEoptim: {lr: 1e-4}\ndata: {truncatoin: error}\n", 64, "unknown key 'data.truncatoin'", "", "{}/verl_typo.yaml:12", "did you mean 'data.truncation'?"},
      {"verl_key_of_axolotl", "{}/verl_key_of_axolotl.yaml", "verl_key_of_axolotl.yaml", "BASEoptim: {lr: 1e-4}\nnum_epochs: 2\n", 64, "unknown key 'num_epochs'", "a key of axolotl; its configurations have the key base_model", "{}/verl_key_of_axolotl.yaml:12", "write trainer.total_epochs (verl) or num_train_epochs in place of it"},
      {"own_key_of_axolotl", "{}/base.yaml num_epochs=2", "", "", 64, "unknown key 'num_epochs'", "", "command line", "write num_train_epochs=NUMBER"},
      {"torchtune", "{}/torchtune.yaml", "torchtune.yaml", "seed: 3\nmodel:\n  _component_: torchtune.models.llama3.llama3_8b\n", 64, "this is a configuration of torchtune, and its keys are not translated", "_component_: 'torchtune.models.llama3.llama3_8b'", "{}/torchtune.yaml:3", "write model_name_or_path (checkpointer.checkpoint_dir), dataset, cutoff_len (tokenizer.max_seq_len), per_device_train_batch_size (batch_size), num_train_epochs (epochs), learning_rate (optimizer.lr) and output_dir"},
      {"torchtitan", "llama.toml", "", "", 64, "a configuration in TOML, as torchtitan's are, is not read", "llama.toml", "command line", "write model_name_or_path ([model] hf_assets_path), dataset, cutoff_len ([training] seq_len), per_device_train_batch_size ([training] local_batch_size), max_steps ([training] steps), learning_rate ([optimizer] lr) and output_dir into a YAML file"},
      {"nothing_to_train", "{}/nothing_to_train.yaml", "nothing_to_train.yaml", "seed: 3\n", 64, "'model_name_or_path' is not given", "", "{}/nothing_to_train.yaml", "add it to the file, or give it on the command line: model_name_or_path=path/to/model"},
      {"config_missing", "{}/none.yaml", "", "", 64, "the configuration does not exist", "{}/none.yaml", "command line", "check the path; 'trainer quickstart FOLDER' writes a configuration to begin with"},
      {"config_is_a_folder", "{}/folder.yaml", "folder.yaml/x", "", 64, "the configuration is a folder", "", "{}/folder.yaml", "name the file in it"},
      {"two_configs", "{}/base.yaml {}/base.yaml", "", "", 64, "two configurations are given", "{}/base.yaml and {}/base.yaml", "command line", "give one; overrides are written key=value"},
      {"key_without_value", "{}/base.yaml --seed", "", "", 64, "'--seed' has no value", "", "command line", "add the value; 'trainer --help seed' says more"},
      {"a_stray_word", "{}/base.yaml sede", "", "", 64, "the argument 'sede' cannot be read", "", "command line", "remove it, or write it in one of these forms"},
      {"command_predict", "predict x", "", "", 64, "there is no command 'predict'", "", "command line", "trainer generate MODEL answers"},
      {"command_convert", "convert x", "", "", 64, "there is no command 'convert'", "", "command line", "trainer export CHECKPOINT FOLDER"},
      {"command_upload", "upload x", "", "", 64, "there is no command 'upload'", "", "command line", "hf upload OWNER/NAME FOLDER"},
      {"command_download", "download x", "", "", 64, "there is no command 'download'", "", "command line", "hf download OWNER/NAME"},
      {"command_unknown", "inspcet x", "", "", 64, "there is no command 'inspcet'", "", "command line", "did you mean 'inspect'?"},
      {"plan_option", "plan {}/base.yaml --jsn", "", "", 64, "argument '--jsn' is not known", "", "command line", "did you mean '--json'?"},
      {"plan_memory", "plan {}/base.yaml memory=12XB", "", "", 64, "value of 'memory' cannot be used", "'12XB'", "command line", "give a size with a unit from KB to TB or from KiB to TiB"},
      {"plan_world", "plan {}/base.yaml world=0", "", "", 64, "value of 'world' cannot be used", "'0'", "command line", "give such a value; 'trainer plan --help' says more"},
      {"plan_shape", "plan llama-3.1-9b", "", "", 64, "'llama-3.1-9b' is neither the folder of a model nor a shape with a name", "", "", "did you mean 'llama-3.1-8b'?"},
      {"inspect_nothing", "inspect {}/none", "", "", 77, "this is not a complete checkpoint", "no such folder", "{}/none", "name a folder checkpoint-<step>"},
      {"inspect_a_file", "inspect {}/base.yaml", "", "", 77, "this is not a complete checkpoint", "no manifest", "{}/base.yaml", "name a folder checkpoint-<step>"},
      {"compare_one", "compare {}/none", "", "", 64, "cannot open a file", "No such file or directory", "{}/none", "check the path and its permissions"},
      {"export_size", "export {}/none {}/x --size 0", "", "", 64, "value of '--size' cannot be used", "'0'", "command line", "give such a value; 'trainer export --help' says more"},
      {"export_nothing", "export {}/none {}/x", "", "", 77, "this is not a complete checkpoint", "no such folder", "{}/none", "name a folder checkpoint-<step>"},
      {"encode_nothing", "encode {}/none", "", "", 64, "the folder of the tokenizer does not exist", "", "{}/none", "fetch the model first (hf download NAME), or name a folder that holds it"},
      {"generate_without_model", "generate", "", "", 64, "MODEL is required", "", "command line", "'trainer generate --help' lists the options"},
      {"generate_of_nothing", "generate {}/none why", "", "", 64, "the folder of the model does not exist", "nothing", "{}/none", "name the folder that holds it"},
      {"score_and_match", "generate {}/made/model --file {}/base.yaml --score --exact-match", "", "", 64, "--score gives no answers", "", "command line", "leave out --exact-match, --rouge-l, --extract, --n and --prompt-file"},
      {"rouge_without_file", "generate {}/made/model why --rouge-l", "", "", 64, "--rouge-l needs questions in a file", "", "command line", "name the file with --file"},
      {"bench_shape", "bench tinny", "", "", 64, "'tinny' is neither the folder of a model nor a shape with a name", "", "", "did you mean 'tiny'?"},
      {"help_of_nothing", "--help lerning_rate", "", "", 64, "there is no command, key or page 'lerning_rate'", "", "command line", "did you mean 'learning_rate'?"},
      {"data_missing", "{}/base.yaml dataset={}/none.jsonl", "", "", 64, "data set '{}/none.jsonl' is not known", "no such file, and no dataset_info.json", "dataset (command line)", "check the path, or dataset_dir"},
      {"data_empty", "{}/base.yaml dataset={}/empty.jsonl", "empty.jsonl", "", 64, "data set '{}/empty.jsonl' is empty", "1 files without rows", "{}/empty.jsonl", "check the file"},
      {"data_broken", "{}/base.yaml dataset={}/broken.jsonl max_broken_rows=0", "broken.jsonl", "{\"messages\": [}\n", 64, "not valid JSON", "unexpected '}'", "{}/broken.jsonl:1", "correct it there"},
      {"data_columns", "{}/base.yaml dataset={}/strange.jsonl", "strange.jsonl", "{\"first\": 1, \"second\": 2}\n", 64, "the format of a data set is not recognised", "the keys 'first' 'second'", "{}/strange.jsonl:1", "describe its columns in dataset_info.json"},
      {"data_questions", "{}/base.yaml dataset={}/questions.jsonl", "questions.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"why\"}]}\n", 64, "the data set has no tokens to train", "1 rows, 1 not usable, 0 not readable, 0 without trained tokens", "{}/questions.jsonl:1: the last question has no answer", "check the columns of the data set, the template and cutoff_len"},
      {"data_not_json", "{}/base.yaml dataset={}/binary.jsonl max_broken_rows=0", "binary.jsonl", "\000\001\377\376\012"sv, 64, "a row is not valid UTF-8", "bytes of another encoding", "{}/binary.jsonl:1", "convert the file to UTF-8"},
      {"data_gzip", "{}/base.yaml dataset={}/rows.jsonl.gz", "rows.jsonl.gz", "no gzip", 64, "a compressed data file is damaged", "bytes that are not compressed", "{}/rows.jsonl.gz", "fetch it again, or unpack it yourself"},
      {"data_parquet", "{}/base.yaml dataset={}/rows.parquet", "rows.parquet", "PAR1 no parquet", 64, "a Parquet or Arrow file cannot be read", "Parquet", "{}/rows.parquet", "write it again, or convert it to JSON lines"},
      {"data_folder", "{}/base.yaml dataset={}/nothing", "nothing/.keep", "", 64, "data set '{}/nothing' is empty", "0 files without rows", "dataset (command line)", "put data files into it"},
      {"data_unknown", "{}/base.yaml dataset=nera dataset_dir={}", "dataset_info.json", "{\"near\": {\"file_name\": \"base.yaml\"}}", 64, "data set 'nera' is not known", "no such name among 1", "dataset (command line)", "did you mean 'near'?"},
      {"data_too_long", "{}/base.yaml cutoff_len=8 truncation=error", "", "", 64, "rows of the data are too long (truncation: error forbids cutting them)", "rows with more", "{}/made/data/train.jsonl:1: is longer than cutoff_len", "raise cutoff_len, shorten or remove these rows, or set truncation: cut"},
      {"messages_column", "{}/base.yaml messages_column=chat", "", "", 64, "a data set has no column 'chat'", "'messages'", "{}/made/data/train.jsonl", "name the column by messages_column, or prompt_column and response_column"},
      {"template_unknown", "{}/base.yaml template=chatlm", "", "", 64, "there is no chat template 'chatlm'", "", "template (command line)", "did you mean 'chatml'?"},
      {"template_file_missing", "{}/base.yaml template={}/none.jinja", "", "", 64, "the file of the chat template does not exist", "{}/none.jinja", "template (command line)", "check the path; or name a template that is built in"},
      {"template_file_torn", "{}/base.yaml template={}/template_file_torn.jinja", "template_file_torn.jinja", "{{ user }}\n{% if system %}", 64, "the file of the chat template has an error, or uses unsupported Jinja", "'endif' is missing", "{}/template_file_torn.jinja:2", "correct this line; or name a template that is built in"},
      {"template_file_filter", "{}/base.yaml template={}/template_file_filter.jinja", "template_file_filter.jinja", "{{ user }}\n{{ user | wordwrap }}", 64, "the file of the chat template cannot be rendered", "there is no filter 'wordwrap' here", "{}/template_file_filter.jinja:2", "correct the file; or name a template that is built in"},
      {"template_file_variable", "{}/base.yaml template={}/template_file_variable.jinja", "template_file_variable.jinja", "{{ user }} {{ context }}", 64, "the file of the chat template uses unknown variables", "'context'", "{}/template_file_variable.jinja", "write the prompt with these variables"},
      {"template_file_answer", "{}/base.yaml template={}/template_file_answer.jinja", "template_file_answer.jinja", "{{ user }} {{ assistant }}", 64, "the file of the chat template uses unknown variables", "'assistant'", "{}/template_file_answer.jinja", "end the file where the answer begins"},
      {"template_file_nothing", "{}/base.yaml template={}/template_file_nothing.jinja", "template_file_nothing.jinja", "{% if user == 'x' %}{{ user }}{% endif %}", 64, "the file of the chat template writes nothing", "an empty text", "{}/template_file_nothing.jinja", "print the question in the file"},
      {"template_file_apart", "{}/base.yaml template={}/template_file_apart.jinja", "template_file_apart.jinja", "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", 64, "the file of the chat template does not write an answer as a continuation of its question", "with the answer it writes \"2What is 6", "{}/template_file_apart.jinja", "write the same text for the messages in both cases"},
      {"template_file_option", "{}/base.yaml template={}/template_file_option.jinja split_special_tokens=true", "template_file_option.jinja", "{{ user }}:", 64, "a template in a file does not support split_special_tokens", "the template {}/template_file_option.jinja", "split_special_tokens (command line)", "leave split_special_tokens false"},
      {"model_missing", "{}/base.yaml model_name_or_path={}/none", "", "", 64, "the folder of the model does not exist", "", "{}/none", "fetch the model first (hf download NAME), or name a folder that holds it"},
      {"model_no_config", "{}/base.yaml model_name_or_path={}/noconfig", "noconfig/x", "", 64, "this is not a model folder", "a folder without config.json", "{}/noconfig", "name a folder that `hf download` or transformers' save_pretrained wrote"},
      {"model_torn_config", "{}/base.yaml model_name_or_path={}/torn", "torn/config.json", "{\"hidden", 64, "not valid JSON", "missing closing quote", "{}/torn/config.json", "correct it there"},
      {"model_architecture", "{}/base.yaml model_name_or_path={}/bert", "bert/config.json", "{\"architectures\": [\"BertModel\"], \"model_type\": \"bert\"}", 64, "the architecture of this model is not known", "'bert' (BertModel)", "{}/bert/config.json", "use a model of one of these families"},
      {"no_weights", "{}/base.yaml train_from_scratch=false", "", "", 64, "there are no weights to start from", "", "{}/made/model", "fetch the weights, or set train_from_scratch: true to start from random weights"},
      {"resume_missing", "{}/base.yaml resume_from_checkpoint={}/checkpoint-9", "", "", 77, "this is not a complete checkpoint", "no such folder", "{}/checkpoint-9", "name a folder checkpoint-<step>"},
      {"resume_nothing", "{}/base.yaml resume_from_checkpoint=true", "", "", 77, "there is no checkpoint to resume from", "", "{}/out", "leave resume_from_checkpoint out to start a new run"},
      {"output_is_a_file", "{}/base.yaml output_dir={}/base.yaml", "", "", 64, "cannot make a folder", "Not a directory", "{}/base.yaml", "choose a folder that can be written"},
      {"output_in_proc", "{}/base.yaml output_dir=/proc/nothing", "", "", 64, "cannot make a folder", "No such file or directory", "/proc/nothing", "choose a folder that can be written"},
      {"adapter_missing", "{}/base.yaml finetuning_type=lora adapter_name_or_path={}/none", "", "", 64, "adapters need the weights of their base, but 'train_from_scratch: true' begins with random weights", "adapter_name_or_path: ", "adapter_name_or_path (command line), train_from_scratch ({}/base.yaml:2)", "remove one of the two"},
      {"pack_factor_0", "{}/base.yaml pack_factor=0", "", "", 64, "value of 'pack_factor' cannot be used", "'0'", "command line", "give such a value; 'trainer --help pack_factor' says more"},
      {"eval_batch_0", "{}/base.yaml per_device_eval_batch_size=0", "", "", 64, "value of 'per_device_eval_batch_size' cannot be used", "'0'", "command line", "give such a value; 'trainer --help per_device_eval_batch_size' says more"},
      {"excess", "{}/excess.yaml", "excess.yaml", "BASEexcess_length_strategy: drop\n", 64, "unknown key 'excess_length_strategy'", "a key of axolotl; its configurations have the key base_model", "{}/excess.yaml:11", "write truncation in place of it"},
      {"supervise_order", "supervise --launcher /bin/true -np 2 --min-ranks 1 TRAINER {}/base.yaml", "", "", 64, "'--min-ranks' comes after launch/mpirun's options, so mpirun would read it", "'--min-ranks' after '-np'", "command line", "put supervise's own options before launch/mpirun's"},
      {"supervise_hosts", "supervise --launcher /bin/true --hostfile {}/nohosts -np 2 TRAINER {}/base.yaml", "", "", 64, "the hostfile cannot be read", "cannot open a file", "{}/nohosts", "name a file that is there; hostfiles/ has examples"},
      {"supervise_nothing", "supervise --launcher /bin/true -np 2", "", "", 64, "there is no training to supervise", "-np 2", "command line", "launch/supervise --help says more"},
      {"verl_prompt_alone", "{}/verl_prompt_alone.yaml", "verl_prompt_alone.yaml", "BASEdata: {prompt_key: question}\n", 64, "data.prompt_key is given without data.response_key", "", "{}/verl_prompt_alone.yaml:11", "give data.response_key, too, or remove data.prompt_key"},
      {"verl_held_out_twice", "{}/verl_held_out_twice.yaml", "verl_held_out_twice.yaml", "BASEval_size: 0.1\ndata: {val_files: {}/made/data/held_out.jsonl}\n", 64, "val_size and data.val_files exclude each other", "val_size: 0.1", "val_size ({}/verl_held_out_twice.yaml:11), data.val_files ({}/verl_held_out_twice.yaml:12)", "remove one of the two"},
      {"verl_test_freq", "{}/verl_test_freq.yaml", "verl_test_freq.yaml", "BASEtrainer: {test_freq: 5}\n", 64, "'trainer.test_freq' (eval_strategy: steps) has nothing to evaluate", "neither", "{}/verl_test_freq.yaml:11", "set eval_dataset or val_size, or remove trainer.test_freq"},
      {"sft_play_template", "{}/sft_play_template.yaml", "sft_play_template.yaml", "model_name_or_path: {}/made/model\ntrain_from_scratch: true\ndata: {template_path: chatlm}\ndataset: {}/made/data/train.jsonl\nmax_steps: 1\ndevice: cpu\noutput_dir: {}/out\n", 64, "there is no chat template 'chatlm'", "", "data.template_path ({}/sft_play_template.yaml:3)", "did you mean 'chatml'?"},
      {"sft_play_split_of_all", "{}/sft_play_split_of_all.yaml", "sft_play_split_of_all.yaml", "BASEdata: {split: {train_ratio: 0.001}}\n", 64, "data.split.train_ratio leaves no rows for training", "240", "data.split.train_ratio ({}/sft_play_split_of_all.yaml:11)", "hold out fewer rows"},
      {"plan_setting", "plan {}/base.yaml wrold=8", "", "", 64, "argument 'wrold=8' is not known", "", "command line", "did you mean 'world'?"},
      {"plan_setting_with_hyphens", "plan {}/base.yaml --wrold=8", "", "", 64, "argument '--wrold=8' is not known", "", "command line", "did you mean '--world'?"},
      {"plan_key", "plan {}/base.yaml sede=8", "", "", 64, "unknown key 'sede'", "", "command line", "did you mean 'seed'?"},
      {"plan_world_with_hyphens", "plan {}/base.yaml --world 0", "", "", 64, "value of '--world' cannot be used", "'0'", "command line", "give such a value; 'trainer plan --help' says more"},
      {"plan_world_with_both", "plan {}/base.yaml --world=many", "", "", 64, "value of '--world' cannot be used", "'many'", "command line", "give such a value; 'trainer plan --help' says more"},
      {"plan_world_without_value", "plan {}/base.yaml --world", "", "", 64, "'--world' has no value", "", "command line", "add the value; 'trainer plan --help' says more"},
      {"plan_world_of_nothing", "plan {}/base.yaml world=", "", "", 64, "'world' has no value", "", "command line", "add the value; 'trainer plan --help' says more"},
      {"plan_world_twice", "plan {}/base.yaml world=2 --world=4", "", "", 64, "'--world' is given more than once", "'2', '4'", "command line", "give it once"},
      {"plan_tokens", "plan {}/base.yaml tokens=-1", "", "", 64, "value of 'tokens' cannot be used", "'-1'", "command line", "give such a value; 'trainer plan --help' says more"},
      {"plan_tokens_without_end", "plan {}/base.yaml tokens=inf", "", "", 64, "value of 'tokens' cannot be used", "'inf'", "command line", "give such a value; 'trainer plan --help' says more"},
      {"plan_price", "plan {}/base.yaml gpu_hour_price=-1", "", "", 64, "value of 'gpu_hour_price' cannot be used", "'-1'", "command line", "give such a value; 'trainer --help gpu_hour_price' says more"},
      {"plan_of_answers_alone", "plan tiny batch=4", "", "", 64, "batch is a setting of --generate", "a plan of a training", "command line", "give --generate, or leave it out"},
      {"plan_format", "plan tiny --generate dtype=fp9", "", "", 64, "value of 'dtype' cannot be used", "'fp9'", "command line", "did you mean 'fp8'?"},
      {"plan_page", "plan tiny --generate kv_page_tokens=3", "", "", 64, "a page of the KV cache cannot have this size", "3", "", "give a kv_page_tokens of 64 or another power of two"},
      {"plan_share", "plan tiny --generate gpu_memory_utilization=2", "", "", 64, "gpu_memory_utilization is a share of a GPU's memory", "2", "command line", "give a share in this range, or leave gpu_memory_utilization out"},
      {"plan_cache", "plan tiny --generate kv_cache_bytes=8Q", "", "", 64, "value of 'kv_cache_bytes' cannot be used", "'8Q'", "command line", "give a size with a unit from KB to TB or from KiB to TiB"},
      {"plan_batch_that_does_not_divide", "plan {}/base.yaml world=5", "", "", 64, "global_batch_size 24 is not a multiple of the micro-batches of all ranks", "24", "global_batch_size ({}/base.yaml:6)", "global_batch_size: 20"},
      {"bench_batch_that_does_not_divide", "bench tiny {}/base.yaml per_device_train_batch_size=5", "", "", 64, "global_batch_size 24 is not a multiple of the micro-batches of all ranks", "24", "global_batch_size ({}/base.yaml:6)", "per_device_train_batch_size: 4 or 6; or global_batch_size: 20 or 25"},
      {"plan_module", "plan {}/no_such_module.yaml", "", "", 64, "no module of the model is called 'q_prj'", "q_prj", "lora_target ({}/no_such_module.yaml:12), lora_rank (default)", "did you mean 'q_proj'?"},
      {"bench_module", "bench tiny {}/no_such_module.yaml", "", "", 64, "no module of the model is called 'q_prj'", "q_prj", "lora_target ({}/no_such_module.yaml:12), lora_rank (default)", "did you mean 'q_proj'?"},
      {"bench_steps", "bench tiny steps=0", "", "", 64, "value of 'steps' cannot be used", "'0'", "command line", "give such a value; 'trainer bench --help' says more"},
      {"bench_logged", "bench tiny logged=maybe", "", "", 64, "value of 'logged' cannot be used", "'maybe'", "command line", "give such a value; 'trainer bench --help' says more"},
      {"bench_save", "bench tiny save=3QB device=cpu", "", "", 64, "value of 'save' cannot be used", "'3QB'", "command line", "give a size with a unit from KB to TB or from KiB to TiB"},
      {"bench_far_shape", "bench nothing-like-it", "", "", 64, "'nothing-like-it' is neither the folder of a model nor a shape with a name", "", "", "name one of these, or a folder with config.json"},
      {"probe_module", "probe {}/made/model --batch {}/batch.safetensors --out {}/x {}/no_such_module.yaml", "batch.safetensors", "\177\0\0\0\0\0\0\0{\"input_ids\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[0,16]},\"labels\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[16,32]}}\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"sv, 64, "no module of the model is called 'q_prj'", "q_prj", "lora_target ({}/no_such_module.yaml:12), lora_rank (default)", "did you mean 'q_proj'?"},
      {"probe_steps", "probe {}/made/model --batch {}/none --out {}/x --steps 0", "", "", 64, "value of '--steps' cannot be used", "'0'", "command line", "give such a value; 'trainer probe --help' says more"},
      {"generate_price", "generate {}/made/model why --gpu-hour-price -1", "", "", 64, "value of '--gpu-hour-price' cannot be used", "'-1'", "command line", "give such a value; 'trainer generate --help' says more"},
      {"generate_stops", "generate {}/made/model why --stop-id 4 --stop-id -4 --stop-id 5", "", "", 64, "value of '--stop-id' cannot be used", "'-4'", "command line", "give such a value; 'trainer generate --help' says more"},
      {"generate_hottest_retry", "generate {}/made/model --file {}/base.yaml --out {}/x.jsonl --extract (a) --temperature 1 --retries 991", "", "", 64, "--retries makes the temperature too high", "101 after 991 retries", "command line", "lower --retries or --temperature"},
      {"generate_scores_of_a_row", "generate {}/made/model --file {}/base.yaml --n 4096 --logprobs 1000", "", "", 64, "--n x --max-new x --logprobs is above 16,777,216, which is too much for a row", "", "command line", "lower one of them: --logprobs to 16 or less"},
      {"generate_stop_before_a_question", "generate {}/none --stop-id 4 why", "", "", 64, "the folder of the model does not exist", "nothing", "{}/none", "name the folder that holds it"},
      {"generate_cache", "generate {}/made/model why --batch 4096 --max-length 1048576 --device cpu", "", "", 64, "not enough memory for 'KV cache'", "bytes are asked for", "CPU", "lower --batch, --max-length, --max-num-batched-tokens or --kv-cache-bytes"},
      {"generate_temperature", "generate {}/made/model why --temperature hot", "", "", 64, "value of '--temperature' cannot be used", "'hot'", "command line", "give such a value; 'trainer generate --help' says more"},
      {"generate_shard", "generate {}/made/model --file {}/base.yaml --shard 3", "", "", 64, "--shard is not a part of the rows", "3", "command line", "write the part and the number of parts, with a slash between"},
      {"export_format", "export {}/none {}/x --export_dtype float64", "", "", 64, "value of '--export_dtype' cannot be used", "'float64'", "command line", "give such a value; 'trainer export --help' says more"},
      {"export_nowhere", "export {}/none", "", "", 64, "no folder to write is given", "", "command line", "add the folder"},
      {"export_key", "export {}/none {}/x seed=3", "", "", 64, "argument 'seed=3' is not known", "", "command line", "remove it; 'trainer export --help' lists the options"},
      {"verify_folder", "verify --folder", "", "", 64, "'--folder' has no value", "", "command line", "add the value; 'trainer verify --help' says more"},
      {"inspect_option", "inspect {}/none --verfy", "", "", 64, "argument '--verfy' is not known", "", "command line", "did you mean '--verify'?"},
      {"encode_key", "encode {}/made/model seed=3", "", "", 64, "argument 'seed=3' is not known", "", "command line", "remove it; 'trainer encode --help' lists the options"},
      {"compare_option", "compare {}/none --jsn", "", "", 64, "argument '--jsn' is not known", "", "command line", "did you mean '--json'?"},
      {"verl_betas", "{}/verl_betas.yaml", "verl_betas.yaml", "BASEoptim: {betas: 0.9}\n", 64, "value of 'optim.betas' cannot be used", "'0.9'", "{}/verl_betas.yaml:11", "write [0.9, 0.95], or remove it"},
      {"verl_model_dtype", "{}/verl_model_dtype.yaml", "verl_model_dtype.yaml", "BASEmodel: {fsdp_config: {model_dtype: fp8}}\n", 64, "value of 'model.fsdp_config.model_dtype' cannot be used", "'fp8'", "{}/verl_model_dtype.yaml:11", "give one of these, or remove it"},
      {"verl_multiturn", "{}/verl_multiturn.yaml", "verl_multiturn.yaml", "BASEdata: {multiturn: {enable: perhaps}}\n", 64, "value of 'data.multiturn.enable' cannot be used", "'perhaps'", "{}/verl_multiturn.yaml:11", "give such a value, or remove the key"},
      {"axolotl_saves", "{}/axolotl_saves.yaml", "axolotl_saves.yaml", "base_model: m\nsaves_per_epoch: -1\n", 64, "value of 'saves_per_epoch' cannot be used", "'-1'", "{}/axolotl_saves.yaml:2", "correct the value, or remove it"},
      {"verify_flag", "verify --json=x", "", "", 64, "'--json' takes no value", "'x'", "command line", "write --json alone"},
      {"generate_parquet", "generate {}/made/model --file {}/made/data/held_out.jsonl --out {}/answers.parquet", "", "", 64, "--out names a file in .parquet, but rows are written as JSON lines", "", "command line", "give a name that ends in .jsonl"},
      {"plan_card", "plan tiny card=h1000", "", "", 64, "'h1000' is not a known card", "h1000", "command line", "did you mean 'h100'? For another GPU"},
      {"second_place", "{}/base.yaml save_fallback_dir=/proc/nothing", "", "", 64, "save_fallback_dir cannot be written", "cannot make a folder", "/proc/nothing", "name a folder that can be written, or leave save_fallback_dir out"},
      {"no_memory", "plan tiny device=cpu recompute=auto memory=1MiB", "", "", 64, "the run does not fit the memory of its device", " with per_device_train_batch_size=8 recompute=full", "", "change one after another, and keep the earlier changes:"},
};
// clang-format on

inline std::string replaced(std::string text, const std::string& mark, const std::string& value) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size())
    text.replace(at, mark.size(), value);
  return text;
}

class Folder {
 public:
  Folder() {
    // The small model and its data, under a name that messages contain.
    fs::create_directory_symlink(fs::path(Task::get().model()).parent_path(), folder_ / "made");
    fs::create_directories(folder_ / "cwd");
    spill(folder_ / "base.yaml", filled("BASE"));
    for (const Wrong& wrong : kInputs) {
      if (!wrong.file.empty()) write(wrong.file, wrong.contents);
    }
  }
  void write(std::string_view file, std::string_view contents) const {
    spill(folder_ / std::string(file), filled(contents));
  }
  std::string filled(std::string_view view) const {
    const std::string text(view);
    const std::string base =
        "model_name_or_path: {}/made/model\ntrain_from_scratch: true\ntemplate: chatml\n"
        "dataset: {}/made/data/train.jsonl\ncutoff_len: 128\nglobal_batch_size: 24\n"
        "per_device_train_batch_size: 4\nmax_steps: 12\ndevice: cpu\noutput_dir: {}/out\n";
    return replaced(replaced(replaced(text, "BASE", base), "TRAINER", OCTET_TRAINER), "{}", folder_.path());
  }
  std::string shortened(const std::string& text) const {
    return replaced(replaced(text, folder_.path(), "{}"), OCTET_TRAINER, "TRAINER");
  }
  Outcome run(std::string_view arguments) const {
    std::string words;
    for (const std::string& word : split(filled(arguments), ' ')) words += " \"" + word + "\"";
    return shell("cd " + (folder_ / "cwd") + " && " OCTET_TRAINER + words);
  }
  // Returns every file and folder with its time.
  std::set<std::string> listing() const {
    std::set<std::string> lines;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      const auto time = entry.is_regular_file() ? entry.last_write_time().time_since_epoch().count() : 0;
      lines.insert(entry.path().string() + " " + std::to_string(time));
    }
    return lines;
  }
  // Returns the entries of only one listing.
  static std::string difference(const std::set<std::string>& a, const std::set<std::string>& b) {
    std::string text;
    std::set<std::string> both;
    std::ranges::set_symmetric_difference(a, b, std::inserter(both, both.end()));
    for (const std::string& line : both) text += line + "\n";
    return text;
  }

 private:
  TemporaryFolder folder_{"wrong_inputs"};
};

}  // namespace octet::test::wrong_inputs
