// The choice of the dialect, and the translation of another trainer's keys.
#include <map>

#include "config/support.h"
#include "octet/base/strings.h"
#include "support/temporary_folder.h"

namespace octet::config::test::dialects_test {
namespace {

TEST(Dialects, AreDecidedByAKeyThatNoOtherHas) {
  struct Row {
    std::string yaml;
    Strings overrides;
    std::string note;
  };
  for (const Row& row : std::vector<Row>{
           {"train: {epochs: 2}",
            {},
            "the configuration has keys of SFT-Play, such as 'train.epochs' (test.yaml:4)"},
           {"seed: 3\noptim: {lr: 1e-4}",
            {},
            "the configuration has keys of verl, such as 'optim.lr' (test.yaml:5)"},
           {"trainer.seed: 3",
            {},
            "the configuration has keys of verl, such as 'trainer.seed' (test.yaml:4)"},
           {"optim: adamw_torch",
            {"data.max_length=64"},
            "keys of verl, such as 'data.max_length' (command line)"},
           {"",
            {"+data.custom_cls.path=null"},
            "keys of verl, such as 'data.custom_cls.path' (command line)"},
           {"task_mode: sft",
            {"seed=3", "learning_rate=1e-4"},
            "keys of SFT-Play, such as 'task_mode' (test.yaml:4)"},
           {"model: {trust_remote_code: false}\ntrainer: {seed: 3}",
            {},
            "keys of verl, such as 'trainer.seed'"},
           {"model: {trust_remote_code: false}\nmodel.type: causal",
            {},
            "keys of SFT-Play, such as 'model.type'"},
           {"model: {trust_remote_code: false}", {}, "of SFT-Play and of verl, and means the same in both"},
       }) {
    SCOPED_TRACE(row.yaml);
    EXPECT_TRUE(notes(read(row.yaml, row.overrides), row.note)) << row.note;
  }
  EXPECT_FALSE(notes(read("seed: 3\noptim: adamw_torch",
                          {"lr_scheduler_type=cosine_with_min_lr", "lr_scheduler_kwargs.min_lr_rate=0.1"}),
                     "the configuration has keys"))
      << "ours";
  EXPECT_TRUE(notes(load_text("base_model: m\ndatasets: [{path: d}]", "a.yaml", {}, quiet(false)),
                    "the configuration has keys of axolotl, such as 'base_model' (a.yaml:1)"));
}

// Sections of several trainers have the same name. A key in one trainer's section is not searched in the
// other's table.
TEST(Dialects, OfTwoTrainersInOneConfigurationAreRefused) {
  const std::string both = refusal("train: {epochs: 2, seed: 3}\ndata: {train_files: t}");
  EXPECT_SAYS(both, "keys of SFT-Play and of verl are in one configuration");
  EXPECT_SAYS(both, "train.epochs (test.yaml:4) is SFT-Play's, data.train_files (test.yaml:5) is verl's");
  EXPECT_SAYS(both, "where:    test.yaml:5");
  EXPECT_SAYS(both, "write data.train_path (SFT-Play) or dataset in place of data.train_files");
  const std::string fewer = refusal("train: {epochs: 2}\ntrainer: {seed: 3, total_training_steps: 9}");
  EXPECT_SAYS(fewer, "where:    test.yaml:4");
  EXPECT_SAYS(fewer, "write trainer.total_epochs (verl) or num_train_epochs in place of train.epochs");
  EXPECT_SAYS(refusal("train: {epochs: 2}", {"optim.betas=[0.9, 0.95]"}),
              "write adam_beta1, adam_beta2 in place of optim.betas");
  EXPECT_SAYS(refusal("train: {epochs: 2}", {"trainer.nnodes=2"}),
              "remove trainer.nnodes (the launcher says how many ranks there are)");
  EXPECT_SAYS(refusal("train: {epochs: 2}\ntrainer: {sede: 3}"),
              "write train.seed (SFT-Play) or seed in place of trainer.sede");
  EXPECT_SAYS(refusal("train: {epochs: 2}\ntrainer:"), "trainer (test.yaml:5) is verl's");
  EXPECT_SAYS(refusal("train: {epochs: 2}\ntrainer:"), "remove trainer; 'trainer train --help'");
  const std::string models = refusal("", {"base_model=m", "task_mode=sft"});
  EXPECT_SAYS(models, "unknown key 'base_model'");
  EXPECT_SAYS(models, "a key of axolotl; its configurations have no model_name_or_path together with it");
  EXPECT_SAYS(models, "keep one of the two");
  const auto mixed = [](const std::string& yaml) {
    try {
      load_text(yaml, "a.yaml", {}, quiet(false));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_SAYS(mixed("base_model: m\nsequence_len: 64\ntask_mode: sft"),
              "base_model (a.yaml:1) is axolotl's, task_mode (a.yaml:3) is SFT-Play's");
  const octet::test::TemporaryFolder folder("mixed");
  write_file_atomically(folder / "verl.yaml", "trainer: {seed: 3}\n");
  write_file_atomically(folder / "play.yaml", "include: verl.yaml\ntrain: {epochs: 3, seed: 4}\n");
  try {
    load({folder / "play.yaml"}, quiet(false));
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_SAYS(std::string(e.what()), "trainer.seed (" + (folder / "verl.yaml") + ":1) is verl's");
  }
}

TEST(Dialects, AKeyOfAnotherTrainerIsNamedAsItIsHere) {
  const std::string ours = refusal("sequence_len: 64");
  EXPECT_SAYS(ours, "unknown key 'sequence_len'");
  EXPECT_SAYS(ours, "a key of axolotl; its configurations have the key base_model");
  EXPECT_SAYS(ours, "write cutoff_len in place of it");
  EXPECT_SAYS(refusal("sequence_len: 64\noptim: {lr: 1e-4}"),
              "write data.max_length (verl) or cutoff_len in place of it");
  EXPECT_SAYS(refusal("train: {epochs: 2}", {"micro_batch_size=64"}),
              "write train.batch_size (SFT-Play) or per_device_train_batch_size in place of it");
  EXPECT_SAYS(refusal("rl: dpo"), "write stage, pref_loss in place of it");
}

TEST(Dialects, NamesAreOfferedFromTheirOwnTableAndOurs) {
  EXPECT_SAYS(refusal("optim: {lr: 1e-4}\ntrainer: {sede: 3}"), "did you mean 'trainer.seed'?");
  EXPECT_SAYS(refusal("optim: {lr: 1e-4}\nlerning_rate: 3"), "did you mean 'learning_rate'?");
  EXPECT_SAYS(refusal("train: {epochs: 2}\nmodel: {nmae: m}"), "did you mean 'model.name'?");
  EXPECT_SAYS(refusal("optim: {lr: 1e-4}\nmodel: {nmae: m}"), "to do:    remove it");
  EXPECT_SAYS(refusal("train: {epochs: 2}\ndata: {tran_files: m}"), "to do:    remove it");
  EXPECT_SAYS(refusal("optim: {lr: 1e-4}\ntaks_mode: sft"), "to do:    remove it");
  // Without other evidence, the nearest name chooses the dialect.
  EXPECT_SAYS(refusal("model: {nmae: m}"), "did you mean 'model.name'?");
  EXPECT_SAYS(refusal("model: {partial_pretrian: m}"), "did you mean 'model.partial_pretrain'?");
  EXPECT_SAYS(refusal("", {"modle.partial_pretrain=m"}), "did you mean 'model.partial_pretrain'?");
  EXPECT_SAYS(refusal("taks_mode: sft"), "did you mean 'task_mode'?");
}

// Keys that several trainers have do not choose a dialect. If a configuration has only such keys, any of
// these dialects fits.
TEST(Dialects, AKeyThatSeveralHaveMeansTheSame) {
  std::map<std::string, ForeignKey> first;
  int shared = 0;
  for (const char* trainer : {"SFT-Play", "verl"}) {
    for (const ForeignKey& key : dialect_keys(trainer)) {
      EXPECT_EQ(key.trainer, trainer) << key.path;
      const auto [other, alone] = first.emplace(key.path, key);
      if (alone) continue;
      ++shared;
      EXPECT_EQ(key.becomes, other->second.becomes) << key.path;
      EXPECT_EQ(key.reason, other->second.reason) << key.path;
    }
  }
  EXPECT_EQ(shared, 1);
  EXPECT_EQ(dialect_keys().size(),
            dialect_keys("SFT-Play").size() + dialect_keys("verl").size() + dialect_keys("axolotl").size());
}

}  // namespace
}  // namespace octet::config::test::dialects_test
