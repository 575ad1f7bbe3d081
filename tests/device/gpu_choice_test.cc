// The GPU choice of each rank, from simulated data of ranks on other machines.
#include "octet/device/gpu_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace octet::gpu_choice_test {
namespace {

using Ints = std::vector<int>;

constexpr std::size_t kMemory = std::size_t{141} << 30;

/// GPU `letter` of a machine, with the number that one process gives it.
GpuInfo gpu(int ordinal, char letter) {
  return {.ordinal = ordinal,
          .name = "NVIDIA H200",
          .uuid = std::string("GPU-") + letter,
          .bus = std::string("0000:0") + letter + ":00.0",
          .numa_node = letter < 'c' ? 0 : 1,
          .capability = 90,
          .memory = kMemory};
}

/// Returns a rank that sees these GPUs in this order: "ab".
RankGpus rank_with(const std::string& letters, int node = 0, DeviceWish device = DeviceWish::automatic) {
  RankGpus rank{.node = node, .host = "host" + std::to_string(node), .device = device, .driver = true};
  for (const char letter : letters) {
    rank.gpus.push_back(gpu(static_cast<int>(rank.gpus.size()), letter));
  }
  if (letters.empty()) rank.why_not = "the NVIDIA driver shows no GPU";
  return rank;
}

std::vector<RankGpus> ranks_with(const std::vector<std::string>& lists) {
  std::vector<RankGpus> ranks;
  for (const std::string& letters : lists) ranks.push_back(rank_with(letters));
  return ranks;
}

/// Returns the letters of the ranks' GPUs.
std::string letters_of(const std::vector<RankGpus>& ranks) {
  const GpuChoice choice = choose_gpus(ranks);
  EXPECT_FALSE(choice.problem) << choice.problem->what;
  std::string letters;
  for (std::size_t r = 0; r < choice.ordinals.size(); ++r) {
    letters += chosen_gpu(ranks, choice, static_cast<int>(r)).uuid.back();
  }
  return letters;
}

void expect_to_say(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << "'" << words << "' is not in: " << text;
}

TEST(GpuChoice, RanksOnGpusDoNotGoOnWithoutOthers) {
  GpuChoice choice = choose_gpus(ranks_with({"ab", "ab"}));
  ASSERT_FALSE(choice.problem);
  refuse_survivors_on_gpus(choice);
  ASSERT_TRUE(choice.problem);
  EXPECT_TRUE(choice.ordinals.empty()) << "nobody opens one";
  EXPECT_EQ(choice.problem->code, ExitCode::usage);
  expect_to_say(choice.problem->what, "--survive");
  expect_to_say(choice.problem->found, "2 ranks on GPUs");
  expect_to_say(choice.problem->fix, "leave --survive out");
  // Ranks on CPUs can continue, and a different problem is kept.
  GpuChoice cpus = choose_gpus({rank_with("ab", 0, DeviceWish::cpu)});
  refuse_survivors_on_gpus(cpus);
  EXPECT_FALSE(cpus.problem);
  GpuChoice crowd = choose_gpus(ranks_with({"a", "a"}));
  refuse_survivors_on_gpus(crowd);
  ASSERT_TRUE(crowd.problem);
  expect_to_say(crowd.problem->what, "more ranks than GPUs");
}

TEST(GpuChoice, GivesEveryRankAGpuOfItsOwn) {
  struct Case {
    std::vector<std::string> sees;
    std::string got;
    std::string why;
  };
  for (const Case& c : std::vector<Case>{
           {{"a"}, "a", "one rank"},
           {{"abcd"}, "a", "one rank of a machine with many"},
           {{"abcd", "abcd", "abcd", "abcd"}, "abcd", "all see all"},
           {{"abcd", "abcd"}, "ab", "fewer ranks than GPUs"},
           {{"badc", "badc"}, "ba", "CUDA_VISIBLE_DEVICES has an order"},
           {{"a", "b", "c"}, "abc", "each sees its own"},
           {{"abcd", "bcda", "cdab", "dabc"}, "abcd", "each sees its own first"},
           {{"ab", "a"}, "ba", "the first makes room for the second"},
           {{"abc", "ab", "a"}, "cba", "a chain of those who make room"},
           {{"ab", "ab", "cd", "cd"}, "abcd", "halves"},
           {{"ab", "bc", "ca"}, "abc", "a circle"},
           {{"abd", "abd", "a", "c"}, "dbac", "what is free is taken before others move"},
       }) {
    EXPECT_EQ(letters_of(ranks_with(c.sees)), c.got) << c.why;
  }
}

TEST(GpuChoice, NamesAGpuByTheNumberThatItsRankGivesIt) {
  EXPECT_EQ(choose_gpus(ranks_with({"ab", "ab"})).ordinals, (Ints{0, 1}));
  EXPECT_EQ(choose_gpus(ranks_with({"a", "b"})).ordinals, (Ints{0, 0}));
  std::vector<RankGpus> gaps = ranks_with({"ab", "ab"});
  for (RankGpus& rank : gaps) rank.gpus[0].ordinal = 1, rank.gpus[1].ordinal = 3;  // others are too old
  EXPECT_EQ(choose_gpus(gaps).ordinals, (Ints{1, 3}));
}

TEST(GpuChoice, CountsOnEveryNodeFromItsFirstGpu) {
  const std::vector<RankGpus> ranks{rank_with("abcd", 0), rank_with("abcd", 0), rank_with("abcd", 0),
                                    rank_with("xy", 1), rank_with("xy", 1)};
  EXPECT_EQ(choose_gpus(ranks).ordinals, (Ints{0, 1, 2, 0, 1}));
  const std::vector<RankGpus> in_turn{rank_with("ab", 0), rank_with("xy", 1), rank_with("ab", 0),
                                      rank_with("xy", 1)};
  EXPECT_EQ(choose_gpus(in_turn).ordinals, (Ints{0, 0, 1, 1}));
  EXPECT_TRUE(choose_gpus(in_turn).doubts.empty());
}

TEST(GpuChoice, TellsGpusWithoutUuidApart) {
  std::vector<RankGpus> ranks = ranks_with({"ab", "ba"});
  for (RankGpus& rank : ranks) {
    for (GpuInfo& of : rank.gpus) of.uuid.clear();
  }
  EXPECT_EQ(choose_gpus(ranks).ordinals, (Ints{0, 0})) << "by their place on the bus";
  for (RankGpus& rank : ranks) {
    for (GpuInfo& of : rank.gpus) of.bus.clear();
  }
  EXPECT_EQ(choose_gpus(ranks).ordinals, (Ints{0, 1})) << "by their number";
}

TEST(GpuChoice, RefusesMoreRanksThanGpus) {
  for (const DeviceWish device : {DeviceWish::automatic, DeviceWish::cuda}) {
    std::vector<RankGpus> ranks(4, rank_with("ab", 0, device));
    const GpuChoice choice = choose_gpus(ranks);
    ASSERT_TRUE(choice.problem);
    EXPECT_TRUE(choice.ordinals.empty());
    EXPECT_EQ(choice.problem->code, ExitCode::usage);
    EXPECT_EQ(choice.problem->expected, "at most 2 ranks on host host0");
    expect_to_say(choice.problem->found, "4 ranks");
    expect_to_say(choice.problem->fix, "-np 2`");
    expect_to_say(choice.problem->fix, "OCTETRUN_SHARE_GPUS=1");
  }
  const GpuChoice subsets = choose_gpus(ranks_with({"a", "a", "b"}));
  ASSERT_TRUE(subsets.problem);
  EXPECT_EQ(subsets.problem->expected, "at most 2 ranks on host host0");
  const GpuChoice second = choose_gpus({rank_with("a", 0), rank_with("x", 1), rank_with("x", 1)});
  ASSERT_TRUE(second.problem);
  EXPECT_EQ(second.concerned, 1);
  EXPECT_EQ(second.problem->expected, "at most 1 rank on host host1");
  expect_to_say(second.problem->found, "2 ranks and 1 GPU ");
}

TEST(GpuChoice, DealsSharedGpusInTurn) {
  const auto shared = [](std::vector<RankGpus> ranks) {
    ranks.back().shares = true;  // a variable that is set on one rank applies to all ranks
    return choose_gpus(ranks);
  };
  const GpuChoice choice = shared(ranks_with({"ab", "ab", "ab", "ab"}));
  EXPECT_EQ(choice.ordinals, (Ints{0, 1, 0, 1}));
  ASSERT_EQ(choice.doubts.size(), 1u);
  expect_to_say(choice.doubts[0], "share a GPU");
  EXPECT_EQ(shared(ranks_with({"ba", "ba", "ba"})).ordinals, (Ints{0, 1, 0}));
  EXPECT_EQ(shared(ranks_with({"a", "a", "ab", "ab"})).ordinals, (Ints{0, 0, 1, 1}));
  const GpuChoice enough = shared(ranks_with({"ab", "ab"}));
  EXPECT_EQ(enough.ordinals, (Ints{0, 1}));
  EXPECT_TRUE(enough.doubts.empty());
}

TEST(GpuChoice, PutsAllOnCpusWhereOneRankHasNoGpu) {
  std::vector<RankGpus> ranks{rank_with("ab", 0), rank_with("ab", 0), rank_with("", 1)};
  const GpuChoice choice = choose_gpus(ranks);
  EXPECT_TRUE(choice.ordinals.empty());
  EXPECT_FALSE(choice.problem);
  EXPECT_EQ(choice.why_cpu, "rank 2 on host1 has no GPU to compute on: the NVIDIA driver shows no GPU");
  ranks[2].driver = false;
  EXPECT_FALSE(choose_gpus(ranks).why_cpu.empty()) << "the others would have one";
  for (RankGpus& rank : ranks) rank = rank_with(""), rank.driver = false;
  EXPECT_EQ(choose_gpus(ranks).why_cpu, "") << "nobody expects one";
  EXPECT_EQ(choose_gpus({rank_with("")}).why_cpu, "the NVIDIA driver shows no GPU");
}

TEST(GpuChoice, RefusesARankWithoutAGpuWhereGpusWereAskedFor) {
  const GpuChoice choice =
      choose_gpus({rank_with("a", 0, DeviceWish::cuda), rank_with("", 1, DeviceWish::cuda),
                   rank_with("", 2, DeviceWish::cuda)});
  ASSERT_TRUE(choice.problem);
  EXPECT_EQ(choice.concerned, 1);
  EXPECT_EQ(choice.problem->what, "rank 1 on host1 has no GPU to compute on: the NVIDIA driver shows no GPU");
  EXPECT_EQ(choice.problem->code, ExitCode::usage);
  EXPECT_EQ(choose_gpus({rank_with("", 0, DeviceWish::cuda)}).problem->what,
            "the NVIDIA driver shows no GPU");
}

TEST(GpuChoice, LeavesGpusAloneWhereCpusWereAskedFor) {
  const GpuChoice choice =
      choose_gpus({rank_with("ab", 0, DeviceWish::cpu), rank_with("ab", 0, DeviceWish::cpu)});
  EXPECT_TRUE(choice.ordinals.empty() && choice.why_cpu.empty() && !choice.problem);
  const GpuChoice mixed =
      choose_gpus({rank_with("ab", 0, DeviceWish::cpu), rank_with("ab", 0, DeviceWish::automatic)});
  ASSERT_TRUE(mixed.problem);
  EXPECT_EQ(mixed.concerned, 1);
  expect_to_say(mixed.problem->expected, "device: cpu, as rank 0 on host0");
}

TEST(GpuChoice, DoubtsDifferentCardsOnce) {
  std::vector<RankGpus> ranks = ranks_with({"a", "b", "c", "d"});
  ranks[1].gpus[0].memory -= kMemory / 100;
  EXPECT_TRUE(choose_gpus(ranks).doubts.empty()) << "as cards of one kind differ";
  ranks[2].gpus[0].name = "NVIDIA H100", ranks[3].gpus[0].name = "NVIDIA B200";
  const GpuChoice named = choose_gpus(ranks);
  ASSERT_EQ(named.doubts.size(), 1u);
  expect_to_say(named.doubts[0], "NVIDIA H200 (141.00 GiB)");
  expect_to_say(named.doubts[0], "rank 2 on host0 has NVIDIA H100");
  EXPECT_EQ(named.ordinals.size(), 4u) << "and goes on";
  ranks = ranks_with({"a", "b"});
  ranks[1].gpus[0].memory /= 2;
  EXPECT_EQ(choose_gpus(ranks).doubts.size(), 1u);
}

TEST(GpuChoice, DoubtsNodesThatAreOneMachine) {
  const GpuChoice choice = choose_gpus({rank_with("ab", 0), rank_with("ab", 1)});
  ASSERT_EQ(choice.doubts.size(), 1u);
  expect_to_say(choice.doubts[0], "rank 0 on host0 and rank 1 on host1 compute on the same GPU");
}

TEST(GpuChoice, CountsRanksAtANumaNode) {
  std::vector<RankGpus> ranks(4, rank_with("abcd"));
  ranks.push_back(rank_with("abcd", 1));
  const GpuChoice choice = choose_gpus(ranks);
  EXPECT_EQ(ranks_at_numa_node(ranks, choice, 0), 2) << "those of the other node do not count";
  EXPECT_EQ(ranks_at_numa_node(ranks, choice, 3), 2);
  EXPECT_EQ(ranks_at_numa_node(ranks, choice, 4), 1);
  ranks[4].gpus[0].numa_node = -1;
  EXPECT_EQ(ranks_at_numa_node(ranks, choice, 4), 0);
  EXPECT_EQ(ranks_at_numa_node(ranks, {}, 0), 0);
}

TEST(GpuChoice, ReadsWhetherGpusAreShared) {
  for (const char* no : {"", "0"}) EXPECT_FALSE(shares_gpus(no));
  EXPECT_FALSE(shares_gpus(nullptr));
  EXPECT_TRUE(shares_gpus("1"));
  for (const char* wrong : {"2", "true", " 1", "yes"}) {
    try {
      shares_gpus(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      expect_to_say(error.what(), "OCTETRUN_SHARE_GPUS");
    }
  }
}

/// Every assigned GPU is visible to its rank, and no GPU is assigned twice. If there is a problem, no valid
/// assignment exists.
TEST(GpuChoice, FindsAWayWhereThereIsOne) {
  std::uint64_t state = 7;
  const auto random = [&](std::uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  // Tries all assignments.
  const auto can = [](const auto& self, const std::vector<std::string>& sees, std::size_t r,
                      std::string used) -> bool {
    if (r == sees.size()) return true;
    return std::ranges::any_of(sees[r], [&](char letter) {
      return used.find(letter) == std::string::npos && self(self, sees, r + 1, used + letter);
    });
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> sees(1 + random(5));
    for (std::string& letters : sees) {
      for (const char letter : std::string("abcde")) {
        if (random(3) == 0) letters += letter;
      }
      if (letters.empty()) letters = "a";
    }
    const std::vector<RankGpus> ranks = ranks_with(sees);
    const GpuChoice choice = choose_gpus(ranks);
    ASSERT_EQ(!choice.problem, can(can, sees, 0, ""));
    if (choice.problem) continue;
    std::string got = letters_of(ranks);
    for (std::size_t r = 0; r < sees.size(); ++r) {
      ASSERT_NE(sees[r].find(got[r]), std::string::npos);
    }
    std::ranges::sort(got);
    ASSERT_EQ(std::ranges::adjacent_find(got), got.end()) << got;
  }
}

}  // namespace
}  // namespace octet::gpu_choice_test
