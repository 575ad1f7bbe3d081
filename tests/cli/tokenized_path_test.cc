// Tokenised data on disk: shared by runs, never stale, and either complete or absent.
#include <gtest/gtest.h>

#include <thread>

#include "cli/task.h"

namespace octet::test::tokenized_path_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().string());
  return names;
}

class TokenizedPath : public testing::Test {
 protected:
  Outcome run(const std::string& more = "", int np = 0) {
    return trainer(task_.train(folder_ / ("run" + std::to_string(number_++)),
                               "max_steps=2 save_strategy=no tokenized_path=" + tokens_ + " " + more),
                   np);
  }
  static bool took(const Outcome& outcome) {
    return outcome.err.find("tokens taken from") != std::string::npos;
  }
  static bool kept(const Outcome& outcome) { return outcome.err.find("tokens kept in") != std::string::npos; }

  const Task& task_ = Task::get();
  TemporaryFolder folder_{"tokens"};
  std::string tokens_ = folder_ / "tokens";
  int number_ = 0;
};

TEST_F(TokenizedPath, ASecondRunTakesTheTokensAndTrainsTheSame) {
  const Outcome plain = trainer(task_.train(folder_ / "plain", "max_steps=2 save_strategy=no"), 2);
  expect_success(plain);
  const Outcome first = run("", 2), second = run("", 2), alone = run();
  expect_success(first);
  expect_success(second);
  expect_success(alone);
  EXPECT_TRUE(kept(first) && !took(first)) << first.err;
  EXPECT_TRUE(took(second) && !kept(second)) << second.err;
  EXPECT_TRUE(took(alone)) << "whatever the number of ranks: " << alone.err;
  EXPECT_EQ(files_of(tokens_).size(), 1u);
  expect_same_losses(folder_ / "plain", folder_ / "run0", 1e-12);
  expect_same_losses(folder_ / "plain", folder_ / "run1", 1e-12);
}

TEST_F(TokenizedPath, WhateverDecidesTheTokensMakesThemAnewAndIsNamed) {
  const std::string data = folder_ / "rows.jsonl", model = folder_ / "model";
  fs::copy(task_.model(), model);
  spill(data, slurp(task_.data()));
  const std::string base = "dataset=" + data + " model_name_or_path=" + model + " ";
  expect_success(run(base));
  std::size_t kinds = 1;
  for (const auto& [more, named] : std::vector<std::pair<std::string, std::string>>{
           {"cutoff_len=120", "cutoff_len: was '128', is '120'"},
           {"template=qwen", "template: was 'chatml', is 'qwen'"},
           {"train_on_prompt=true", "train_on_prompt"},
           {"mask_history=true", "mask_history"},
           {"default_system=hello", "default_system"},
           {"split_special_tokens=true", "split_special_tokens"},
           {"max_samples=100", "data set 1: rows"},
           {"dataset=" + task_.data(), "data set 1: file 1"}}) {
    SCOPED_TRACE(more);
    const Outcome other = run(base + more);
    expect_success(other);
    EXPECT_TRUE(kept(other) && !took(other)) << other.err;
    EXPECT_NE(other.err.find(named), std::string::npos) << other.err;
    EXPECT_EQ(files_of(tokens_).size(), ++kinds);
    EXPECT_TRUE(took(run(base + more)));
  }
  // Another seed uses the same tokens. A changed file gives other tokens, even if its length is equal.
  EXPECT_TRUE(took(run(base + "seed=7")));
  std::string text = slurp(data);
  text[text.find("content") + 12] ^= 1;
  spill(data, text);
  fs::last_write_time(data, fs::file_time_type::clock::now() + std::chrono::seconds(5));
  const Outcome changed = run(base);
  EXPECT_TRUE(kept(changed)) << changed.err;
  EXPECT_NE(changed.err.find("data set 1: file 1"), std::string::npos) << changed.err;
  std::string tokenizer = slurp(model + "/tokenizer.json");
  spill(model + "/tokenizer.json", tokenizer + "\n");
  const Outcome other = run(base);
  EXPECT_TRUE(kept(other)) << other.err;
  EXPECT_NE(other.err.find("tokenizer.json"), std::string::npos) << other.err;
}

TEST_F(TokenizedPath, DamagedTokensAreMadeAnewAndSaid) {
  expect_success(run());
  const std::string file = files_of(tokens_).at(0), whole = slurp(file);
  for (const std::size_t size : {whole.size() - 3, whole.size() / 2, std::size_t{60}, std::size_t{0}}) {
    spill(file, whole.substr(0, size));
    const Outcome again = run("", 2);
    expect_success(again);
    EXPECT_TRUE(kept(again)) << again.err;
    EXPECT_NE(again.err.find("is damaged"), std::string::npos) << again.err;
    EXPECT_EQ(slurp(file), whole);
  }
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 4;
  spill(file, flipped);
  EXPECT_TRUE(kept(run()));
  const Outcome forced = run("overwrite_cache=true");
  EXPECT_TRUE(kept(forced) && !took(forced)) << "asked to";
}

TEST_F(TokenizedPath, RunsAtTheSameTimeDoNotDisturbEachOther) {
  std::vector<Outcome> outcomes(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = trainer(task_.train(folder_ / ("same" + std::to_string(i)),
                                        "max_steps=2 save_strategy=no tokenized_path=" + tokens_),
                            i == 0 ? 2 : 0);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) expect_success(outcome);
  EXPECT_EQ(files_of(tokens_).size(), 1u) << "no temporary file is left";
  EXPECT_TRUE(took(run()));
  expect_same_losses(folder_ / "same0", folder_ / "same1", 1e-5);
  expect_same_losses(folder_ / "same1", folder_ / "same2", 1e-12);
}

TEST_F(TokenizedPath, AFolderThatCannotBeWrittenIsSaidOnce) {
  tokens_ = "/proc/nothing";
  const Outcome outcome = run("", 2);
  EXPECT_EQ(outcome.code, 64) << outcome.both();
  EXPECT_EQ(errors_in(outcome), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("/proc/nothing"), std::string::npos) << outcome.err;
}

TEST_F(TokenizedPath, TheLimitOfBrokenRowsHoldsForTokensThatWereKept) {
  spill(folder_ / "rows.jsonl", slurp(task_.data()) + "{\"broken\n{\"broken\n");
  const std::string base = "dataset=" + (folder_ / "rows.jsonl");
  expect_success(run(base));
  const Outcome strict = run(base + " max_broken_rows=1");
  EXPECT_EQ(strict.code, 64) << strict.both();
  EXPECT_NE(strict.err.find("rows.jsonl:241"), std::string::npos) << strict.err;
}

}  // namespace
}  // namespace octet::test::tokenized_path_test
