#include "octet/supervise/policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace octet::supervise {
namespace {

constexpr PolicyOptions kOptions{.most_starts = 5, .first_wait = 2, .longest_wait = 10};

TEST(Policy, EndsWithACompleteRunWhateverItsLauncherSays) {
  EXPECT_EQ(Policy(kOptions).decide({.code = 0}).next, Next::end);
  for (const int code : {0, 1, 75, 137, 143}) {
    const Decision decision = Policy(kOptions).decide({.code = code, .finished = true});
    EXPECT_EQ(decision.next, Next::end) << code;
    EXPECT_EQ(decision.code, 0) << code;
  }
}

TEST(Policy, DoesNotBelieveALauncherThatTheRunContradicts) {
  EXPECT_EQ(Policy(kOptions).decide({.code = 0, .unfinished = true}).next, Next::start);
}

TEST(Policy, NeverTriesAgainWhatEndsAlike) {
  for (const int code : {64, 77, 126, 127}) {
    const Decision decision = Policy(kOptions).decide({.code = code, .progressed = true});
    EXPECT_EQ(decision.next, Next::end) << code;
    EXPECT_EQ(decision.code, code);
    EXPECT_FALSE(decision.why.empty());
  }
}

TEST(Policy, TriesAgainWhatMayPass) {
  for (const int code : {1, 73, 74, 75, 76, 78, 129, 134, 137, 139, 143}) {
    EXPECT_EQ(Policy(kOptions).decide({.code = code}).next, Next::start) << code;
  }
}

TEST(Policy, EndsWithTheCodeOfARunThatWasAskedToStop) {
  for (const int code : {76, 78, 1, 137, 143}) {
    const Decision decision = Policy(kOptions).decide({.code = code, .asked = true});
    EXPECT_EQ(decision.next, Next::end) << code;
    EXPECT_EQ(decision.code, code);
  }
}

TEST(Policy, WaitsTwiceAsLongBehindEachStartWithoutProgressAndNotAtAllBehindOneWithSome) {
  Policy policy(kOptions);
  std::vector<double> waits;
  for (int i = 0; i < 4; ++i) waits.push_back(policy.decide({.code = 137}).wait);
  EXPECT_EQ(waits, (std::vector<double>{2, 4, 8, 10}));
  EXPECT_EQ(policy.decide({.code = 137, .progressed = true}).wait, 0);
  EXPECT_EQ(policy.decide({.code = 137}).wait, 2);
}

TEST(Policy, GivesUpBehindSoManyStartsInARowWithoutProgress) {
  Policy policy(kOptions);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(policy.decide({.code = 137}).next, Next::start) << i;
  EXPECT_EQ(policy.decide({.code = 137, .progressed = true}).next, Next::start);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(policy.decide({.code = 75}).next, Next::start) << i;
  const Decision last = policy.decide({.code = 75});
  EXPECT_EQ(last.next, Next::end);
  EXPECT_EQ(last.code, 75);
  EXPECT_NE(last.why.find("5 starts in a row"), std::string::npos) << last.why;
}

TEST(Policy, TriesAFailureWithoutANameOnlyAFewTimes) {
  Policy policy(kOptions);
  EXPECT_EQ(policy.decide({.code = 1}).next, Next::start);
  EXPECT_EQ(policy.decide({.code = 1}).next, Next::start);
  EXPECT_EQ(policy.decide({.code = 1}).next, Next::end);
}

TEST(Policy, CountsAnewBehindAChangeOfTheJob) {
  Policy policy({.most_starts = 2});
  EXPECT_EQ(policy.decide({.code = 75}).next, Next::start);
  policy.begin_anew();
  EXPECT_EQ(policy.decide({.code = 75}).next, Next::start);
  EXPECT_EQ(policy.decide({.code = 75}).next, Next::end);
}

TEST(Policy, KnowsWhatCodesMean) {
  EXPECT_EQ(meaning_of(76), "stopped as asked");
  EXPECT_EQ(meaning_of(137), "signal 9 ended a process of the job");
  EXPECT_EQ(meaning_of(127), "the program cannot be started");
  EXPECT_EQ(meaning_of(2), "the run failed");
}

}  // namespace
}  // namespace octet::supervise
