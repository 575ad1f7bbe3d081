// The fixes in the messages of wrong inputs: after the fix, the input is accepted.
#include "cli/wrong_inputs.h"
#include "octet/base/error.h"

namespace octet::test::wrong_mends_test {
namespace {

// A row of the table after its fix. Empty fields keep the row's values.
struct Mended {
  std::string_view name;
  std::string_view arguments;  ///< "": lint with the arguments of the row
  std::string_view contents;   ///< contents of the row's file; "": unchanged
};

// clang-format off
constexpr Mended kMended[] = {
      {"typo_of_a_key", "", "BASElearning_rate: 1e-4\n"},
      {"a_key_twice", "", "BASE"},
      {"two_documents", "", "BASEseed: 4\n"},
      {"a_tag", "", "BASEseed: 3\n"},
      {"no_utf8", "", "BASErun_name: \303\251\n"},
      {"octal", "", "BASEseed: 10\n"},
      {"tokens_and_pairs", "", "BASEstage: sft\nuse_dft_loss: true\n"},
      {"two_token_losses", "", "BASEuse_dft_loss: true\n"},
      {"stage_ppo", "", "BASEstage: sft\n"},
      {"teacher_without_kd", "", "BASE"},
      {"smoothing_with_a_teacher", "", "BASElabel_smoothing_factor: 0.1\n"},
      {"stage_unknown", "", "BASEstage: sft\n"},
      {"adapters_of_another_kind", "", "BASEfinetuning_type: lora\n"},
      {"optimizer_sgd", "", "BASEoptim_dtype: bf16\n"},
      {"optimizer_unknown", "", "BASEoptim: adamw\n"},
      {"scheduler_unknown", "", "BASElr_scheduler_type: cosine\n"},
      {"plateau", "", "BASElr_scheduler_type: reduce_lr_on_plateau\neval_strategy: steps\nval_size: 0.1\n"},
      {"plateau", "", "BASElr_scheduler_type: reduce_lr_on_plateau\neval_strategy: epoch\neval_dataset: {}/made/data/held_out.jsonl\n"},
      {"plateau", "", "BASElr_scheduler_type: cosine\n"},
      {"plateau_by_rouge", "", "BASElr_scheduler_type: reduce_lr_on_plateau\nmetric_for_best_model: eval_loss\nval_size: 0.1\neval_strategy: steps\n"},
      {"plateau_by_rouge", "", "BASElr_scheduler_type: cosine\nmetric_for_best_model: rougeL\nval_size: 0.1\neval_strategy: steps\n"},
      {"scheduler_without_argument", "", "BASElr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr_rate: 0.1}\n"},
      {"checkpointing_on_and_off", "", "BASEgradient_checkpointing: true\n"},
      {"checkpointing_on_and_off", "", "BASEdisable_gradient_checkpointing: true\n"},
      {"fp16", "", "BASEbf16: true\n"},
      {"label_smoothing", "", "BASElabel_smoothing_factor: 0.1\n"},
      {"fsdp", "", "BASEzero_stage: 3\n"},
      {"asft", "", "BASEuse_dft_loss: true\n"},
      {"galore", "", "BASE"},
      {"group_by_length", "", "BASEpacking: true\n"},
      {"predict_with_generate", "", "BASE"},
      {"feedback_without_rounding", "", "BASEerror_feedback: true\nreduce_dtype: int8\n"},
      {"feedback_without_rounding", "", "BASEerror_feedback: true\nreduce_dtype: fp8\n"},
      {"feedback_without_rounding", "", "BASE"},
      {"gather_at_stage_0", "", "BASEgather_dtype: bf16\nzero_stage: 1\n"},
      {"gather_at_stage_0", "", "BASEgather_dtype: bf16\nzero_stage: 3\n"},
      {"gather_at_stage_0", "", "BASE"},
      {"bf16_states_without_bf16", "", "BASEparam_dtype: bf16\nbf16: true\n"},
      {"bf16_states_without_bf16", "", "BASEparam_dtype: fp32\n"},
      {"weights_of_one_set", "", "BASE"},
      {"best_of_nothing", "", "BASEload_best_model_at_end: true\neval_strategy: steps\nval_size: 0.1\n"},
      {"best_of_nothing", "", "BASEload_best_model_at_end: true\neval_strategy: epoch\nsave_strategy: epoch\neval_dataset: {}/made/data/held_out.jsonl\n"},
      {"best_of_nothing", "", "BASEload_best_model_at_end: false\n"},
      {"best_by_rouge", "", "BASEload_best_model_at_end: true\nmetric_for_best_model: eval_loss\nval_size: 0.1\neval_strategy: steps\n"},
      {"best_by_rouge", "", "BASEload_best_model_at_end: false\nmetric_for_best_model: rougeL\nval_size: 0.1\neval_strategy: steps\n"},
      {"best_by_accuracy", "", "BASEload_best_model_at_end: true\nmetric_for_best_model: eval_accuracy\ncompute_accuracy: true\nval_size: 0.1\neval_strategy: steps\n"},
      {"early_without_evaluations", "", "BASEearly_stopping_steps: 3\neval_strategy: steps\nval_size: 0.1\n"},
      {"early_without_evaluations", "", "BASE"},
      {"best_without_evaluations", "", "BASEsave_strategy: best\neval_strategy: epoch\nval_size: 0.1\n"},
      {"best_without_evaluations", "", "BASEsave_strategy: steps\n"},
      {"start_without_evaluations", "", "BASEeval_on_start: true\nval_size: 2\neval_strategy: steps\n"},
      {"start_without_evaluations", "", "BASEval_size: 2\n"},
      {"evaluation_of_nothing", "", "BASEeval_strategy: steps\nval_size: 0.1\n"},
      {"evaluation_of_nothing", "", "BASEeval_strategy: no\n"},
      {"held_out_twice", "", "BASEval_size: 0.1\n"},
      {"held_out_twice", "", "BASEeval_dataset: {}/made/data/held_out.jsonl\n"},
      {"eight_bits", "", "BASEfinetuning_type: lora\nfp8: true\n"},
      {"eight_bits", "", "BASEfinetuning_type: lora\nquantization_bit: 4\n"},
      {"four_bits_of_all", "", "BASEfinetuning_type: lora\nquantization_bit: 4\n"},
      {"four_bits_of_all", "", "BASE"},
      {"rank_without_adapters", "", "BASEfinetuning_type: lora\nlora_rank: 8\n"},
      {"rank_without_adapters", "", "BASE"},
      {"no_such_module", "{}/no_such_module.yaml", "BASEfinetuning_type: lora\nlora_target: [q_proj]\n"},
      {"fp8_recipe", "", "BASEfp8: true\nfp8_recipe: delayed\n"},
      {"fp8_format", "", "BASEfp8: true\nfp8_format: e4m3\n"},
      {"pack_factor_without_cuts", "", "BASEpack_factor: 2\ntruncation: cut\n"},
      {"pack_factor_without_cuts", "", "BASEtruncation: error\n"},
      {"batch_that_does_not_divide", "lint {}/base.yaml per_device_train_batch_size=4", ""},
      {"batch_that_does_not_divide", "lint {}/base.yaml per_device_train_batch_size=6", ""},
      {"batch_that_does_not_divide", "lint {}/base.yaml per_device_train_batch_size=5 global_batch_size=20", ""},
      {"batch_that_does_not_divide", "lint {}/base.yaml per_device_train_batch_size=5 global_batch_size=25", ""},
      {"two_sizes_of_a_step", "{}/two_sizes_of_a_step.yaml", "BASE"},
      {"two_sizes_of_a_step", "{}/two_sizes_of_a_step.yaml global_batch_size=null", ""},
      {"tokens_of_no_folder", "{}/tokens_of_no_folder.yaml", "BASEtokenized_path: {}/mended/tokens\n"},
      {"deepspeed_key", "", "BASEdeepspeed: {zero_optimization: {stage: 1}}\n"},
      {"deepspeed_fp16", "", "BASEdeepspeed: {bf16: {enabled: true}}\n"},
      {"deepspeed_disagrees", "", "BASEdeepspeed: {zero_optimization: {stage: auto}}\nzero_stage: 2\n"},
      {"deepspeed_disagrees", "", "BASEdeepspeed: {zero_optimization: {stage: 2}}\nzero_stage: 2\n"},
      {"deepspeed_nvme", "", "BASEdeepspeed: {zero_optimization: {offload_optimizer: {device: cpu}}}\n"},
      {"deepspeed_fp8", "", "BASEfp8: true\n"},
      {"verl_sequences", "", "BASEulysses_sequence_parallel_size: 1\n"},
      {"sft_play_section", "", "BASE"},
      {"interpolation", "", "BASErun_name: ${logging_dir}\nlogging_dir: logs\n"},
      {"interpolation", "lint {}/interpolation.yaml logging_dir=logs", "BASErun_name: ${logging_dir}\n"},
      {"axolotl_typo", "", "base_model: {}/made/model\ntrain_from_scratch: true\nchat_template: chatml\noutput_dir: {}/out\nmicro_batch_size: 4\nsequence_len: 128\ndatasets:\n  - path: {}/made/data/train.jsonl\n    type: chat_template\n"},
      {"torchtune", "", "BASE"},
      {"two_configs", "lint {}/base.yaml seed=3", ""},
      {"command_unknown", "inspect --help", ""},
      {"plan_option", "plan {}/base.yaml --json", ""},
      {"plan_setting", "plan {}/base.yaml world=8 global_batch_size=32", ""},
      {"plan_setting_with_hyphens", "plan {}/base.yaml --world=8 global_batch_size=32", ""},
      {"plan_key", "plan {}/base.yaml seed=8", ""},
      {"plan_world", "plan {}/base.yaml world=1", ""},
      {"rate_in_words", "", "BASElearning_rate: 1.0e-4\n"},
      {"rate_not_a_number", "", "BASElearning_rate: 1.0e-4\n"},
      {"rate_infinite", "", "BASElearning_rate: 1.0e-4\n"},
      {"rate_negative", "", "BASElearning_rate: 1e-4\n"},
      {"sexagesimal", "", "BASElogging_steps: 90\n"},
      {"half_a_step", "lint {}/base.yaml per_device_train_batch_size=2", ""},
      {"a_word_for_a_flag", "", "BASEbf16: true\n"},
      {"a_list_for_a_number", "", "BASEseed: 3\n"},
      {"a_map_for_a_word", "", "BASErun_name: a\n"},
      {"too_large", "", "BASElogging_steps: 1e3\n"},
      {"cutoff_of_one", "lint {}/base.yaml cutoff_len=64", ""},
      {"zero_stage_four", "", "BASEzero_stage: 3\n"},
      {"adapters_of_rank_0", "", "BASEfinetuning_type: lora\nlora_rank: 1\n"},
      {"save_steps_0", "", "BASEsave_steps: 1\n"},
      {"beta_of_one", "", "BASEadam_beta2: 0.95\n"},
      {"device", "", "BASEuse_cpu: true\n"},
      {"recompute", "", "BASErecompute: none\n"},
      {"deterministic", "", "BASEdeterministic: true\n"},
      {"deepspeed_stage", "", "BASEdeepspeed: {zero_optimization: {stage: 3}}\n"},
      {"sft_play_mode", "", "BASEtuning: {mode: lora}\n"},
      {"pack_factor_0", "--help pack_factor", ""},
      {"eval_batch_0", "lint {}/base.yaml per_device_eval_batch_size=1", ""},
      {"key_without_value", "lint {}/base.yaml --seed 3", ""},
      {"a_stray_word", "lint {}/base.yaml seed=3", ""},
      {"plan_memory", "plan tiny device=cpu memory=512GiB", ""},
      {"plan_world_with_hyphens", "plan {}/base.yaml --world 2", ""},
      {"plan_world_with_both", "plan {}/base.yaml --world=2", ""},
      {"plan_world_without_value", "plan {}/base.yaml --world 2", ""},
      {"plan_world_of_nothing", "plan {}/base.yaml world=2", ""},
      {"plan_world_twice", "plan {}/base.yaml --world=2", ""},
      {"plan_tokens", "plan {}/base.yaml tokens=1e6 max_steps=-1", ""},
      {"plan_tokens_without_end", "plan tiny tokens=1e6 device=cpu", ""},
      {"plan_price", "plan {}/base.yaml gpu_hour_price=2", ""},
      {"plan_of_answers_alone", "plan tiny --generate batch=4 device=cpu", ""},
      {"plan_of_answers_alone", "plan tiny device=cpu", ""},
      {"plan_format", "plan tiny --generate dtype=fp8 device=cpu", ""},
      {"plan_page", "plan tiny --generate kv_page_tokens=64 device=cpu", ""},
      {"plan_share", "plan tiny --generate gpu_memory_utilization=0.5 device=cuda", ""},
      {"plan_share", "plan tiny --generate device=cpu", ""},
      {"plan_cache", "plan tiny --generate kv_cache_bytes=8GiB device=cpu", ""},
      {"plan_batch_that_does_not_divide", "plan {}/base.yaml world=5 global_batch_size=20", ""},
      {"bench_batch_that_does_not_divide", "bench tiny {}/base.yaml --steps 1 --warmup 0 per_device_train_batch_size=6", ""},
      {"plan_module", "plan {}/no_such_module.yaml lora_target=q_proj", ""},
      {"bench_module", "bench tiny {}/no_such_module.yaml lora_target=q_proj --steps 1 --warmup 0", ""},
      {"bench_steps", "bench tiny steps=1 warmup=0 device=cpu", ""},
      {"bench_logged", "bench tiny logged=true steps=1 warmup=0 device=cpu", ""},
      {"bench_save", "bench tiny save=1MiB device=cpu output_dir={}/mended/saves", ""},
      {"bench_far_shape", "bench tiny --steps 1 --warmup 0 device=cpu", ""},
      {"probe_module", "probe {}/made/model --batch {}/batch.safetensors --out {}/probed.safetensors {}/no_such_module.yaml lora_target=q_proj", ""},
      {"probe_steps", "probe --help", ""},
      {"generate_price", "generate --help", ""},
      {"generate_stops", "generate --help", ""},
      {"generate_temperature", "generate --help", ""},
      {"export_format", "export --help", ""},
      {"export_key", "export --help", ""},
      {"verify_folder", "verify --help", ""},
      {"inspect_option", "inspect --help", ""},
      {"encode_key", "encode --help", ""},
      {"compare_option", "compare --help", ""},
      {"plan_shape", "plan llama-3.1-8b device=cpu memory=512GiB", ""},
      {"export_size", "export --help", ""},
      {"generate_without_model", "generate --help", ""},
      {"bench_shape", "bench tiny --steps 1 --warmup 0 device=cpu", ""},
      {"help_of_nothing", "--help learning_rate", ""},
      {"data_missing", "lint {}/base.yaml dataset={}/made/data/train.jsonl", ""},
      {"data_missing", "lint {}/base.yaml dataset=train.jsonl dataset_dir={}/made/data", ""},
      {"data_empty", "{}/base.yaml dataset={}/empty.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"why\"}, {\"role\": \"assistant\", \"content\": \"so\"}]}\n"},
      {"data_questions", "{}/base.yaml dataset={}/questions.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"why\"}, {\"role\": \"assistant\", \"content\": \"so\"}]}\n"},
      {"data_not_json", "{}/base.yaml dataset={}/binary.jsonl max_broken_rows=0", "{\"messages\": [{\"role\": \"user\", \"content\": \"why\"}, {\"role\": \"assistant\", \"content\": \"so\"}]}\n"},
      {"data_unknown", "lint {}/base.yaml dataset=near dataset_dir={}", "{\"near\": {\"file_name\": \"made/data/train.jsonl\", \"formatting\": \"sharegpt\", \"columns\": {\"messages\": \"messages\"}, \"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\", \"user_tag\": \"user\", \"assistant_tag\": \"assistant\"}}}"},
      {"data_too_long", "{}/base.yaml cutoff_len=512 truncation=error", ""},
      {"data_too_long", "{}/base.yaml cutoff_len=64 truncation=cut", ""},
      {"messages_column", "lint {}/base.yaml messages_column=messages", ""},
      {"template_unknown", "lint {}/base.yaml template=chatml", ""},
      {"template_file_missing", "lint {}/base.yaml template=chatml", ""},
      {"template_file_torn", "", "{{ user }}\n{% if system %}{{ system }}{% endif %}"},
      {"template_file_filter", "", "{{ user }}\n{{ user | trim }}"},
      {"template_file_variable", "", "{{ user }} {{ system }}"},
      {"template_file_answer", "", "{{ user }} "},
      {"template_file_nothing", "", "{{ user }}:"},
      {"template_file_apart", "", "{% for m in messages %}{{ m.content }}{% endfor %}"},
      {"template_file_option", "lint {}/base.yaml template={}/template_file_option.jinja", "{{ user }}:"},
      {"sft_play_template", "", "model_name_or_path: {}/made/model\ntrain_from_scratch: true\ndata: {template_path: chatml}\ndataset: {}/made/data/train.jsonl\nmax_steps: 1\ndevice: cpu\noutput_dir: {}/out\n"},
      {"model_missing", "lint {}/base.yaml model_name_or_path={}/made/model", ""},
      {"no_weights", "lint {}/base.yaml train_from_scratch=true", ""},
      {"resume_nothing", "{}/base.yaml", ""},
      {"output_is_a_file", "{}/base.yaml output_dir={}/mended/other", ""},
      {"output_in_proc", "{}/base.yaml output_dir={}/mended/third", ""},
      {"adapter_missing", "lint {}/base.yaml finetuning_type=lora", ""},
      {"excess", "", "BASEtruncation: cut\n"},
      {"mixed_trainers", "", "BASEtrain: {epochs: 1, seed: 3, save_steps: 5}\n"},
      {"mixed_trainers", "", "BASEtrain: {epochs: 1, seed: 3}\nsave_steps: 5\n"},
      {"mixed_command_line", "lint {}/mixed_command_line.yaml", ""},
      {"sft_play_typo", "", "BASEmode: sft\nmodel: {max_seq_len: 64}\n"},
      {"verl_typo", "", "BASEoptim: {lr: 1e-4}\ndata: {truncation: error}\n"},
      {"verl_key_of_axolotl", "", "BASEoptim: {lr: 1e-4}\nnum_train_epochs: 2\n"},
      {"verl_key_of_axolotl", "", "BASEoptim: {lr: 1e-4}\ntrainer: {total_epochs: 2}\n"},
      {"own_key_of_axolotl", "lint {}/base.yaml num_train_epochs=2", ""},
      {"verl_prompt_alone", "", "BASE"},
      {"verl_held_out_twice", "", "BASEval_size: 0.1\n"},
      {"verl_held_out_twice", "", "BASEdata: {val_files: {}/made/data/held_out.jsonl}\n"},
      {"verl_test_freq", "", "BASEtrainer: {test_freq: 5}\nval_size: 0.1\n"},
      {"verl_test_freq", "", "BASEtrainer: {test_freq: 5}\neval_dataset: {}/made/data/held_out.jsonl\n"},
      {"verl_test_freq", "", "BASE"},
      {"verify_flag", "verify --help", ""},
      {"plan_card", "plan tiny card=h100", ""},
      {"second_place", "{}/base.yaml save_fallback_dir={}/mended/second_place", ""},
      {"a_tab", "", "BASEseed: 3\n"},
      {"a_list", "", "BASEseed: 3\n"},
      {"torn_yaml", "", "BASE"},
      {"torn_json", "", "{\"model_name_or_path\": \"{}/made/model\", \"train_from_scratch\": true, \"template\": \"chatml\", \"dataset\": \"{}/made/data/train.jsonl\", \"output_dir\": \"{}/out\", \"max_steps\": 2, \"device\": \"cpu\"}"},
      {"scheduler_argument", "", "BASElr_scheduler_type: cosine\n"},
      {"all_held_out", "{}/all_held_out.yaml", "BASEval_size: 10\n"},
      {"deepspeed_missing", "", "BASEzero_stage: 1\n"},
      {"verl_strategy", "", "BASEmodel: {strategy: fsdp2}\n"},
      {"verl_strategy", "", "BASE"},
      {"verl_truncation", "", "BASEdata: {truncation: error}\n"},
      {"verl_truncation", "", "BASEtruncation: cut\n"},
      {"verl_betas", "", "BASEoptim: {betas: [0.9, 0.95]}\n"},
      {"verl_model_dtype", "", "BASEmodel: {fsdp_config: {model_dtype: bf16}}\n"},
      {"verl_model_dtype", "", "BASE"},
      {"verl_multiturn", "", "BASEdata: {multiturn: {enable: true}}\n"},
      {"sft_play_split", "", "BASE"},
      {"sft_play_split_of_all", "{}/sft_play_split_of_all.yaml", "BASEdata: {split: {train_ratio: 0.9}}\n"},
      {"include_missing", "", "BASE"},
      {"nothing_to_train", "", "BASE"},
      {"config_missing", "lint {}/base.yaml", ""},
      {"data_broken", "{}/base.yaml dataset={}/broken.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"why\"}, {\"role\": \"assistant\", \"content\": \"so\"}]}\n"},
};
// clang-format on

// Rows with a fix that a test cannot apply: it needs another file to fetch, a checkpoint, trained weights,
// hosts, or a table of columns. Also rows with numbers that wrong_input_test.cc checks.
constexpr std::string_view kElsewhere[] = {
    // The first five rows need the scores of a teacher (teachers_test.cc).
    "kd_without_teacher",
    "teacher_in_the_process",
    "streamed_teacher",
    "teacher_of_joined_rows",
    "replayed_teacher",
    // The rows of the next four would have to be pairs or judged answers (preferences_test.cc,
    // judgements_test.cc).
    "smoothing_of_hinge",
    "adapters_off_without_adapters",
    "streamed_pairs",
    "replayed_judgements",
    "torchtitan",
    "command_predict",
    "command_convert",
    "command_upload",
    "command_download",
    "inspect_nothing",
    "inspect_a_file",
    "compare_one",
    "export_nothing",
    "encode_nothing",
    "generate_of_nothing",
    "score_and_match",
    "rouge_without_file",
    "data_columns",
    "data_gzip",
    "data_parquet",
    "data_folder",
    "model_no_config",
    "resume_missing",
    "supervise_order",
    "supervise_hosts",
    "supervise_nothing",
    "no_memory",
    "generate_shard",
    "export_nowhere",
    "axolotl_adapter",
    "axolotl_saves",
    "config_is_a_folder",
    "model_torn_config",
    "model_architecture",
    "generate_parquet",
    "generate_hottest_retry",
    "generate_scores_of_a_row",
    "generate_stop_before_a_question",
    "generate_cache"};

const wrong_inputs::Wrong& row_of(std::string_view name) {
  const auto* row = std::ranges::find(wrong_inputs::kInputs, name, &wrong_inputs::Wrong::name);
  check(row != std::end(wrong_inputs::kInputs), "a mend of no row");
  return *row;
}

bool refuses(const Outcome& run, const wrong_inputs::Wrong& row, const wrong_inputs::Folder& folder) {
  return folder.shortened(run.err).find("error: " + std::string(row.what)) != std::string::npos;
}

TEST(WholeWrongInputs, AreTakenWhenTheyAreMended) {
  const wrong_inputs::Folder folder;
  int number = 0;
  for (const Mended& mended : kMended) {
    const wrong_inputs::Wrong& row = row_of(mended.name);
    const std::string before = "lint " + std::string(row.arguments);
    const std::string arguments(mended.arguments.empty() ? before : mended.arguments);
    SCOPED_TRACE(std::string(mended.name) + ": trainer " + arguments);
    // If lint does not detect an error, it cannot confirm the fix.
    if (mended.arguments.empty()) {
      EXPECT_TRUE(refuses(folder.run(before), row, folder)) << row.what;
    }
    if (!mended.contents.empty()) folder.write(row.file, mended.contents);
    const bool trains = arguments.starts_with("{}");
    const std::string more = arguments.find("output_dir=") != std::string::npos
                                 ? ""
                                 : " output_dir={}/mended/" + std::to_string(++number);
    const Outcome run = folder.run(trains ? arguments + " max_steps=1" + more : arguments);
    EXPECT_EQ(errors_in(run), 0) << run.both();
    EXPECT_LE(run.code, arguments.starts_with("lint ") ? 1 : 0) << run.both();
    if (!mended.contents.empty()) folder.write(row.file, row.contents);
  }
}

TEST(WrongInputs, HaveAMendEach) {
  for (const wrong_inputs::Wrong& row : wrong_inputs::kInputs) {
    const bool mended = std::ranges::find(kMended, row.name, &Mended::name) != std::end(kMended);
    const bool elsewhere = std::ranges::find(kElsewhere, row.name) != std::end(kElsewhere);
    EXPECT_EQ(mended || elsewhere, !row.fix.empty() || mended) << row.name;
    EXPECT_FALSE(mended && elsewhere) << row.name;
  }
}

}  // namespace
}  // namespace octet::test::wrong_mends_test
