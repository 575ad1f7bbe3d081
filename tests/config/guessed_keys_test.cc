// Guessed words lead to the intended keys, and the fields of data files decide how they are trained.
#include <gtest/gtest.h>

#include <regex>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/config/key_table.h"

namespace octet::config::guessed_keys_test {
namespace {

std::string fix_of(const Strings& words) {
  try {
    load(words, {.for_training = false, .environment = {}});
  } catch (const Error& e) {
    return e.problem().fix;
  }
  return "";
}

TEST(GuessedKeys, NameTheKeyThatIsMeant) {
  for (const auto& [word, part] :
       std::vector<std::pair<const char*, const char*>>{{"model=x", "model_name_or_path=FOLDER"},
                                                        {"--model=x", "model_name_or_path=FOLDER"},
                                                        {"lr=1e-5", "learning_rate=NUMBER"},
                                                        {"epochs=3", "num_train_epochs=NUMBER"},
                                                        {"data=x.jsonl", "dataset=FILE"},
                                                        {"steps=5", "max_steps=NUMBER"},
                                                        {"bs=4", "per_device_train_batch_size=NUMBER"},
                                                        {"max_length=5", "cutoff_len=NUMBER"},
                                                        {"out=x", "output_dir=FOLDER"},
                                                        {"output=x", "output_dir=FOLDER"},
                                                        {"lora=true", "finetuning_type=lora"},
                                                        {"gpus=2", "launch/mpirun -np NUMBER"},
                                                        {"resume=true", "resume_from_checkpoint=true"},
                                                        {"batch_size=4", "global_batch_size=NUMBER"},
                                                        {"bits=4", "quantization_bit=4"},
                                                        {"clip=1", "max_grad_norm=NUMBER"},
                                                        {"optimizer=adamw", "optim=NAME"},
                                                        {"prompt_template=x", "template=NAME"},
                                                        {"tokenizer=x", "model_name_or_path"},
                                                        {"samples=9", "max_samples=NUMBER"},
                                                        {"dropout=0.1", "lora_dropout=SHARE"},
                                                        {"save_every=9", "save_steps=NUMBER"},
                                                        {"log_every=9", "logging_steps=NUMBER"},
                                                        {"eval_every=9", "eval_strategy=steps"},
                                                        {"warmup=5", "warmup_ratio=SHARE"}}) {
    const std::string fix = fix_of({word});
    EXPECT_NE(fix.find(part), std::string::npos) << word << ": " << fix;
    // Every name in the advice is a key.
    const std::regex key("([a-z_]+)=");
    for (auto at = std::sregex_iterator(fix.begin(), fix.end(), key); at != std::sregex_iterator(); ++at)
      EXPECT_NE(find_field((*at)[1].str()), nullptr) << word << ": " << (*at)[1];
  }
  EXPECT_EQ(fix_of({"learning_rat=1"}), "did you mean 'learning_rate'?");
}

// `model` alone selects SFT-Play, which has short names near to many words.
TEST(GuessedKeys, NameTheSameKeyBesideOtherWords) {
  for (const char* word : {"lr=1", "bs=4", "steps=5", "rank=8", "wd=1", "out=x", "iters=3"}) {
    for (const char* other : {"model=x", "data=x", "train=x"}) {
      const std::string fix = fix_of({word, other});
      EXPECT_TRUE(fix == fix_of({word}) || fix == fix_of({other})) << word << " " << other << ": " << fix;
    }
  }
}

TEST(GuessedKeys, AFileOfDataSaysHowItIsTrainedOn) {
  for (const char* file : {"chats.csv", "a/b.jsonl", "rows.parquet", "rows.jsonl.gz"})
    EXPECT_NE(fix_of({file}).find("dataset=" + std::string(file)), std::string::npos) << fix_of({file});
  EXPECT_EQ(fix_of({"chats.png"}), "remove it, or write it in one of these forms");
}

}  // namespace
}  // namespace octet::config::guessed_keys_test
