#include "../src/supervise/places.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/config/config.h"

namespace octet::supervise::places_test {
namespace {

Command command(const std::string& words) {
  return parse_command("mpi", split(words, ' '), [](const std::string& word) { return word == "trainer"; });
}

config::Config batches_of(std::int64_t global) {
  config::Config config;
  config.per_device_train_batch_size = 2;
  if (global > 0) config.global_batch_size = global;
  return config;
}

std::string joined(const Strings& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

Fault lost(const std::string& host) {
  return {.who = "host " + host, .lost_hosts = {host}};
}

constexpr int kHang = 75;

TEST(Places, AreLeftAsTheyAreUnlessFewerAreWanted) {
  Places places(command("-np 8 --host a:4,b:4 trainer c.yaml"), batches_of(16), 0);
  EXPECT_EQ(places.after(kHang, false, lost("b")), "");
  EXPECT_TRUE(places.overrides().empty());
}

TEST(Places, AHostThatIsLostIsLeftOut) {
  Places places(command("-np 8 --host a:4,b:4 trainer c.yaml"), batches_of(16), 2);
  EXPECT_EQ(places.after(kHang, true, lost("b")), "the run continues without host b, with 4 ranks");
  EXPECT_EQ(joined(places.command().words()), "mpi --host a:4 -np 4 trainer c.yaml");
  EXPECT_EQ(places.after(kHang, true, lost("a")), "") << "there is no other";
  EXPECT_EQ(places.ranks(), 4);
}

TEST(Places, AHostIsNotLeftOutWhereTooFewRanksRemain) {
  Places places(command("-np 8 --host a:4,b:4 trainer c.yaml"), batches_of(16), 5);
  EXPECT_EQ(places.after(kHang, true, lost("b")), "");
  EXPECT_EQ(places.ranks(), 8);
}

TEST(Places, AStepDividesAmongTheRanksThatAreLeft) {
  // 24 samples in micro-batches of 2 divide among 6, 4, 3, 2 or 1 ranks, but not among 5.
  Places places(command("-np 6 trainer c.yaml"), batches_of(24), 2);
  for (int start = 0; start < 2; ++start) EXPECT_EQ(places.after(kHang, false, {}), "");
  EXPECT_EQ(places.after(kHang, false, {}),
            "the run continues with 4 ranks: 3 starts with more ranks did not reach their first step");
  for (int start = 0; start < 3; ++start) places.after(kHang, false, {});
  EXPECT_EQ(places.ranks(), 3);
  for (int start = 0; start < 6; ++start) places.after(kHang, false, {});
  EXPECT_EQ(places.ranks(), 2) << "no fewer than asked for";
}

TEST(Places, OnlyStartsThatHangInARowBeforeTheirFirstStepCount) {
  Places places(command("-np 6 trainer c.yaml"), batches_of(24), 2);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(places.after(kHang, false, {}), "");
    EXPECT_EQ(places.after(kHang, false, {}), "");
    EXPECT_EQ(places.after(i % 2 == 0 ? kHang : 137, i % 2 == 0, {}), "");
  }
}

TEST(Places, TheSizeOfAStepIsThatOfTheFirstStart) {
  config::Config config = batches_of(0);
  Places free(command("-np 6 trainer c.yaml"), config, 1);
  EXPECT_EQ(joined(free.overrides()), "global_batch_size=12");
  config.gradient_accumulation_steps = 3;
  Places accumulates(command("-np 4 trainer c.yaml"), config, 1);
  EXPECT_EQ(joined(accumulates.overrides()), "global_batch_size=24 gradient_accumulation_steps=null");
  for (int start = 0; start < 3; ++start) accumulates.after(kHang, false, {});
  EXPECT_EQ(accumulates.ranks(), 3);
  EXPECT_TRUE(Places(command("-np 4 trainer c.yaml"), batches_of(16), 1).overrides().empty());
}

TEST(Places, ThreeHangsAreCountedAnewBehindEveryChange) {
  Places places(command("-np 8 --host a:2,b:3,c:3 trainer c.yaml"), batches_of(24), 1);
  for (int start = 0; start < 2; ++start) EXPECT_EQ(places.after(kHang, false, {}), "");
  EXPECT_EQ(places.after(kHang, false, lost("c")), "the run continues without host c, with 4 ranks")
      << "24 samples do not divide among the five places that are left";
  for (int start = 0; start < 2; ++start) EXPECT_EQ(places.after(kHang, false, {}), "");
  EXPECT_NE(places.after(kHang, false, {}), "");
  for (int start = 0; start < 2; ++start) EXPECT_EQ(places.after(kHang, false, {}), "");
  EXPECT_EQ(places.after(kHang, false, lost("elsewhere")),
            "the run continues with 2 ranks: 3 starts with more ranks did not reach their first step");
}

TEST(Places, ASizeThatIsFoundByItselfFitsTheRanksThatAreLeft) {
  config::Config config;
  config.auto_find_batch_size = true;
  config.global_batch_size = 8;
  Places places(command("-np 8 trainer c.yaml"), config, 3);
  for (int start = 0; start < 3; ++start) places.after(kHang, false, {});
  EXPECT_EQ(places.ranks(), 4) << "eight samples divide among four ranks, and not among seven to five";
  for (int start = 0; start < 3; ++start) EXPECT_EQ(places.after(kHang, false, {}), "");
  EXPECT_EQ(places.ranks(), 4) << "nor among three";
}

TEST(Places, AStepThatIsChosenByItselfStaysWhenThereAreFewerRanks) {
  config::Config config;
  config.auto_find_batch_size = true;
  config.gradient_accumulation_steps = config::kAutomatic;
  Places places(command("-np 8 trainer c.yaml"), config, 3);
  for (int start = 0; start < 3; ++start) places.after(kHang, false, {});
  EXPECT_EQ(places.ranks(), 4) << "32 samples divide among four ranks, and not among seven to five";
  config.gradient_accumulation_steps = 4;
  EXPECT_THROW(Places(command("-np 8 trainer c.yaml"), config, 3), Error);
  EXPECT_NO_THROW(Places(command("-np 8 trainer c.yaml"), config, 0));
}

TEST(Places, RefusesANumberThatDoesNotFit) {
  const auto refusal = [](const std::string& words, int least) {
    try {
      const Places places(command(words), batches_of(16), least);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      return e.problem().expected + " / " + e.problem().found;
    }
    return std::string("none");
  };
  EXPECT_EQ(refusal("-np 4 trainer c.yaml", 5), "1 to 4 / 5");
  EXPECT_EQ(refusal("-np 4 trainer c.yaml", -1), "1 to 4 / -1");
  EXPECT_EQ(refusal("trainer c.yaml", 1), "launch/mpirun's argument -np N / 1");
  EXPECT_EQ(refusal("-np 4 trainer c.yaml", 4), "none");
}

}  // namespace
}  // namespace octet::supervise::places_test
