// `trainer generate` with layers split among ranks: equal answers, memory as planned, and one message for an
// impossible split.
#include <regex>

#include "cli/generate_task.h"
#include "octet/base/json.h"

namespace octet::test::generate_split_test {
namespace {

struct SplitRun {
  int np, tensor, stages;
  std::string words() const {
    return " --tensor_parallel_size " + std::to_string(tensor) + " --pipeline_parallel_size " +
           std::to_string(stages) + " ";
  }
};

class SplitAnswers : public GenerateFile {
 protected:
  /// Expects the answers of the whole model.
  void expect_same(const std::vector<SplitRun>& runs) const {
    spill(folder_ / "prompt.txt", "These are words that stand before every question: {text}");
    const std::string asked =
        "--overwrite --max-new 24 --ignore-eos --max-length 128 --n 2 --temperature 1.2 --batch 5 "
        "--prompt-file " +
        (folder_ / "prompt.txt") + " ";
    ASSERT_EQ(trainer(command("whole.jsonl", asked)).code, 0);
    const std::string want = slurp(folder_ / "whole.jsonl");
    for (const SplitRun& run : runs) {
      const Outcome split = trainer(command("split.jsonl", asked + run.words()), run.np);
      ASSERT_EQ(split.code, 0) << split.both();
      EXPECT_EQ(slurp(folder_ / "split.jsonl"), want) << run.np << " ranks," << run.words();
      const int replicas = run.np / (run.tensor * run.stages);
      EXPECT_NE(split.err.find(std::to_string(replicas) + " replica"), std::string::npos) << split.err;
    }
    // The other spelling of the options, with a small cache of small pages.
    const Outcome dashes =
        trainer(command("split.jsonl", asked + "--tensor-parallel-size 2 --pipeline-parallel-size 1 "
                                               "--kv-page-tokens 4 --kv-cache-bytes 70000"),
                2);
    ASSERT_EQ(dashes.code, 0) << dashes.both();
    EXPECT_EQ(slurp(folder_ / "split.jsonl"), want);
  }
  void expect_adapters_alike(const std::vector<SplitRun>& runs) const;
};
class WholeSplitAnswers : public SplitAnswers {};

TEST_F(SplitAnswers, AreTheSameHoweverTheModelIsSplit) {
  expect_same({{2, 1, 2}, {4, 2, 2}});
}

TEST_F(WholeSplitAnswers, AreTheSameInEveryWay) {
  expect_same({{2, 2, 1}, {4, 2, 1}, {4, 1, 2}});
}

TEST_F(WholeGenerateFile, ScoresOfASplitModelAreThoseOfTheWholeOne) {
  const auto logprobs = [&](const std::string& more, int np) {
    std::vector<double> all;
    for (const Json& row : answers("scores.jsonl", "--overwrite --score " + more, np)) {
      for (const Json& value : row["logprobs"]) all.push_back(value);
    }
    return all;
  };
  const std::vector<double> want = logprobs("", 0);
  ASSERT_FALSE(want.empty());
  for (const SplitRun& run : {SplitRun{2, 2, 1}, {2, 1, 2}, {4, 2, 2}}) {
    const std::vector<double> got = logprobs(run.words(), run.np);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << run.words();
  }
}

TEST_F(GenerateFile, ASplitModelAnswersFromTheCommandLine) {
  const std::string words =
      "generate " + trained_model() + " --template chatml --device cpu --max-new 8 Sort ";
  const Outcome whole = trainer(words);
  ASSERT_EQ(whole.code, 0) << whole.both();
  for (const SplitRun& run : {SplitRun{2, 2, 1}, {4, 1, 2}}) {
    const Outcome split = trainer(words + run.words(), run.np);
    EXPECT_EQ(split.code, 0) << split.both();
    EXPECT_EQ(split.out, whole.out);
  }
}

/// Returns the log-probabilities of one text under a reference model, which has no tokenizer.
std::vector<double> scored(const TemporaryFolder& folder, const std::string& model, const std::string& more,
                           int np) {
  Json ids = Json::array();
  for (int i = 0; i < 40; ++i) ids.push_back((7 * i + i * i) % 192);
  spill(folder / "text.jsonl", Json{{"prompt_ids", ids}}.dump() + "\n");
  const Outcome run =
      trainer("generate " + model + " --device cpu --max-length 64 --score --file " +
                  (folder / "text.jsonl") + " --overwrite --out " + (folder / "scores.jsonl") + " " + more,
              np);
  EXPECT_EQ(run.code, 0) << run.both();
  const auto rows = rows_of(folder / "scores.jsonl");
  return rows.size() == 1 ? rows[0]["logprobs"].get<std::vector<double>>() : std::vector<double>();
}

// 4-bit weights are decoded when they are read. Adapters are added to shards as to whole matrices.
void SplitAnswers::expect_adapters_alike(const std::vector<SplitRun>& runs) const {
  const std::string base = kGolden + "models/llama3", adapters = kGolden + "adapters/";
  for (const std::string& more :
       {base + " --adapter " + adapters + "llama3-lora/adapter",
        base + " --adapter " + adapters + "llama3-dora/adapter", adapters + "saved-nf4"}) {
    const std::vector<double> want = scored(folder_, more, "", 0);
    ASSERT_EQ(want.size(), 39u) << more;
    EXPECT_NE(want, scored(folder_, base, "", 0)) << more;
    for (const SplitRun& run : runs) {
      const std::vector<double> got = scored(folder_, more, run.words(), run.np);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << more << run.words();
    }
  }
}

TEST_F(SplitAnswers, AdaptersAndQuantisedFoldersAreSplitAlike) {
  expect_adapters_alike({{2, 2, 1}});
}

TEST_F(WholeSplitAnswers, AdaptersAndQuantisedFoldersAreSplitAlikeAmongFour) {
  expect_adapters_alike({{4, 2, 2}, {4, 4, 1}});
}

/// Returns the bytes that the rank with the largest reservation reports, without messages.
std::int64_t reserved_by(const Outcome& run) {
  std::smatch found;
  if (!std::regex_search(run.err, found, std::regex("; one rank reserves ([0-9,]+) bytes at most"))) {
    ADD_FAILURE() << run.both();
    return 0;
  }
  std::string digits = found[1];
  std::erase(digits, ',');
  return std::stoll(digits);
}

TEST_F(WholeGenerateFile, ARankOfASplitModelHoldsWhatThePlanSays) {
  for (const SplitRun& run : {SplitRun{2, 2, 1}, {2, 1, 2}, {4, 2, 2}}) {
    const Outcome split =
        trainer(command("split.jsonl", "--overwrite --batch 3 --max-length 128" + run.words()), run.np);
    ASSERT_EQ(split.code, 0) << split.both();
    const Outcome planned = trainer("plan " + trained_model() +
                                    " --generate device=cpu --json batch=3 max_length=128" + run.words());
    ASSERT_EQ(planned.code, 0) << planned.both();
    const Json plan = parse_json(planned.out, "plan");
    const auto ranks = plan["total_bytes_of_ranks"].get<std::vector<std::int64_t>>();
    EXPECT_EQ(static_cast<int>(ranks.size()), run.tensor * run.stages);
    EXPECT_EQ(std::ranges::max(ranks), plan["total_bytes"].get<std::int64_t>());
    const auto arena = plan["total_bytes"].get<std::int64_t>() - plan["messages_bytes"].get<std::int64_t>();
    EXPECT_EQ(arena, reserved_by(split)) << run.words();
  }
}

TEST_F(GenerateFile, WhatCannotBeSplitIsRefusedInASentence) {
  refused("--tensor_parallel_size 3", "attention heads, 2");
  refused("--tensor_parallel_size 4", "attention heads, 2");
  refused("--pipeline_parallel_size 3", "1 to 2 stages");
  refused("--tensor_parallel_size 2 --pipeline_parallel_size 2", "a multiple of 4");
  refused("--tensor_parallel_size 0", "tensor-parallel-size");
  refused("--pipeline_parallel_size 0", "pipeline-parallel-size");
  const Outcome one = trainer(command("refused.jsonl", "--tensor_parallel_size 2"));
  EXPECT_EQ(one.code, 64) << one.both();
  EXPECT_NE(one.err.find("a multiple of 2"), std::string::npos) << one.both();
  EXPECT_EQ(errors_in(one), 1) << one.both();
  const Outcome three = trainer(command("refused.jsonl", "--tensor_parallel_size 2"), 3);
  EXPECT_EQ(three.code, 64) << three.both();
  EXPECT_EQ(errors_in(three), 1) << three.both();
}

// The leading rank detects wrong rows, and all ranks end with its error.
TEST_F(GenerateFile, WrongRowsEndAllRanksOfASplitModel) {
  for (const SplitRun& run : {SplitRun{2, 2, 1}, {4, 1, 2}}) {
    const Outcome split =
        trainer(command("refused.jsonl", "--overwrite --max-length 9 --max-new 4" + run.words()), run.np);
    EXPECT_EQ(split.code, 64) << split.both();
    EXPECT_EQ(errors_in(split), 1) << split.both();
    EXPECT_NE(split.err.find("rows could not be answered"), std::string::npos) << split.both();
  }
}

TEST(SplitTraining, IsRefusedByName) {
  for (const char* key : {"tensor_parallel_size=2", "pipeline_parallel_size=2"}) {
    const TemporaryFolder folder("split_training");
    const Outcome run = trainer(Task::get().train(folder / "run", key));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    const std::string name(key, std::string(key).find('='));
    EXPECT_NE(run.err.find("'" + name), std::string::npos) << run.both();
    EXPECT_NE(run.err.find("trainer generate"), std::string::npos) << run.both();
  }
  // The value 1 (no split) changes nothing.
  const TemporaryFolder folder("split_training");
  const Outcome run = trainer("lint " + Task::get().config() +
                              " tensor_parallel_size=1 bf16=true output_dir=" + (folder / "run"));
  EXPECT_EQ(run.code, 0) << run.both();
}

TEST(SplitBench, MeasuresTheRanksOfOneModel) {
  for (const SplitRun& run : {SplitRun{2, 2, 1}, {2, 1, 2}}) {
    const Outcome bench =
        trainer("bench tiny --decode sequences=3 context=8 steps=4 warmup=1 device=cpu bf16=false --json" +
                    run.words(),
                run.np);
    ASSERT_EQ(bench.code, 0) << bench.both();
    const Json line = parse_json(bench.out, "bench");
    EXPECT_EQ(line["tensor_parallel_size"], run.tensor);
    EXPECT_EQ(line["pipeline_parallel_size"], run.stages);
    EXPECT_GT(line["tokens_per_second"].get<double>(), 0);
  }
  const Outcome wrong = trainer("bench tiny --decode tensor_parallel_size=2 device=cpu");
  EXPECT_EQ(wrong.code, 64) << wrong.both();
  EXPECT_NE(wrong.err.find("2 ranks (mpirun -np)"), std::string::npos) << wrong.both();
}

}  // namespace
}  // namespace octet::test::generate_split_test
