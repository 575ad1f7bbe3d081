// Keys of the model and the data.
#include "table.h"

namespace octet::config {
namespace {

constexpr const char* kOnlyTraining = "only pre-training (pt) and supervised fine-tuning (sft) are built";

void add_model(Table& t) {
  t.group("Model");
  t.used("model_name_or_path", &Config::model_name_or_path,
         "Folder of a Hugging Face model: config.json, tokenizer.json, *.safetensors; or its name on the hub "
         "(owner/name), where Hugging Face's cache on this machine holds it. Nothing is downloaded.")
      .decides_numbers();
  t.used("train_from_scratch", &Config::train_from_scratch,
         "Start from random weights; only config.json and the tokenizer are read.")
      .decides_numbers();
  t.used("finetuning_type", &Config::finetuning_type,
         "Which parameters are trained: full means all, lora low-rank adapters beside frozen weights, qlora "
         "the "
         "same with quantization_bit: 4, freeze some blocks, modules of them, or what is outside of them.")
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
         "What B(Ax) is multiplied by is lora_alpha / lora_rank. null takes twice the rank.")
      .decides_numbers();
  t.used(
       "lora_dropout", &Config::lora_dropout,
       "Share of the elements of an adapter's input that training drops, at random by seed, step, sample and "
       "position: the same at any number of ranks.")
      .range(0, 1)
      .decides_numbers();
  t.used("lora_target", &Config::lora_target,
         "Modules that get an adapter: all (every linear module of the blocks), their names (q_proj, "
         "v_proj), or one "
         "regular expression for their whole names.")
      .decides_numbers();
  t.used("use_rslora", &Config::use_rslora, "Multiply by lora_alpha / sqrt(lora_rank) instead.")
      .decides_numbers();
  t.used("use_dora", &Config::use_dora,
         "Train a magnitude of each output, too, and scale the rows of the adapted weight to it (DoRA).")
      .decides_numbers();
  t.used("loraplus_lr_ratio", &Config::loraplus_lr_ratio,
         "The learning rate of B, and of DoRA's magnitudes, is so many times learning_rate (LoRA+); null: "
         "once.")
      .range(0, 1e6)
      .decides_numbers();
  t.used("additional_target", &Config::additional_target,
         "Modules that are trained whole beside adapters: embed_tokens, lm_head.")
      .decides_numbers();
  t.used("adapter_name_or_path", &Config::adapter_name_or_path,
         "Folders of adapters, as PEFT writes them, with commas between: all but the last are added to the "
         "base's weights, the last is trained on, and its configuration says what is trained.")
      .decides_numbers();
  t.used("create_new_adapter", &Config::create_new_adapter,
         "Add the last of adapter_name_or_path to the base, too, and begin with a new adapter.")
      .decides_numbers();
}

void add_freezing(Table& t) {
  t.group("Freezing");
  t.used("freeze_trainable_layers", &Config::freeze_trainable_layers,
         "With finetuning_type: freeze, how many of the last blocks are trained; below 0, of the first ones.")
      .range(-(1 << 20), 1 << 20)
      .decides_numbers();
  t.used("freeze_trainable_modules", &Config::freeze_trainable_modules,
         "Modules of these blocks that are trained: self_attn, mlp, input_layernorm, …, or all.")
      .decides_numbers();
  t.used("freeze_extra_modules", &Config::freeze_extra_modules,
         "Modules outside of the blocks that are trained, too: embed_tokens, norm, lm_head.")
      .decides_numbers();
}

void add_quantisation(Table& t) {
  t.group("Quantised base");
  t.used(
       "quantization_bit", &Config::quantization_bit,
       "4: beside adapters, the weights of the blocks' linear layers lie in NF4 (QLoRA), quantised when they "
       "are loaded. null: as products read them, or as a quantised folder has them.")
      .decides_numbers();
  t.used("quantization_type", &Config::quantization_type, "The 4-bit format; only nf4 is built.")
      .one_of({"nf4", "fp4"})
      .refuse("fp4", "its values fit weights worse than those of nf4, which take the same memory")
      .decides_numbers();
  t.used("double_quantization", &Config::double_quantization,
         "Scales of NF4 have 8 bits themselves: 0.516 bytes per weight, not 0.5625.")
      .decides_numbers();
}

void add_format(Table& t) {
  t.group("Data");
  t.used("stage", &Config::stage, "sft trains the answers of conversations, pt all of a text.")
      .one_of({"sft", "pt", "rm", "ppo", "dpo", "kto"})
      .refuse("rm", kOnlyTraining)
      .refuse("ppo", kOnlyTraining)
      .refuse("dpo", kOnlyTraining)
      .refuse("kto", kOnlyTraining)
      .decides_numbers();
  t.used(
       "template", &Config::template_name,
       "Chat template that turns conversations into text: llama3, qwen, chatml, ..., or a file in Jinja "
       "(.jinja, .jinja2, .j2): a chat template, or the prompt of one question. null takes the "
       "one that writes what the model's own chat template (Jinja) writes, if there is one; plain text does "
       "without.")
      .decides_numbers();
  t.used("default_system", &Config::default_system,
         "System message of conversations that have none; null uses the one of the template.")
      .decides_numbers();
  t.used("enable_thinking", &Config::enable_thinking,
         "Whether templates of reasoning models keep room for thoughts; others do not read it.")
      .decides_numbers();
  t.used("preserve_thinking", &Config::preserve_thinking,
         "With mask_history: keep the thoughts of earlier answers, which templates of reasoning models drop.")
      .decides_numbers();
  t.used("tool_format", &Config::tool_format,
         "How tools and calls are written, in place of the template's own way: default, llama3, mistral, "
         "qwen.")
      .decides_numbers();
  t.used("split_special_tokens", &Config::split_special_tokens,
         "Special tokens that stand in texts, messages and system messages are text there, not tokens; those "
         "of the template stay tokens.")
      .decides_numbers();
  t.used("train_on_prompt", &Config::train_on_prompt, "Train the prompts too, not only the answers.")
      .decides_numbers();
  t.used("mask_history", &Config::mask_history, "Train only the last answer of a conversation.")
      .decides_numbers();
}

void add_sets(Table& t) {
  t.used("dataset", &Config::dataset,
         "What is trained: names of dataset_dir/dataset_info.json, paths, globs, or names of the hub "
         "(owner/name) that Hugging Face's cache holds; a list or separated by commas.")
      .decides_numbers();
  t.used("dataset_dir", &Config::dataset_dir, "Folder of dataset_info.json and of relative paths.");
  t.used("eval_dataset", &Config::eval_dataset,
         "What is evaluated, written like dataset; excludes val_size.");
  t.used("dataset_train_split", &Config::dataset_train_split,
         "Split of the folders and hub data sets of dataset that is trained; null means train. An entry of "
         "dataset_info.json with a split keeps its own.")
      .decides_numbers();
  t.used("dataset_test_split", &Config::dataset_test_split,
         "Split of the folders and hub data sets of eval_dataset that is evaluated; null means validation, "
         "or else test, or else train.");
  t.used("messages_column", &Config::messages_column,
         "Column of dataset and eval_dataset that holds conversations, where they are paths; null recognises "
         "rows by the names of their columns.")
      .decides_numbers();
  t.used("prompt_column", &Config::prompt_column,
         "The same for questions of rows with one question and one answer; goes with response_column.")
      .decides_numbers();
  t.used("response_column", &Config::response_column, "The same for their answers; goes with prompt_column.")
      .decides_numbers();
  t.used("val_size", &Config::val_size,
         "Samples held out of dataset for evaluation: a count, or below 1 a fraction.")
      .at_least(0)
      .decides_numbers();
  t.used("max_samples", &Config::max_samples, "Use only the first samples of each dataset.")
      .at_least(1)
      .decides_numbers();
  t.used("max_broken_rows", &Config::max_broken_rows,
         "Rows that may be unreadable (broken JSON, bytes that are not UTF-8); they are counted, named and "
         "left "
         "out. More end the run.")
      .at_least(0);
  t.used("mix_strategy", &Config::mix_strategy,
         "How several datasets become one: concat, or rows in turn (by interleave_probs) until the first has "
         "run out (interleave_under), until all have, short ones repeated (interleave_over), or until all "
         "have, "
         "each row once (interleave_once).")
      .one_of({"concat", "interleave_under", "interleave_over", "interleave_once"})
      .decides_numbers();
  t.used("interleave_probs", &Config::interleave_probs,
         "Weight of each dataset when they are interleaved: a list or separated by commas; null takes turns.")
      .decides_numbers();
}

void add_sequence(Table& t) {
  t.used("cutoff_len", &Config::cutoff_len, "Longest sequence, and length of a packed one, in tokens.")
      .range(2, 16777216)
      .alias("max_seq_length")
      .decides_numbers();
  t.used("truncation", &Config::truncation,
         "What becomes of a row that is longer than cutoff_len: cut shortens questions and answers in "
         "proportion, counts such rows and says so; error ends the run, before its first step or (streaming) "
         "when "
         "such a row is read.")
      .one_of({"cut", "error"});
  t.used("pack_factor", &Config::pack_factor,
         "Of a plain text at most this many times cutoff_len tokens are trained, and what follows is left "
         "out; null: all of it.")
      .range(1, 1 << 20)
      .decides_numbers();
  t.used("packing", &Config::packing,
         "Put several samples into one sequence; they never see each other. Default: only with stage pt.")
      .decides_numbers();
  t.used("neat_packing", &Config::neat_packing,
         "The same as packing, whose samples see each other only with packing_strategy: llamafactory and "
         "without this key.")
      .decides_numbers();
  t.used("packing_strategy", &Config::packing_strategy,
         "How sequences are filled. best_fit looks at the whole set, keeps samples apart and loses no token; "
         "llamafactory makes LLaMA-Factory's sequences: samples packed by batches of rows, texts chained and "
         "cut into blocks, their tails left out (and, without packing, texts cut to cutoff_len).")
      .one_of({"best_fit", "llamafactory"})
      .decides_numbers();
  t.used("preprocessing_batch_size", &Config::preprocessing_batch_size,
         "Rows that packing_strategy: llamafactory packs together.")
      .range(1, 1 << 30)
      .decides_numbers();
  t.used("disable_shuffling", &Config::disable_shuffling, "Train the samples in the order of the files.")
      .decides_numbers();
  t.used("preprocessing_num_workers", &Config::preprocessing_num_workers,
         "Threads that tokenise on each rank; null uses the rank's cores.")
      .range(1, 4096);
  t.used("streaming", &Config::streaming,
         "Tokenise the data while they are trained, so that memory never holds them: rows are packed and "
         "shuffled in windows of buffer_size. Needs max_steps.")
      .decides_numbers();
  t.used("buffer_size", &Config::buffer_size,
         "With streaming: rows of a window, within which samples are packed and shuffled; windows come in an "
         "order of their own.")
      .range(1, INT64_C(1) << 30)
      .decides_numbers();
  t.used("tokenized_path", &Config::tokenized_path,
         "Folder where tokenised data are kept and found again, by a hash of all that decides them; several "
         "runs may share it.");
  t.used("overwrite_cache", &Config::overwrite_cache,
         "Make the tokens anew even where tokenized_path holds them.");
  t.used(
       "dataloader_drop_last", &Config::dataloader_drop_last,
       "Leave out the last samples of an epoch when they do not fill a micro-batch on every rank (with "
       "deterministic: strict, one micro-batch). A last step of fewer micro-batches than others is trained.")
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
