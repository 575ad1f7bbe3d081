// The disk usage that `trainer plan` predicts equals, to the byte, the files that a run writes.
#include <algorithm>
#include <filesystem>

#include "cli/adapter_task.h"
#include "cli/saves.h"
#include "octet/base/json.h"

namespace octet::test::disk_test {
namespace {

namespace fs = std::filesystem;

std::int64_t bytes_of(const std::string& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    bytes += entry.is_regular_file() ? static_cast<std::int64_t>(entry.file_size()) : 0;
  return bytes;
}

/// Returns the bytes of a model's or an adapter's folder: either its weights, or its other model files.
std::int64_t model_bytes(const std::string& folder, bool weights) {
  static const char* const kOthers[] = {
      "config.json", "generation_config.json",  "tokenizer.json",      "tokenizer_config.json",
      "vocab.json",  "special_tokens_map.json", "chat_template.jinja", "added_tokens.json",
      "merges.txt",  "adapter_config.json"};
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool wanted = weights ? name.find("safetensors") != std::string::npos
                                : std::ranges::find(kOthers, name) != std::end(kOthers);
    if (wanted) bytes += static_cast<std::int64_t>(entry.file_size());
  }
  return bytes;
}

Json disk_of(const std::string& arguments, int world) {
  const Outcome plan = trainer("plan --json " + arguments + " world=" + std::to_string(world));
  EXPECT_EQ(plan.code, 0) << plan.both();
  return parse_json(plan.out, "standard output").at("disk");
}

struct Planned {
  std::string keys;
  int ranks = 1;
};

/// Runs `train ARGUMENTS KEYS`, and compares the written files with the plan for the same arguments.
void expect_planned(const std::string& train, const std::string& output, const Planned& run,
                    const std::string& last) {
  const std::string arguments = train + " device=cpu " + run.keys;
  expect_success(trainer(arguments, run.ranks == 1 ? 0 : run.ranks));
  const std::string first = "train ";
  ASSERT_TRUE(arguments.starts_with(first));
  const Json disk = disk_of(arguments.substr(first.size()), run.ranks);
  const std::string checkpoint = output + "/" + last;
  EXPECT_EQ(disk["checkpoint_bytes"], bytes_of(checkpoint)) << run.keys << "\n" << disk;
  EXPECT_EQ(disk["checkpoint_file_bytes"], fs::file_size(checkpoint + "/checkpoint.h5")) << run.keys;
  EXPECT_EQ(disk["checkpoint_manifest_bytes"], fs::file_size(checkpoint + "/manifest.json")) << run.keys;
  EXPECT_EQ(disk["model_weight_bytes"], model_bytes(output, true)) << run.keys << "\n" << disk;
  EXPECT_GE(disk["model_other_bytes_at_most"].get<std::int64_t>(), model_bytes(output, false)) << run.keys;
  EXPECT_EQ(disk["checkpoints_kept"], checkpoints_of(output).size()) << run.keys;
}

TEST(PlannedDisk, IsWhatARunLeaves) {
  const TemporaryFolder folder("disk");
  int number = 0;
  for (const Planned& run :
       {Planned{"save_total_limit=1"}, Planned{"bf16=true pure_bf16=true zero_stage=3", 2},
        Planned{"optim_dtype=int8 zero_stage=1 save_steps=3 save_total_limit=2", 3},
        Planned{"bf16=true fp8=true export_dtype=fp32 export_size=0.00002", 2}}) {
    const std::string output = folder / std::to_string(number++);
    expect_planned(Task::get().train(output), output, run, "checkpoint-12");
  }
}

TEST(WholePlannedDisk, IsWhatARunOfAdaptersOrOfAPartLeaves) {
  const TemporaryFolder folder("disk_part");
  expect_planned(lora(folder / "lora"), folder / "lora", {"additional_target=embed_tokens"}, "checkpoint-6");
  expect_planned(lora(folder / "ranks"), folder / "ranks", {"zero_stage=2", 2}, "checkpoint-6");
  const std::string freeze =
      Task::get().train(folder / "freeze", "model_name_or_path=" + adapter_base() +
                                               " train_from_scratch=false finetuning_type=freeze "
                                               "freeze_trainable_layers=1 freeze_trainable_modules=mlp "
                                               "max_steps=6 save_steps=3 export_dtype=bf16 ");
  expect_planned(freeze, folder / "freeze", {""}, "checkpoint-6");
  // Adapters need disk space only for themselves, not for their base.
  const Json adapters = disk_of(Task::get().config() +
                                    " output_dir=/tmp/none finetuning_type=lora lora_rank=8 device=cuda "
                                    "model_name_or_path=llama-3.1-8b memory=200GB bf16=true",
                                1);
  EXPECT_LT(adapters["checkpoint_bytes"].get<double>(), 0.3e9) << "21 million parameters and their moments";
  EXPECT_GT(adapters["checkpoint_bytes"].get<double>(), 12 * 20e6);
}

TEST(PlannedDisk, IsInTheTextToo) {
  const std::string what = "plan " + Task::get().config() + " output_dir=/tmp/none device=cpu ";
  const Outcome limited = trainer(what + "save_total_limit=1");
  EXPECT_EQ(limited.code, 0) << limited.both();
  const std::string section = limited.out.substr(limited.out.find("\ndisk\n"));
  for (const char* part : {"  a checkpoint  ", " bytes (", " of them parameters, moments and other state\n",
                           "  checkpoints kept                 1, ", "; 2 while a new one is read back\n",
                           "  the final model  ", "  at the fullest moment  "})
    EXPECT_NE(section.find(part), std::string::npos) << part << "\n" << section;
  const Outcome open = trainer(what + "max_steps=-1");
  EXPECT_NE(open.out.find("one for each save: save_total_limit keeps fewer"), std::string::npos) << open.out;
  const Outcome none = trainer(what + "save_strategy=no");
  EXPECT_NE(none.out.find("  for the final model alone"), std::string::npos) << none.out;
}

}  // namespace
}  // namespace octet::test::disk_test
