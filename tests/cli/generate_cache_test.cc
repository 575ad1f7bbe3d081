// `trainer generate` with a cache of a given size: equal answers with every size, and the reported figures.
#include <regex>

#include "cli/generate_task.h"
#include "octet/base/json.h"

namespace octet::test::generate_cache_test {
namespace {

/// Returns the plan of `trainer plan --generate` for the model.
Json plan_of_cache(const std::string& arguments) {
  const Outcome run = trainer("plan " + trained_model() + " --generate device=cpu --json " + arguments);
  EXPECT_EQ(run.code, 0) << run.both();
  return parse_json(run.out, "plan");
}

/// Returns the numbers of the line about the cache: pages held, pages, tokens per page, sequences put back,
/// tokens computed again.
std::vector<std::int64_t> cache_line(const Outcome& run) {
  const std::regex line(
      "cache: at most ([0-9,]+) of ([0-9,]+) pages of ([0-9]+) tokens held, ([0-9,]+) sequences returned to "
      "the queue "
      "\\(([0-9,]+) tokens computed again\\)");
  std::smatch found;
  std::vector<std::int64_t> numbers;
  if (!std::regex_search(run.err, found, line)) {
    ADD_FAILURE() << run.both();
    return std::vector<std::int64_t>(5);
  }
  for (std::size_t i = 1; i < found.size(); ++i) {
    std::string digits = found[i];
    std::erase(digits, ',');
    numbers.push_back(std::stoll(digits));
  }
  return numbers;
}

// A common prefix, so that pages can be shared.
constexpr const char* kPrompt = "These are many words that stand before every question, again: {text}";

TEST_F(WholeGenerateFile, ASmallCacheInSmallPagesGivesTheSameAnswersAtAnyNumberOfRanks) {
  spill(folder_ / "prompt.txt", kPrompt);
  const std::string asked =
      "--max-new 40 --ignore-eos --max-length 128 --logprobs 2 --temperature 1.5 --n 2 "
      "--deterministic strict "  // otherwise, CPUs may sum a row in another order in a larger batch
      "--prompt-file " +
      (folder_ / "prompt.txt") + " ";
  ASSERT_EQ(
      trainer(command("whole.jsonl", asked + "--kv-page-tokens 128 --no-prefix-sharing --batch 1")).code, 0);
  const std::string want = slurp(folder_ / "whole.jsonl");
  const auto two = plan_of_cache("batch=2 max_length=128 kv_page_tokens=4")["cache_bytes"].get<double>();
  const std::string small =
      "--kv-page-tokens 4 --kv-cache-bytes " + std::to_string(static_cast<std::int64_t>(two)) + " ";
  for (const int np : {0, 2}) {
    for (const int batch : {1, 3, 64}) {
      for (const char* sharing : {"", "--no-prefix-sharing "}) {
        const Outcome run = trainer(command("small.jsonl", "--overwrite --batch " + std::to_string(batch) +
                                                               " " + asked + small + sharing),
                                    np);
        ASSERT_EQ(run.code, 0) << run.both();
        EXPECT_EQ(slurp(folder_ / "small.jsonl"), want) << np << " ranks, batch " << batch << " " << sharing;
        const std::vector<std::int64_t> line = cache_line(run);
        EXPECT_GT(line[0], 0);
        EXPECT_LE(line[0], line[1]);
        EXPECT_EQ(line[1], 2 * 128 / 4 * std::max(1, np)) << "two sequences a rank";
        EXPECT_EQ(line[2], 4);
        if (batch == 1) {
          EXPECT_EQ(line[3], 0);
          EXPECT_EQ(line[4], 0);
        } else if (batch == 64 && *sharing != 0) {
          EXPECT_GT(line[3], 0) << run.err;
          EXPECT_GT(line[4], 0) << run.err;
        }
        const bool none_shared = run.err.find(" 0.0 % of them shared") != std::string::npos;
        EXPECT_EQ(none_shared, *sharing != 0) << run.err;
      }
    }
  }
}

// The line also has the total number of prompt tokens.
TEST_F(WholeGenerateFile, APassTakesAsManyTokensAsAreAskedFor) {
  const auto told = [](const std::string& words, const std::string& before) {
    const std::size_t end = words.find(before);
    if (end == std::string::npos) return std::int64_t{-1};
    std::string digits = words.substr(0, end);
    digits = digits.substr(digits.find_last_of(" \n") + 1);
    std::erase(digits, ',');
    return std::int64_t{std::stoll(digits)};
  };
  const std::string one = "--overwrite --max-new 1 --max-length 128 --no-prefix-sharing --batch 12 ";
  const Outcome at_once = trainer(command("told.jsonl", one));
  ASSERT_EQ(at_once.code, 0) << at_once.both();
  const std::int64_t tokens = told(at_once.err, " tokens of prompts");
  ASSERT_GT(tokens, 100) << at_once.err;
  EXPECT_EQ(told(at_once.err, " forward passes"), (tokens + 511) / 512) << at_once.err;
  for (const std::int64_t most : {64, 13, 12}) {
    const Outcome run =
        trainer(command("told.jsonl", one + "--max-num-batched-tokens " + std::to_string(most)));
    ASSERT_EQ(run.code, 0) << run.both();
    EXPECT_EQ(told(run.err, " forward passes"), (tokens + most - 1) / most) << run.err;
  }
  refused("--max-num-batched-tokens 0", "--max-num-batched-tokens");
}

TEST_F(GenerateFile, ByItselfTheCacheHoldsTheWholeBatch) {
  const Outcome run = trainer(command("told.jsonl", "--batch 3 --max-length 130 --ignore-eos"));
  ASSERT_EQ(run.code, 0) << run.both();
  const std::vector<std::int64_t> line = cache_line(run);
  EXPECT_EQ(line[1], 3 * 3) << "130 tokens lie in three pages";
  EXPECT_EQ(line[2], 64);
  EXPECT_EQ(line[3], 0);
  const Json plan = plan_of_cache("batch=3 max_length=130");
  EXPECT_EQ(plan["cache_pages"], 9);
  EXPECT_EQ(plan["cache_page_tokens"], 64);
}

TEST_F(WholeGenerateFile, WrongSizesOfTheCacheAreRefusedInASentence) {
  refused("--kv-cache-bytes 100 --max-length 128", "does not hold one sequence of 128 tokens");
  refused("--kv-cache-bytes 100 --max-length 128", "raise --kv-cache-bytes");
  refused("--kv-cache-bytes 0", "--kv-cache-bytes");
  refused("--kv-cache-bytes lots", "or one with a unit");
  for (const char* share : {"0", "1.5", "nan", "-0.1"})
    refused("--gpu-memory-utilization " + std::string(share), "above 0, at most 1");
  refused("--gpu-memory-utilization 0.5", "computes on a CPU");
  refused("--gpu-memory-utilization 0.5 --kv-cache-bytes 1GiB", "give one of them");
  refused("--kv-page-tokens 0", "--kv-page-tokens");
  refused("--kv-page-tokens 48", "a power of two");
}

}  // namespace
}  // namespace octet::test::generate_cache_test
