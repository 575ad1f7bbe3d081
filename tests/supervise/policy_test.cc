#include "octet/supervise/policy.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace octet::supervise::policy_test {
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
  for (int i = 0; i < 4; ++i) waits.push_back(policy.decide({.code = 137, .step = i}).wait);
  EXPECT_EQ(waits, (std::vector<double>{2, 4, 8, 10}));
  EXPECT_EQ(policy.decide({.code = 137, .progressed = true}).wait, 0);
  EXPECT_EQ(policy.decide({.code = 137}).wait, 2);
}

TEST(Policy, GivesUpBehindSoManyStartsInARowWithoutProgress) {
  Policy policy(kOptions);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(policy.decide({.code = 137, .step = i}).next, Next::start) << i;
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

TEST(Policy, GivesUpWhenTheSameSignalEndsThreeStartsAfterTheSameStep) {
  for (const int signal : {4, 7, 9, 11}) {
    for (const std::int64_t step : {-1, 0, 5}) {
      Policy policy({.most_starts = 10});
      const Ended ended{.code = 128 + signal, .step = step};
      EXPECT_EQ(policy.decide(ended).next, Next::start);
      EXPECT_EQ(policy.decide(ended).next, Next::start);
      const Decision last = policy.decide(ended);
      EXPECT_EQ(last.next, Next::end) << signal;
      EXPECT_EQ(last.code, 128 + signal);
      EXPECT_NE(last.why.find("3 times in a row after the same step"), std::string::npos) << last.why;
    }
  }
  // Another step, another signal, or a checkpoint restarts the count.
  for (const Ended& other :
       {Ended{.code = 132, .step = 6}, Ended{.code = 139, .step = 5},
        Ended{.code = 132, .progressed = true, .step = 5}, Ended{.code = 75, .step = 5}}) {
    Policy policy({.most_starts = 10});
    for (const Ended& ended :
         {Ended{.code = 132, .step = 5}, Ended{.code = 132, .step = 5}, other, Ended{.code = 132, .step = 5}})
      EXPECT_EQ(policy.decide(ended).next, Next::start) << ended.code;
  }
}

TEST(Policy, CountsAnewBehindAChangeOfTheJob) {
  Policy policy({.most_starts = 2});
  EXPECT_EQ(policy.decide({.code = 75}).next, Next::start);
  policy.begin_anew();
  EXPECT_EQ(policy.decide({.code = 75}).next, Next::start);
  EXPECT_EQ(policy.decide({.code = 75}).next, Next::end);
}

// The fault of code 1 and similar codes mostly returns. Other codes mean faults that may pass.
TEST(Policy, OnlyCodesThatSayWhatIsWrongAreTriedAsOftenAsAllowed) {
  const auto starts = [](int code) {
    Policy policy(kOptions);
    int count = 1;
    while (count < 20 && policy.decide({.code = code, .step = count}).next == Next::start) ++count;
    return count;
  };
  for (const int code : {73, 74, 75, 76, 78, 129, 137}) EXPECT_EQ(starts(code), 5) << code;
  for (const int code : {1, 2, 65, 72, 79, 128}) EXPECT_EQ(starts(code), 3) << code;
  EXPECT_EQ(starts(64), 1);
}

TEST(Policy, KnowsWhatCodesMean) {
  const std::pair<int, const char*> codes[] = {
      {0, "the run is complete"},
      {2, "the run failed"},
      {64, "configuration, command line, model or data cannot be used"},
      {73, "another run uses the output folder"},
      {74, "a disk is full or fails"},
      {75, "something did not answer, or a host was lost"},
      {76, "stopped as asked"},
      {77, "there is no valid checkpoint"},
      {78, "what was trained could not be saved"},
      {126, "the program cannot be started"},
      {127, "the program cannot be started"},
      {128, "the run failed"},
      {129, "signal 1 ended a process of the job"},
      {137, "signal 9 ended a process of the job"}};
  for (const auto& [code, meaning] : codes) EXPECT_EQ(meaning_of(code), meaning) << code;
  EXPECT_EQ(Policy(kOptions).decide({.code = 77}).why,
            "another start would fail in the same way: there is no valid checkpoint");
}

}  // namespace
}  // namespace octet::supervise::policy_test
