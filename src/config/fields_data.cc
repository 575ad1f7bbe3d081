// Keys of the model and the data.
#include "table.h"

namespace octet::config {
namespace {

constexpr const char* kOnlyTraining =
    "use pt (pre-training), sft (supervised fine-tuning), kd (distillation), dpo (preferences between two "
    "answers), kto (judged answers) or rm (a reward model)";

void add_model(Table& t) {
  t.group("Model");
  t.used("model_name_or_path", &Config::model_name_or_path,
         "Folder of a Hugging Face model (config.json, tokenizer.json, *.safetensors), or its hub name "
         "(owner/name) if the local cache of Hugging Face has it. Nothing is downloaded.")
      .decides_numbers();
  t.used("train_from_scratch", &Config::train_from_scratch,
         "Start from random weights; only config.json and the tokenizer are read.")
      .decides_numbers();
  t.used("finetuning_type", &Config::finetuning_type,
         "Which parameters are trained: full means all, lora low-rank adapters, qlora the same with "
         "quantization_bit: 4, freeze some blocks, or modules inside or outside of them.")
      .one_of({"full", "lora", "qlora", "freeze", "oft"})
      .refuse("oft", "these adapters are not built; train others with finetuning_type: lora")
      .decides_numbers();
}

void add_adapters(Table& t) {
  t.group("Adapters");
  t.used("lora_rank", &Config::lora_rank, "Rank of an adapter: columns of B, rows of A.")
      .range(1, 1 << 20)
      .decides_numbers();
  t.used("lora_alpha", &Config::lora_alpha,
         "B(Ax) is multiplied by lora_alpha / lora_rank. null: twice the rank.")
      .decides_numbers();
  t.used("lora_dropout", &Config::lora_dropout,
         "Share of the inputs of an adapter that training drops, at random by seed, step, sample and "
         "position: the same on any number of ranks.")
      .range(0, 1)
      .decides_numbers();
  t.used("lora_target", &Config::lora_target,
         "Modules with an adapter: all (every linear module of the blocks), names (q_proj, v_proj), or one "
         "regular expression for whole names.")
      .details("mlp.experts.gate_up_proj and mlp.experts.down_proj are parameters of all experts.")
      .decides_numbers();
  t.used("use_rslora", &Config::use_rslora, "Multiply by lora_alpha / sqrt(lora_rank) instead.")
      .decides_numbers();
  t.used("use_dora", &Config::use_dora,
         "Also train a magnitude for each output, and scale the rows of the adapted weight to it (DoRA).")
      .decides_numbers();
  t.used("loraplus_lr_ratio", &Config::loraplus_lr_ratio,
         "Learning rate of B and of DoRA magnitudes, as a multiple of learning_rate (LoRA+). null: 1.")
      .range(0, 1e6)
      .decides_numbers();
  t.used("additional_target", &Config::additional_target,
         "Modules that are trained as a whole in addition to adapters: embed_tokens, lm_head, and gate, the "
         "routers of experts.")
      .decides_numbers();
  t.used("adapter_name_or_path", &Config::adapter_name_or_path,
         "Folders of PEFT adapters, with commas between. All except the last are added to the base. Training "
         "continues the last one with its configuration.")
      .decides_numbers();
  t.used("create_new_adapter", &Config::create_new_adapter,
         "Add the last of adapter_name_or_path to the base too, and train a new adapter.")
      .decides_numbers();
}

void add_freezing(Table& t) {
  t.group("Freezing");
  t.used("freeze_trainable_layers", &Config::freeze_trainable_layers,
         "With finetuning_type: freeze, the number of trained blocks at the end; below 0, at the beginning.")
      .range(-(1 << 20), 1 << 20)
      .decides_numbers();
  t.used("freeze_trainable_modules", &Config::freeze_trainable_modules,
         "Trained modules of these blocks: self_attn, mlp, input_layernorm, …, or all.")
      .decides_numbers();
  t.used("freeze_extra_modules", &Config::freeze_extra_modules,
         "Trained modules outside of the blocks: embed_tokens, norm, lm_head.")
      .decides_numbers();
}

void add_quantisation(Table& t) {
  t.group("Quantised base");
  t.used("quantization_bit", &Config::quantization_bit,
         "4: with adapters, the linear layers of the blocks are stored in NF4 (QLoRA), quantised when they "
         "are loaded. null: in the format of the GEMMs, or of a quantised folder.")
      .decides_numbers();
  t.used("quantization_type", &Config::quantization_type, "The 4-bit format; only nf4 is built.")
      .one_of({"nf4", "fp4"})
      .refuse("fp4", "nf4 fits weights better with the same memory")
      .decides_numbers();
  t.used("double_quantization", &Config::double_quantization,
         "Store the scales of NF4 in 8 bits: 0.516 bytes per weight, not 0.5625.")
      .decides_numbers();
}

void add_format(Table& t) {
  t.group("Data");
  t.used("stage", &Config::stage,
         "sft trains the answers of conversations, pt the whole text, kd answers with a teacher, dpo "
         "preferences between two answers, kto judged answers, rm a reward model on pairs of answers.")
      .one_of({"sft", "pt", "rm", "ppo", "dpo", "kto", "kd"})
      .refuse("ppo", kOnlyTraining)
      .decides_numbers();
  t.used("template", &Config::template_name,
         "Chat template: llama3, qwen, chatml, ..., or a file in Jinja (.jinja, .jinja2, .j2). null: the "
         "built-in template that writes like the model's, if there is one. Plain text needs none.")
      .details("A file in Jinja is a chat template, or the prompt of one question.")
      .decides_numbers();
  t.used("default_system", &Config::default_system,
         "System message of conversations without one; null: the message of the template.")
      .decides_numbers();
  t.used("enable_thinking", &Config::enable_thinking,
         "Whether templates of reasoning models keep room for thoughts. Other templates ignore it.")
      .decides_numbers();
  t.used("preserve_thinking", &Config::preserve_thinking,
         "With mask_history: keep the thoughts of earlier answers, which templates of reasoning models drop.")
      .decides_numbers();
  t.used("tool_format", &Config::tool_format,
         "Format of tools and calls, instead of the template's: default, glm4, glm4_moe, llama3, mistral, "
         "qwen, qwen3_5, seed_oss.")
      .decides_numbers();
  t.used("split_special_tokens", &Config::split_special_tokens,
         "Treat special tokens in texts, messages and system messages as text. Special tokens of the "
         "template stay tokens.")
      .decides_numbers();
  t.used("train_on_prompt", &Config::train_on_prompt, "Train the prompts too, not only the answers.")
      .decides_numbers();
  t.used("mask_history", &Config::mask_history, "Train only the last answer of a conversation.")
      .decides_numbers();
}

void add_sets(Table& t) {
  t.used("dataset", &Config::dataset,
         "Training data: names in dataset_dir/dataset_info.json, paths, globs, or hub names (owner/name) in "
         "the cache of Hugging Face. A list, or separated by commas.")
      .decides_numbers();
  t.used("dataset_dir", &Config::dataset_dir, "Folder of dataset_info.json and of relative paths.");
  t.used("eval_dataset", &Config::eval_dataset, "Evaluation data, written like dataset; excludes val_size.");
  t.used("dataset_train_split", &Config::dataset_train_split,
         "Split of the folders and hub data sets in dataset; null: train. An entry of dataset_info.json with "
         "a split keeps its split.")
      .decides_numbers();
  t.used("dataset_test_split", &Config::dataset_test_split,
         "Split of the folders and hub data sets in eval_dataset; null: validation, else test, else train.");
  t.used("messages_column", &Config::messages_column,
         "Column with conversations, for paths in dataset and eval_dataset. null: rows are recognised by the "
         "names of their columns.")
      .decides_numbers();
  t.used("prompt_column", &Config::prompt_column,
         "Column with questions, for rows with one question and one answer; needs response_column.")
      .decides_numbers();
  t.used("response_column", &Config::response_column,
         "Column with answers, for rows with one question and one answer; needs prompt_column.")
      .decides_numbers();
  t.used("val_size", &Config::val_size,
         "Samples held out of dataset for evaluation: a count, or a fraction if below 1.")
      .at_least(0)
      .decides_numbers();
  t.used("max_samples", &Config::max_samples, "Use only the first samples of each dataset.")
      .at_least(1)
      .decides_numbers();
  t.used("max_broken_rows", &Config::max_broken_rows,
         "Unreadable rows (broken JSON, bytes that are not UTF-8) that are allowed. They are counted, named "
         "and left out. More end the run.")
      .at_least(0);
  t.used("mix_strategy", &Config::mix_strategy,
         "How datasets are combined: concat (one after another), or rows in turn by interleave_probs.")
      .details(
          "interleave_under ends with the first dataset that runs out. interleave_over ends when all have "
          "run out, and repeats short ones. interleave_once ends when all have run out, and uses each row "
          "once.")
      .one_of({"concat", "interleave_under", "interleave_over", "interleave_once"})
      .decides_numbers();
  t.used("interleave_probs", &Config::interleave_probs,
         "Weight of each dataset for interleaving: a list or separated by commas; null: equal turns.")
      .decides_numbers();
}

void add_sequence(Table& t) {
  t.used("cutoff_len", &Config::cutoff_len, "Longest sequence, and length of a packed sequence, in tokens.")
      .range(2, 16777216)
      .alias("max_seq_length")
      .decides_numbers();
  t.used("truncation", &Config::truncation,
         "For rows longer than cutoff_len. cut: shorten questions and answers in proportion, and report the "
         "number. error: end the run before its first step, or at the row (streaming).")
      .one_of({"cut", "error"});
  t.used("pack_factor", &Config::pack_factor,
         "At most this many times cutoff_len tokens of a plain text are trained; the rest is left out. null: "
         "all tokens.")
      .range(1, 1 << 20)
      .decides_numbers();
  t.used("packing", &Config::packing,
         "Put several samples into one sequence; they never see each other. Default: only with stage pt.")
      .decides_numbers();
  t.used(
       "neat_packing", &Config::neat_packing,
       "Like packing. Samples see each other only with packing_strategy: llamafactory and without this key.")
      .decides_numbers();
  t.used("packing_strategy", &Config::packing_strategy,
         "best_fit packs the whole set, separates samples and loses no token. llamafactory packs samples in "
         "batches of rows, joins texts and cuts blocks, and drops remainders.")
      .details("Without packing, llamafactory cuts texts to cutoff_len.")
      .one_of({"best_fit", "llamafactory"})
      .decides_numbers();
  t.used("preprocessing_batch_size", &Config::preprocessing_batch_size,
         "Rows that packing_strategy: llamafactory packs together, or that exchange their answers with "
         "stage: kto.")
      .range(1, 1 << 30)
      .decides_numbers();
  t.used("disable_shuffling", &Config::disable_shuffling, "Train the samples in the order of the files.")
      .decides_numbers();
  t.used("preprocessing_num_workers", &Config::preprocessing_num_workers,
         "Tokenising threads per rank; null: the cores of the rank.")
      .range(1, 4096);
  t.used("streaming", &Config::streaming,
         "Tokenise during training, so that the data need not fit in memory. Rows are packed and shuffled in "
         "windows of buffer_size. Needs max_steps.")
      .decides_numbers();
  t.used("buffer_size", &Config::buffer_size,
         "With streaming: rows of a window. Samples are packed and shuffled within a window, and windows are "
         "shuffled too.")
      .range(1, INT64_C(1) << 30)
      .decides_numbers();
  t.used("tokenized_path", &Config::tokenized_path,
         "Folder of tokenised data, found by a hash of all settings and data; several runs may share it.");
  t.used("overwrite_cache", &Config::overwrite_cache,
         "Tokenise again even if tokenized_path has the tokens.");
  t.used("dataloader_drop_last", &Config::dataloader_drop_last,
         "Drop the last samples of an epoch if they do not fill a micro-batch on every rank (deterministic: "
         "strict: one micro-batch). A last step with fewer micro-batches is trained.")
      .decides_numbers();
}

}  // namespace

void add_model_and_data_fields(Table& table) {
  add_model(table);
  add_adapters(table);
  add_freezing(table);
  add_quantisation(table);
  add_format(table);
  add_sets(table);
  add_sequence(table);
}

}  // namespace octet::config
