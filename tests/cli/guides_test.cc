// The guides' configurations (tests/guides) train unchanged: ten steps each, with a small model, rows of the
// guide's kind, and a folder of the test.
#include "cli/task.h"
#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::test::guides_test {
namespace {

const std::string kGuides = std::string(OCTET_SOURCE_DIR) + "/tests/guides/";

/// Rows of each kind that the guides use.
class Rows {
 public:
  static const Rows& get() {
    static const Rows rows;
    return rows;
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }
  std::string path() const { return folder_.path(); }

 private:
  Rows() : folder_("guides") {
    std::string messages, pairs, texts, both;
    for (int i = 0; i < 80; ++i) {
      const std::string n = std::to_string(i);
      const Json chat = {{{"role", "user"}, {"content", "sort " + n}},
                         {{"role", "assistant"}, {"content", n}}};
      messages += Json{{"messages", chat}}.dump() + "\n";
      pairs += Json{{"question", "sort " + n}, {"answer", n}}.dump() + "\n";
      both += Json{{"text", "a column that nobody asks for"}, {"dialogue", chat}}.dump() + "\n";
      texts += Json{{"text", "Words of a domain, number " + n + "."}}.dump() + "\n";
    }
    spill(folder_ / "messages.jsonl", messages);
    spill(folder_ / "pairs.jsonl", pairs);
    spill(folder_ / "both.jsonl", both);
    spill(folder_ / "texts.jsonl", texts);
    spill(folder_ / "home/data/train.jsonl", pairs);
    // The layout of a data set in Hugging Face's cache.
    const std::string set = folder_ / "hub/datasets--HuggingFaceH4--ultrachat_200k";
    spill(set + "/refs/main", "8049631c");
    spill(set + "/snapshots/8049631c/data/train_sft-00000-of-00001.jsonl", messages);
    spill(set + "/snapshots/8049631c/data/test_gen-00000-of-00001.jsonl", "{\"broken");
    spill(folder_ / "data/dataset_info.json",
          R"({"ultrachat_200k": {"hf_hub_url": "HuggingFaceH4/ultrachat_200k",
        "split": "train_sft", "formatting": "sharegpt", "columns": {"messages": "messages"},
        "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}}})");
  }
  TemporaryFolder folder_;
};

struct Guide {
  const char* name;
  std::string arguments;  ///< {rows}: the folder of rows
  int ranks = 1;
  const char* says = "";  ///< part of the output
};

void PrintTo(const Guide& guide, std::ostream* out) {
  *out << guide.name;
}

std::string filled(std::string text) {
  for (const auto& [mark, value] :
       {std::pair{std::string("{rows}"), Rows::get().path()}, {std::string("{guides}/"), kGuides}}) {
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos;)
      text.replace(at, mark.size(), value);
  }
  return text;
}

/// Runs `trainer train ARGUMENTS` with Hugging Face's cache and the home folder in the folder of the rows.
Outcome trained(const std::string& arguments, int ranks, const std::string& hub = Rows::get() / "hub") {
  const std::string launch =
      std::string(OCTET_SOURCE_DIR) + "/launch/mpirun -np " + std::to_string(ranks) + " ";
  return shell("env HF_HUB_CACHE=" + hub + " HOME=" + (Rows::get() / "home") + " " + launch + OCTET_TRAINER +
               " train " + arguments);
}

class Guides : public testing::TestWithParam<Guide> {};

TEST_P(Guides, TrainAsTheyStand) {
  const TemporaryFolder folder("guide");
  const std::string output = folder / "out";
  const Outcome ran = trained(
      filled(GetParam().arguments) + " model_name_or_path=" + Task::get().model() +
          " train_from_scratch=true template=chatml device=cpu max_steps=10 logging_steps=1 output_dir=" +
          output,
      GetParam().ranks);
  ASSERT_EQ(ran.code, 0) << ran.both();
  const auto steps = steps_of(output);
  ASSERT_EQ(steps.size(), 10u) << ran.both();
  for (const auto& [step, row] : steps) EXPECT_TRUE(std::isfinite(row["loss"].get<double>())) << step;
  EXPECT_NE(ran.both().find(GetParam().says), std::string::npos) << ran.both();
}

const std::string kPlay =
    " data.train_path={rows}/messages.jsonl data.val_path={rows}/messages.jsonl data.split.train_ratio=null "
    "train.eval_steps=1 train.save_steps=1";

const std::string kSets =
    "\"datasets=[{path: {rows}/texts.jsonl, type: cpt, weight: 0.7},"
    "{path: {rows}/messages.jsonl, type: chat, weight: 0.3}]\"";

INSTANTIATE_TEST_SUITE_P(
    All, Guides,
    testing::Values(
        Guide{"first", "{guides}/llama3_fp8_single_gpu_sft.yaml dataset_dir={rows}/data cutoff_len=64", 1,
              "FP8"},
        Guide{"second",
              "{guides}/llama3_fp8_deepspeed_sft.yaml dataset_dir={rows}/data cutoff_len=64 "
              "deepspeed={guides}/ds_z1_fp8_config.json",
              2},
        Guide{
            "third",
            "dataset={rows}/messages.jsonl global_batch_size=64 per_device_train_batch_size=1 cutoff_len=64 "
            "learning_rate=3e-4 weight_decay=0.1 adam_beta1=0.9 adam_beta2=0.95 warmup_steps=1 "
            "lr_scheduler_type=cosine",
            2},
        Guide{"axolotl",
              "{guides}/axolotl_fft.yaml dataset={rows}/messages.jsonl dataset_prepared_path=null "
              "sequence_len=64",
              2, "there is no adapter"},
        Guide{"sft_play", "{guides}/sft_play_base.yaml" + kPlay, 1, "steps of about 32 samples"},
        Guide{"sft_play_deepspeed",
              "{guides}/sft_play_run_distributed.yaml deepspeed={guides}/deepspeed_z2.json" + kPlay, 2},
        Guide{"sft_play_three_ranks", "{guides}/sft_play_base.yaml" + kPlay, 3, "steps of 33 samples"},
        Guide{"verl",
              "{guides}/verl_sft_trainer.yaml data.train_files=~/data/train.jsonl "
              "data.val_files=~/data/train.jsonl data.train_batch_size=16",
              2},
        Guide{"verl_eight_gpus",
              "{guides}/verl_sft_trainer.yaml data.train_files={rows}/both.jsonl data.val_files=null "
              "data.train_batch_size=16 data.micro_batch_size_per_gpu=8 model.fsdp_config.model_dtype=bf16 "
              "data.multiturn.enable=true +data.multiturn.messages_key=dialogue trainer.resume_mode=disable",
              2}),
    [](const auto& param) { return std::string(param.param.name); });
INSTANTIATE_TEST_SUITE_P(
    Whole, Guides,
    testing::Values(
        Guide{"first_with_deepspeed",
              "{guides}/llama3_fp8_single_gpu_sft.yaml dataset_dir={rows}/data cutoff_len=64 "
              "deepspeed={guides}/ds_z0_single_gpu_config.json"},
        Guide{"sft_play_distributed", "{guides}/sft_play_run_distributed.yaml" + kPlay, 2},
        Guide{"sft_play_offload",
              "{guides}/sft_play_base.yaml deepspeed={guides}/deepspeed_custom.json" + kPlay, 2},
        Guide{"sft_play_mixed",
              "{guides}/sft_play_run_dapt.yaml data.val_path={rows}/messages.jsonl train.eval_steps=1 "
              "train.save_steps=1 block_size=64 " +
                  kSets,
              1, "'model.max_seq_len' is overridden by 'block_size'"},
        Guide{"sft_play_found",
              "{guides}/sft_play_run_dapt.yaml data.val_path=null train.evaluation_strategy=no "
              "train.load_best_model_at_end=false train.per_device_train_batch_size=null train.grad_accum=2 "
              "block_size=64 " +
                  kSets,
              2, "chosen to fit the memory of the device: per_device_train_batch_size="}),
    [](const auto& param) { return std::string(param.param.name); });

// The named column is trained, and not another column of the rows.
TEST(GuidesColumns, ARowIsReadByTheColumnThatIsNamed) {
  const TemporaryFolder folder("guide");
  const auto tokens = [&](const std::string& more) {
    const std::string output = folder / hash128_hex(more);
    const Outcome ran =
        trainer(Task::get().train(output, "max_steps=1 dataset=" + (Rows::get() / "both.jsonl") + more));
    EXPECT_EQ(ran.code, 0) << ran.both();
    return steps_of(output).at(1)["loss"].get<double>();
  };
  EXPECT_NE(tokens(" messages_column=dialogue"), tokens(""))
      << "texts are trained where nobody names a column";
  const Outcome wrong = trainer(
      Task::get().train(folder / "wrong", "messages_column=dialog dataset=" + (Rows::get() / "both.jsonl")));
  EXPECT_EQ(wrong.code, 64);
  EXPECT_NE(wrong.both().find("did you mean 'dialogue'?"), std::string::npos) << wrong.both();
}

// SFT-Play and verl name a Jinja file. If a row of the table writes the same text, it is used. Otherwise the
// file is rendered.
TEST(GuidesTemplate, InJinjaIsTheOneThatWritesTheSame) {
  const TemporaryFolder folder("guide");
  spill(folder / "same.jinja",
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
  const auto loss = [&](const std::string& name, const std::string& told) {
    const std::string output = folder / hash128_hex(name);
    const Outcome ran = trainer(Task::get().train(output, "max_steps=1 data.template_path=" + name));
    EXPECT_EQ(ran.code, 0) << ran.both();
    EXPECT_NE(ran.err.find(told), std::string::npos) << ran.err;
    return steps_of(output).at(1)["loss"].get<double>();
  };
  EXPECT_EQ(
      loss(folder / "same.jinja", "template: chatml (it writes the same text as " + (folder / "same.jinja")),
      loss("chatml", ""));
  const Outcome none = trainer(Task::get().train(folder / "none", "template=" + (folder / "no.jinja")));
  EXPECT_EQ(none.code, 64);
  EXPECT_NE(none.both().find("the file of the chat template does not exist"), std::string::npos)
      << none.both();
}

// The message for a data set that is not in the cache says how to fetch it.
TEST(GuidesHub, ASetThatIsNotThereSaysHowToFetchIt) {
  const TemporaryFolder folder("guide");
  const Outcome ran = trained(Task::get().config() + " output_dir=" + (folder / "out") +
                                  " dataset=ultrachat_200k dataset_dir=" + (Rows::get() / "data"),
                              1, folder / "nothing");
  EXPECT_EQ(ran.code, 64);
  EXPECT_NE(ran.both().find("hf download --repo-type dataset HuggingFaceH4/ultrachat_200k"),
            std::string::npos)
      << ran.both();
  EXPECT_FALSE(path_exists(folder / "out/trainer_log.jsonl"));
}

// A killed run that is started again with the same command resumes. With auto, the first start finds no
// checkpoint.
TEST(GuidesResume, AutoTakesTheNewestCheckpointWhereThereIsOne) {
  const TemporaryFolder folder("guide");
  const std::string output = folder / "out",
                    train = Task::get().train(output, "resume_from_checkpoint=auto save_steps=2 max_steps=");
  const Outcome first = trainer(train + "4"), second = trainer(train + "6");
  ASSERT_EQ(first.code, 0) << first.both();
  ASSERT_EQ(second.code, 0) << second.both();
  EXPECT_EQ(steps_of(output).size(), 6u) << "each step once";
}

}  // namespace
}  // namespace octet::test::guides_test
