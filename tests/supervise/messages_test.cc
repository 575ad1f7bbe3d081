#include "octet/supervise/job_errors.h"

#include <gtest/gtest.h>

namespace octet::supervise::messages_test {
namespace {

Fault heard(std::string_view text) {
  Messages messages;
  messages.hear(text);
  return messages.fault();
}

TEST(Messages, NameTheRankThatIsMissingRatherThanTheOneThatNoticed) {
  const Fault fault = heard(
      "{'loss': 1.2}  step 3/10\n"
      "error: reduce_scatter: no message came or left for 5 s\n"
      "  expected: every rank to take part within ddp_timeout\n"
      "  found:    nothing from ranks 2, 3 (rank 2 does not answer; rank 3 does not answer)\n"
      "  where:    12 bytes, queue data, number 4; rank 0 on vm\n"
      "  to do:    look at what those ranks do\n");
  EXPECT_EQ(fault.what, "reduce_scatter: no message came or left for 5 s");
  EXPECT_EQ(fault.who, "ranks 2, 3");
}

TEST(Messages, NameTheRankWhereAnErrorWas) {
  const Fault fault = heard(
      "error: a rank was ended by signal 9 (Killed), and the others with it\n  where:    rank 1 on node7\n");
  EXPECT_EQ(fault.what, "a rank was ended by signal 9 (Killed), and the others with it");
  EXPECT_EQ(fault.who, "rank 1 on node7");
  EXPECT_EQ(heard("error: a file\n  where:    /data/x\n").who, "/data/x");
}

TEST(Messages, RanksThatAreFoundGoBeforeThoseWhoTell) {
  const auto who = [](const std::string& found, const std::string& where) {
    return heard("error: a\n  found:    " + found + "\n  where:    " + where + "\n").who;
  };
  EXPECT_EQ(who("nothing from rank 3; waited for 5 s", "rank 0 on vm"), "rank 3");
  EXPECT_EQ(who("nothing from ranks 1, 2 (both silent)", "rank 0 on vm"), "ranks 1, 2");
  EXPECT_EQ(who("12 bytes", "queue data, number 4; rank 0 on vm"), "rank 0 on vm");
  EXPECT_EQ(who("12 bytes", "  /data/x  "), "/data/x");
  EXPECT_EQ(who("rank x", "ranks of all"), "ranks of all");
}

TEST(Messages, TheFirstErrorIsTheCause) {
  const Fault fault = heard(
      "error: first\n  where:    rank 3 on a\nerror: second\n  where:    rank 1 on b\n  found:    rank 5\n");
  EXPECT_EQ(fault.what, "first");
  EXPECT_EQ(fault.who, "rank 3 on a");
}

TEST(Messages, AHostThatMpirunLostIsNamed) {
  const Fault fault = heard(
      "error: data: no message\n  found:    nothing from rank 3\n"
      "ORTE has lost communication with a remote daemon.\n\n"
      "  HNP daemon   : [[44385,0],0] on node node1\n"
      "  Remote daemon: [[44385,0],1] on node node2\n\nThis is usually due to\n");
  EXPECT_EQ(fault.who, "host node2");
  EXPECT_EQ(fault.lost_hosts, std::vector<std::string>{"node2"});
}

TEST(Messages, LinesMayComeInPiecesAndHoldAnything) {
  Messages messages;
  for (const char c : std::string("err or\r50%|error: no\rerror: yes\x1b[31m\n  where:    rank 1\n"))
    messages.hear({&c, 1});
  EXPECT_EQ(messages.fault().what, "yes\\x1B[31m");
  EXPECT_EQ(messages.fault().who, "rank 1");
  EXPECT_EQ(heard("").what, "");
  EXPECT_EQ(heard("error: " + std::string(100000, 'x') + "\n").what.size(), 4096u - 7);
  EXPECT_EQ(heard("error: a\x1b[31m\n").what, "a\\x1B[31m");
  // A text that only resembles a rank.
  EXPECT_EQ(heard("error: a\n  where:    ranking of rank\n").who, "ranking of rank");
  EXPECT_EQ(heard("error: a\nan ordinary line\n  where:    rank 2 on b\n").who, "");
}

TEST(Messages, RanksThatGoOnWithoutOthersAreHeard) {
  for (const Lost& lost : {Lost{.who = "rank 3", .left = 3}, Lost{.who = "ranks 1, 12", .left = 1},
                           Lost{.who = "ranks 0, 2", .left = 1024}}) {
    Messages messages;
    messages.hear("warning: " + text_of(lost) + "\n");
    const auto heard = messages.take_lost();
    ASSERT_TRUE(heard) << text_of(lost);
    EXPECT_EQ(heard->who, lost.who);
    EXPECT_EQ(heard->left, lost.left);
    EXPECT_FALSE(messages.take_lost()) << "told once";
    EXPECT_EQ(messages.fault().what, "");
  }
  EXPECT_EQ(text_of({.who = "rank 3", .left = 1}),
            "rank 3 has ended, and the other 1 rank continues without it");
  EXPECT_EQ(text_of({.who = "ranks 1, 2", .left = 2}),
            "ranks 1, 2 have ended, and the other 2 ranks continue without them");
  for (const char* other :
       {"rank 3 has ended, and the other 3 ranks continue without it",
        "warning: rank 3 has ended, and the other",
        "warning: rank 3 has ended, and the other x ranks continue without it", "warning: ", "warning: rank",
        "warning: rank 3 has ended, and the other 99999999999999999999 ranks continue without it",
        "warning: rank 3 has ended, and the other 0 ranks continue without it"}) {
    Messages messages;
    messages.hear(std::string(other) + "\n");
    EXPECT_FALSE(messages.take_lost()) << other;
  }
}

}  // namespace
}  // namespace octet::supervise::messages_test
