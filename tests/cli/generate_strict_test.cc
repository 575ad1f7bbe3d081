// `trainer generate --deterministic strict`: equal bits in every batch and page size, on any number of ranks,
// after a kill, and in a score of the whole text. Options that cannot be strict are refused by name.
#include "cli/generate_task.h"
#include "octet/base/json.h"

namespace octet::test::generate_strict_test {
namespace {

constexpr const char* kWays[] = {"--dtype fp32", "--dtype bf16", "--dtype fp8 --fp8-recipe block"};

TEST_F(WholeGenerateFile, StrictAnswersAreTheSameAnywhereAndAfterAKill) {
  for (const std::string way : kWays) {
    const std::string asked =
        "--deterministic strict --temperature 1 --logprobs 0 --n 2 --max-new 40 --ignore-eos "
        "--max-length 128 --overwrite " +
        way + " ";
    answers("one.jsonl", asked + "--batch 1 --no-prefix-sharing");
    const std::string want = slurp(folder_ / "one.jsonl");
    ASSERT_NE(want.find("logprobs"), std::string::npos);
    for (const auto& [np, more] : std::vector<std::pair<int, std::string>>{
             {0, "--batch 7 --kv-page-tokens 4"}, {2, "--batch 3 --kv-page-tokens 1"}, {4, ""}}) {
      answers("other.jsonl", asked + more, np);
      EXPECT_EQ(slurp(folder_ / "other.jsonl"), want) << way << " " << more << " on " << np;
    }
    const std::string notes = folder_ / "killed.jsonl.rows";
    std::filesystem::remove(notes);
    std::filesystem::remove(folder_ / "killed.jsonl");
    std::string kept = asked + "--batch 1";
    kept.erase(kept.find("--overwrite "), 12);
    const Outcome killed =
        shell(OCTET_TRAINER " " + command("killed.jsonl", kept) + " & job=$!; until [ $(cat " + notes +
              " 2>/dev/null | wc -l) -ge 3 ]; do sleep 0.01; done; kill -KILL $job; wait $job");
    EXPECT_EQ(killed.code, 137);
    const Outcome on = trainer(command("killed.jsonl", kept + " --batch 5"), 2);
    ASSERT_EQ(on.code, 0) << on.both();
    EXPECT_NE(on.err.find(" of 12 rows are answered already"), std::string::npos) << on.both();
    EXPECT_EQ(slurp(folder_ / "killed.jsonl"), want) << way;
  }
}

// A score reads the text as a whole, and also in other pieces.
TEST_F(WholeGenerateFile, StrictScoresOfAnswersAreWhatWasToldOfThem) {
  for (const std::string way : kWays) {
    const std::string strict = "generate " + kGolden +
                               "models/qwen3 --device cpu --no-model-defaults --overwrite "
                               "--deterministic strict --max-length 192 " +
                               way;
    std::string asked;
    for (int row = 0; row < 5; ++row) {
      Json ids = Json::array();
      for (int t = 0; t < 3 + 19 * row; ++t) ids.push_back((7 * row + t * t) % 190);
      asked += Json{{"prompt_ids", ids}}.dump() + "\n";
    }
    spill(folder_ / "asked.jsonl", asked);
    const Outcome run = trainer(strict + " --temperature 1 --logprobs 0 --max-new 50 --batch 3 --file " +
                                (folder_ / "asked.jsonl") + " --out " + (folder_ / "told.jsonl"));
    ASSERT_EQ(run.code, 0) << run.both();
    const std::vector<Json> told = rows_of(folder_ / "told.jsonl");
    std::string texts;
    for (const Json& row : told) {
      Json ids = row["prompt_ids"];
      for (const Json& id : row["output_ids"]) ids.push_back(id);
      texts += Json{{"prompt_ids", ids}}.dump() + "\n";
    }
    spill(folder_ / "texts.jsonl", texts);
    const Outcome scored = trainer(
        strict + " --score --file " + (folder_ / "texts.jsonl") + " --out " + (folder_ / "scores.jsonl"), 2);
    ASSERT_EQ(scored.code, 0) << scored.both();
    const std::vector<Json> scores = rows_of(folder_ / "scores.jsonl");
    ASSERT_EQ(scores.size(), told.size());
    for (std::size_t i = 0; i < told.size(); ++i) {
      const Json& all = scores[i]["logprobs"];
      const std::size_t count = told[i]["logprobs"].size();
      ASSERT_GT(count, 0u);
      for (std::size_t t = 0; t < count; ++t)
        EXPECT_EQ(told[i]["logprobs"][t], all[all.size() - count + t])
            << way << ", row " << i << ", token " << t;
    }
  }
}

TEST_F(GenerateFile, WhatStrictAnswersCannotHaveIsRefusedByName) {
  const std::string strict = "--deterministic strict ";
  refused(strict + "--dtype fp8", "--fp8-recipe block, or --dtype bf16");
  refused(strict + "--dtype fp8 --fp8-recipe current", "fp8_recipe: current");
  refused(strict + "--dtype fp8 --fp8-recipe delayed", "fp8_recipe: delayed");
  refused(strict + "--kv-cache-dtype fp8", "excludes a cache in FP8");
  refused("--dtype fp8 --fp8-recipe delayed", "--fp8-recipe rows or block");
  refused("--dtype bf16 --fp8-recipe block", "--fp8-recipe is a setting of --dtype fp8");
  refused("--deterministic true", "--deterministic");
}

// Block-wise FP8 and strictness change answers, so they are not mixed with other answers.
TEST_F(GenerateFile, StrictAnswersAndOthersAreNotMixed) {
  answers("kept.jsonl", "--dtype fp8");
  for (const char* other :
       {"--dtype fp8 --fp8-recipe block", "--dtype fp8 --fp8-recipe block --deterministic strict"}) {
    const Outcome run = trainer(command("kept.jsonl", other));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_NE(run.err.find("made with other settings"), std::string::npos) << run.both();
  }
  answers("plain.jsonl", "--dtype bf16");
  EXPECT_EQ(trainer(command("plain.jsonl", "--dtype bf16 --deterministic strict")).code, 64);
  EXPECT_EQ(trainer(command("kept.jsonl", "--dtype fp8 --fp8-recipe rows --deterministic auto")).code, 0);
}

TEST(Bench, DecodesStrictlyAndRefusesWhatCannotBe) {
  const std::string decode = "bench tiny --decode sequences=3 context=20 steps=2 warmup=1 device=cpu ";
  const Outcome run = trainer(decode + "deterministic=strict");
  ASSERT_EQ(run.code, 0) << run.both();
  EXPECT_NE(run.out.find("bf16, strict"), std::string::npos) << run.both();
  const Outcome blocks = trainer(decode + "deterministic=strict fp8=true fp8_recipe=block");
  ASSERT_EQ(blocks.code, 0) << blocks.both();
  EXPECT_NE(blocks.out.find("FP8 block in bf16, strict"), std::string::npos) << blocks.both();
  for (const char* other :
       {"fp8=true fp8_recipe=current", "fp8=true fp8_recipe=delayed", "kv_cache_dtype=fp8"}) {
    const Outcome refused = trainer(decode + "deterministic=strict " + other);
    EXPECT_EQ(refused.code, 64) << refused.both();
  }
  EXPECT_NE(
      trainer(decode + "deterministic=strict fp8=true fp8_recipe=current").err.find("fp8_recipe: current"),
      std::string::npos);
}

TEST(Plan, OfStrictAnswersIsWhatTheyHold) {
  const std::string plan = "plan tiny --generate batch=2 max_length=128 dtype=bf16 device=cpu --json ";
  const Json plain = parse_json(trainer(plan).out, "plan"),
             strict = parse_json(trainer(plan + "deterministic=strict").out, "plan");
  EXPECT_GT(strict["total_bytes"].get<double>(), plain["total_bytes"].get<double>())
      << "logits in bf16, scratch of attention";
}

}  // namespace
}  // namespace octet::test::generate_strict_test
