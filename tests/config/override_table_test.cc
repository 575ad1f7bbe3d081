// Keys of other trainers that set several of our keys. The command line's value replaces the file's value,
// with all that followed from it. null is as if the file did not have the key.
#include "config/support.h"
#include "octet/base/strings.h"

namespace octet::config::test::override_table_test {
namespace {

struct Row {
  const char* yaml;
  Strings arguments;
  std::string sets;  ///< the set keys among the tested keys, as "key value", in order
};

std::string what_is_set(const Row& row, const std::string& keys) {
  const Resolved r = load_text(row.yaml, "file.yaml", row.arguments, quiet(false));
  std::string text;
  for (const std::string& key : split(keys, ' ')) {
    if (!r.is_set(key)) continue;
    std::string value =
        find_field(key)->status == Status::used ? value_text(*find_field(key), r.config) : r.extra.at(key);
    std::erase(value, '"');
    text += (text.empty() ? "" : "; ") + key + " " + value;
  }
  return text;
}

void expect_rows(const std::string& keys, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    std::string trace = row.yaml;
    for (const auto& argument : row.arguments) trace += "  " + argument;
    SCOPED_TRACE(trace);
    EXPECT_EQ(what_is_set(row, keys), row.sets);
  }
}

TEST(OverrideTable, VerlsIntervals) {
  const char* off = "trainer: {save_freq: -1}";
  const char* on = "trainer: {save_freq: 10}";
  expect_rows("save_strategy save_steps",
              {{off, {}, "save_strategy no"},
               {off, {"trainer.save_freq=100"}, "save_steps 100"},
               {off, {"trainer.save_freq=null"}, ""},
               {off, {"save_steps=100"}, "save_steps 100"},
               {off, {"trainer.save_freq=-1"}, "save_strategy no"},
               {on, {}, "save_steps 10"},
               {on, {"trainer.save_freq=-1"}, "save_strategy no"},
               {on, {"trainer.save_freq=null"}, ""},
               {on, {"save_steps=5"}, "save_steps 5"},
               {"save_steps: 10", {"trainer.save_freq=null"}, ""},
               {"save_steps: 10", {"trainer.save_freq=-1"}, "save_strategy no; save_steps 10"},
               {on, {"trainer.save_freq=null", "trainer.save_freq=7"}, "save_steps 7"}});
  const char* never = "data: {val_files: v}\ntrainer: {test_freq: -1}";
  const char* often = "data: {val_files: v}\ntrainer: {test_freq: 10}";
  expect_rows("eval_strategy eval_steps",
              {{never, {}, "eval_strategy no"},
               {never, {"trainer.test_freq=5"}, "eval_strategy steps; eval_steps 5"},
               {never, {"trainer.test_freq=null"}, ""},
               {often, {}, "eval_strategy steps; eval_steps 10"},
               {often, {"trainer.test_freq=null"}, ""},
               {often, {"trainer.test_freq=-1"}, "eval_strategy no"},
               {often, {"eval_steps=3"}, "eval_strategy steps; eval_steps 3"}});
}

TEST(OverrideTable, VerlsFormatAndItsOptimizer) {
  const auto dtype = [](const std::string& word) {
    return "model: {partial_pretrain: m, fsdp_config: {model_dtype: " + word + "}}";
  };
  const std::string narrow = dtype("bf16"), wide = dtype("fp32"), half = dtype("fp16"), none = dtype("null");
  const std::string key = "model.fsdp_config.model_dtype=";
  expect_rows("bf16 pure_bf16 zero_stage",
              {{narrow.c_str(), {}, "bf16 true; pure_bf16 true; zero_stage 3"},
               {narrow.c_str(), {key + "fp32"}, "bf16 true; pure_bf16 false; zero_stage 3"},
               {narrow.c_str(), {key + "null"}, "bf16 true; zero_stage 3"},
               {wide.c_str(), {key + "bf16"}, "bf16 true; pure_bf16 true; zero_stage 3"},
               {wide.c_str(), {key + "null"}, "bf16 true; zero_stage 3"},
               {none.c_str(), {key + "null"}, "bf16 true; zero_stage 3"},
               {half.c_str(), {key + "bf16"}, "bf16 true; pure_bf16 true; zero_stage 3"},
               {half.c_str(), {key + "null"}, "bf16 true; zero_stage 3"},
               {half.c_str(), {"bf16=true"}, "bf16 true; zero_stage 3"},
               {wide.c_str(), {"model_name_or_path=other"}, "bf16 true; pure_bf16 false; zero_stage 3"},
               {none.c_str(), {"model_name_or_path=other"}, "bf16 true; zero_stage 3"}});
  EXPECT_SAYS(refusal(half.substr(0, half.find("partial")) + half.substr(half.find("fsdp_config"))),
              "fp32 or bf16");
  const char* betas = "optim: {betas: [0.8, 0.9]}";
  expect_rows("adam_beta1 adam_beta2",
              {{betas, {}, "adam_beta1 0.8; adam_beta2 0.9"},
               {betas, {"optim.betas=[0.7, 0.95]"}, "adam_beta1 0.7; adam_beta2 0.95"},
               {betas, {"optim.betas=null"}, ""},
               {betas, {"adam_beta1=0.5"}, "adam_beta1 0.5; adam_beta2 0.9"},
               {"adam_beta1: 0.6", {"optim.betas=null"}, ""},
               {"optim: {betas: [0.8]}", {"optim.betas=[0.7, 0.95]"}, "adam_beta1 0.7; adam_beta2 0.95"}});
  const char* truncation = "data: {truncation: middle}";
  expect_rows("truncation", {{truncation, {"data.truncation=error"}, "truncation error"},
                             {truncation, {"data.truncation=null"}, ""},
                             {truncation, {"truncation=cut"}, "truncation cut"},
                             {"data: {truncation: error}", {"data.truncation=left"}, "truncation cut"}});
}

TEST(OverrideTable, VerlsFacts) {
  const char* adapters = "model: {lora_rank: 32, lora_alpha: 8, target_modules: [q_proj]}";
  expect_rows(
      "finetuning_type lora_rank lora_alpha lora_target",
      {{adapters, {}, "finetuning_type lora; lora_rank 32; lora_alpha 8; lora_target [q_proj]"},
       {adapters, {"model.lora_rank=0"}, ""},
       {adapters, {"model.lora_rank=null"}, ""},
       {adapters,
        {"model.lora_rank=4", "model.lora_alpha=null"},
        "finetuning_type lora; lora_rank 4; lora_alpha 16; lora_target [q_proj]"},
       {adapters, {"model.target_modules=all-linear"}, "finetuning_type lora; lora_rank 32; lora_alpha 8"}});
  const char* column = "data: {multiturn: {enable: true, messages_key: m}}";
  expect_rows("messages_column prompt_column response_column",
              {{column, {"data.messages_key=n"}, "messages_column n"},
               {column, {"data.multiturn.messages_key=null"}, "messages_column messages"},
               {column, {"data.multiturn.enable=null"}, "messages_column m"},
               {column,
                {"data.multiturn.enable=false", "data.prompt_key=q", "data.response_key=a"},
                "prompt_column q; response_column a"}});
  const char* strategy = "model: {strategy: megatron}";
  expect_rows("zero_stage", {{strategy, {"model.strategy=fsdp2"}, "zero_stage 3"},
                             {strategy, {"model.strategy=null"}, ""},
                             {strategy, {"zero_stage=1"}, "zero_stage 1"},
                             {"data: {val_max_samples: 3}", {"data.val_max_samples=-1"}, ""},
                             {"data: {custom_cls: {path: x.py}}", {"data.custom_cls.path=null"}, ""},
                             {"data: {custom_cls: {path: x.py}}", {"data.custom_cls=null"}, ""}});
  EXPECT_SAYS(refusal("data: {custom_cls: {path: null}}", {"data.custom_cls.path=x.py"}), "no foreign code");
}

TEST(OverrideTable, SftPlaysBatch) {
  const std::string keys =
      "per_device_train_batch_size auto_find_batch_size gradient_accumulation_steps global_batch_size";
  const char* both = "train: {batch_size: auto, grad_accum: auto}";
  const char* numbers = "train: {batch_size: 4, grad_accum: 2}";
  const char* other =
      "train: {batch_size: auto, per_device_train_batch_size: 2, grad_accum: auto, "
      "gradient_accumulation_steps: 8}";
  expect_rows(
      keys,
      {{both, {}, "auto_find_batch_size true; gradient_accumulation_steps auto"},
       {both, {"train.batch_size=null"}, "gradient_accumulation_steps auto"},
       {both, {"train.batch_size=null", "train.grad_accum=null"}, ""},
       {both, {"train.grad_accum=null"}, "auto_find_batch_size true; gradient_accumulation_steps auto"},
       {both, {"train.grad_accum=4"}, "auto_find_batch_size true; gradient_accumulation_steps 4"},
       {both, {"train.batch_size=2"}, "per_device_train_batch_size 2; gradient_accumulation_steps auto"},
       {both,
        {"per_device_train_batch_size=2"},
        "per_device_train_batch_size 2; gradient_accumulation_steps auto"},
       {both, {"train.batch_size=2", "train.grad_accum=null"}, "per_device_train_batch_size 2"},
       {both, {"global_batch_size=48"}, "auto_find_batch_size true; global_batch_size 48"},
       {numbers, {}, "per_device_train_batch_size 4; gradient_accumulation_steps 2"},
       {numbers, {"train.batch_size=auto"}, "auto_find_batch_size true; gradient_accumulation_steps 2"},
       {numbers,
        {"train.grad_accum=auto"},
        "per_device_train_batch_size 4; gradient_accumulation_steps auto"},
       {numbers, {"train.batch_size=null"}, "gradient_accumulation_steps 2"},
       {numbers, {"train.grad_accum=null"}, "per_device_train_batch_size 4"},
       {"per_device_train_batch_size: 4", {"train.batch_size=null"}, "per_device_train_batch_size 4"},
       {other, {}, "per_device_train_batch_size 2; gradient_accumulation_steps 8"},
       {other, {"train.batch_size=6"}, "per_device_train_batch_size 6; gradient_accumulation_steps 8"}});
}

TEST(OverrideTable, SftPlaysModesAndItsSets) {
  const char* mixed = "task_mode: cpt_mixed";
  expect_rows("stage packing", {{mixed, {}, "stage sft; packing true"},
                                {mixed, {"task_mode=sft"}, "stage sft"},
                                {mixed, {"task_mode=cpt"}, "stage pt; packing true"},
                                {mixed, {"task_mode=null"}, ""},
                                {mixed, {"mode=sft"}, "stage sft"},
                                {mixed, {"stage=sft"}, "stage sft"},
                                {mixed, {"packing=false"}, "stage sft; packing false"},
                                {"mode: cpt_mixed", {"task_mode=sft"}, "stage sft"},
                                {"task_mode: sft", {"task_mode=cpt_mixed"}, "stage sft; packing true"},
                                {"packing: true", {"task_mode=null"}, "packing true"}});
  const char* weighted = "datasets: [{path: a, weight: 0.7}, {path: b, weight: 0.3}]";
  const std::string keys = "dataset interleave_probs mix_strategy";
  expect_rows(keys,
              {{weighted, {}, "dataset [a, b]; interleave_probs [0.7, 0.3]; mix_strategy interleave_under"},
               {weighted, {"datasets=[c, d]"}, "dataset [c, d]"},
               {weighted,
                {"datasets=[{path: c, weight: 2}]"},
                "dataset [c]; interleave_probs [2]; mix_strategy interleave_under"},
               {weighted, {"datasets=null"}, ""},
               {weighted, {"datasets=null", "data.train_path=t"}, "dataset [t]"},
               {weighted, {"data.train_path=t"}, "dataset [t]"},
               {weighted, {"dataset=t"}, "dataset [t]"},
               {"data: {train_path: t}", {"datasets=[c, d]"}, "dataset [c, d]"},
               {"data: {train_path: t}", {"datasets=[c, d]", "data.train_path=null"}, "dataset [c, d]"}});
  expect_rows(
      "cutoff_len",
      {{"block_size: 256\nmodel: {max_seq_len: 512}", {}, "cutoff_len 512"},
       {"block_size: 256\nmodel: {max_seq_len: 512}\ntask_mode: cpt", {}, "cutoff_len 256"},
       {"block_size: 256\nmodel: {max_seq_len: 512}\nstage: pt", {}, "cutoff_len 256"},
       {"block_size: 256\nmodel: {max_seq_len: 512}\ntask_mode: cpt", {"block_size=null"}, "cutoff_len 512"},
       {"block_size: 256\nmodel: {max_seq_len: 512}\ntask_mode: cpt",
        {"model.max_seq_len=128"},
        "cutoff_len 128"},
       {"block_size: 256\nmodel: {max_seq_len: 512}", {"block_size=64"}, "cutoff_len 64"}});
}

TEST(OverrideTable, SftPlaysBestModelAndItsSplit) {
  const char* rouge = "train: {metric_for_best_model: rougeL, greater_is_better: true}";
  expect_rows("metric_for_best_model greater_is_better",
              {{rouge, {}, ""},
               {rouge, {"train.metric_for_best_model=null"}, "greater_is_better true"},
               {rouge,
                {"train.metric_for_best_model=eval_loss", "train.greater_is_better=false"},
                "metric_for_best_model eval_loss; greater_is_better false"},
               {rouge, {"metric_for_best_model=eval_loss"}, "metric_for_best_model eval_loss"}});
  const char* split = "data: {split: {train_ratio: 0.7, val_ratio: 0.1, test_ratio: 0.2}}";
  expect_rows("val_size",
              {{split, {}, "val_size 0.3"},
               {split, {"data.split.train_ratio=null"}, "val_size 0.3"},
               {split, {"data.split.train_ratio=null", "data.split.test_ratio=null"}, "val_size 0.1"},
               {split, {"data.split.train_ratio=0.9"}, "val_size 0.1"},
               {"data: {split: {val_ratio: 0.1}}", {}, "val_size 0.1"},
               {"data: {split: {val: 0.1}}", {}, "val_size 0.1"},
               {"data: {split: {val: 0.1}}", {"data.split.val=0.25"}, "val_size 0.25"},
               {"data: {split: {val: 0}}", {}, ""},
               {split, {"val_size=0.5"}, "val_size 0.5"}});
}

TEST(OverrideTable, OtherKeys) {
  const char* places = "model: {name: org/m, local_dir: models/m}";
  expect_rows("model_name_or_path",
              {{places, {}, "model_name_or_path models/m"},
               {places, {"model.local_dir=null"}, "model_name_or_path org/m"},
               {places, {"model.name=x"}, "model_name_or_path x"},
               {"model: {name: org/m}", {"model.local_dir=null"}, "model_name_or_path org/m"},
               {"model: {name: org/m}", {"model.name=null"}, ""}});
  expect_rows("eval_strategy",
              {{"val_size: 0.1\ntrain: {evaluation_strategy: steps}", {"train.eval_strategy=null"}, ""},
               {"val_size: 0.1\ntrain.evaluation_strategy: steps", {"train.evaluation_strategy=null"}, ""}});
  expect_rows("export_dtype", {{"torch_dtype: float32", {"torch_dtype=auto"}, ""},
                               {"torch_dtype: float32", {"torch_dtype=bfloat16"}, "export_dtype bf16"}});
  const char* axolotl =
      "base_model: m\nbf16: full\ndatasets: [{path: a, type: completion, field_messages: x}]\nplugins: "
      "[other.Plugin]";
  expect_rows(
      "bf16 pure_bf16 stage dataset messages_column",
      {{axolotl, {"plugins=null"}, "pure_bf16 true; stage pt; dataset [a]; messages_column x"},
       {axolotl, {"plugins=null", "bf16=true"}, "bf16 true; stage pt; dataset [a]; messages_column x"},
       {axolotl, {"plugins=[]", "bf16=null"}, "bf16 true; stage pt; dataset [a]; messages_column x"},
       {axolotl, {"plugins=null", "datasets=[{path: b}]"}, "pure_bf16 true; dataset [b]"}});
}

// null also removes the value of a variable and of a DeepSpeed file.
TEST(OverrideTable, NullReachesWeakerSourcesToo) {
  const LoadOptions options{.for_training = false, .environment = {{"OCTET_MAX_STEPS", "7"}}};
  EXPECT_EQ(load_text("", "f.yaml", {}, options).config.max_steps, 7);
  EXPECT_EQ(load_text("", "f.yaml", {"trainer.total_training_steps=null"}, options).config.max_steps, -1);
  const std::string json = "deepspeed: {train_batch_size: 64}\n";
  EXPECT_EQ(load_text(json, "f.yaml", {}, quiet(false)).config.global_batch_size, 64);
  EXPECT_FALSE(
      load_text(json, "f.yaml", {"data.train_batch_size=null"}, quiet(false)).config.global_batch_size);
}

}  // namespace
}  // namespace octet::config::test::override_table_test
