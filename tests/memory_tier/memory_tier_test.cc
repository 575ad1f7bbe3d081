// Checkpoints in memory: which host keeps which copies, which parts a start finds, and which it rejects.
#include "octet/memory_tier/memory_tier.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "../src/memory_tier/host_pairs.h"
#include "checkpoint/sample.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/weights/convert.h"
#include "support/threads.h"

namespace octet::memory_tier::memory_test {
namespace {

using checkpoint::columns_of;
using checkpoint::sample;
using checkpoint::slices_of;

namespace fs = std::filesystem;

/// Simulated hosts. Each has a folder and some ranks, which are threads.
class Hosts {
 public:
  explicit Hosts(std::vector<int> node_of) : node_of_(std::move(node_of)) {}

  std::string folder(int host) const { return scratch_ / ("host-" + std::to_string(host)); }
  int ranks() const { return static_cast<int>(node_of_.size()); }
  void become(std::vector<int> node_of) { node_of_ = std::move(node_of); }

  void run(const std::function<void(comm::Job&, MemoryTier&)>& body,
           const std::string& identity = "a run") const {
    comm::ThreadRanksOptions options{.ranks = ranks()};
    options.node_of = node_of_;
    comm::run_ranks_as_threads(options, [&](comm::Job& job, Device&) {
      MemoryTier tier(job, {.folder = folder(node_of_[static_cast<std::size_t>(job.rank())]),
                            .identity = identity,
                            .keeper = ""});
      body(job, tier);
    });
  }

  /// Takes a checkpoint of the sample for each of these steps.
  std::vector<Taken> take(const std::vector<std::int64_t>& steps, bool beside = false) const {
    std::vector<Taken> all;
    std::mutex mutex;
    run([&](comm::Job& job, MemoryTier& tier) {
      for (const std::int64_t step : steps) {
        auto tensors = sample(step);
        tier.take({.step = step,
                   .zero_stage = 2,
                   .slices = slices_of(tensors, job.rank(), job.size()),
                   .state = Json{{"step", step}},
                   .config_yaml = "seed: 1\n"},
                  beside);
        if (beside)  // memory may change immediately
          for (auto& tensor : tensors) std::ranges::fill(tensor.values, std::byte{0x55});
        const auto taken = tier.wait();
        ASSERT_TRUE(taken.has_value());
        EXPECT_FALSE(tier.wait().has_value());
        const std::lock_guard lock(mutex);
        if (job.rank() == 0) all.push_back(*taken);
      }
    });
    return all;
  }

  struct Found {
    std::int64_t step = -1;  ///< -1: none
    bool other_host = false;
  };
  /// Returns the result of a start on these hosts. All of it is read and compared.
  Found find(const std::string& identity = "a run") const {
    Found result;
    run(
        [&](comm::Job& job, MemoryTier& tier) {
          auto found = tier.find();
          if (!found) return;
          const checkpoint::Checkpoint& checkpoint = found->checkpoint;
          if (job.rank() == 0) result = {checkpoint.step(), found->other_host};
          EXPECT_EQ(checkpoint.state()["step"], checkpoint.step());
          EXPECT_EQ(checkpoint.config_yaml(), "seed: 1\n");
          EXPECT_EQ(checkpoint.manifest().zero_stage, 2);
          const auto expected = sample(checkpoint.step());
          EXPECT_EQ(checkpoint.tensors().size(), expected.size());
          for (const bool whole : {false, true}) {
            auto read = expected;
            for (auto& tensor : read) std::ranges::fill(tensor.values, std::byte{0xEE});
            auto wanted = expected;
            const int share = whole ? 0 : job.rank(), shares = whole ? 1 : job.size();
            const auto mine = slices_of(read, share, shares), ours = slices_of(wanted, share, shares);
            read_together(job, checkpoint, mine);
            for (std::size_t i = 0; i < mine.size(); ++i) {
              const auto bytes = static_cast<std::size_t>(mine[i].elements()) * size_of(mine[i].dtype);
              if (bytes > 0) {
                EXPECT_EQ(std::memcmp(mine[i].data, ours[i].data, bytes), 0) << mine[i].name;
              }
            }
          }
        },
        identity);
    return result;
  }

  std::vector<std::string> parts(int host, const std::string& slot) const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder(host) + "/" + slot, none))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

 private:
  Scratch scratch_;
  std::vector<int> node_of_;
};

void flip(const std::string& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at < 0 ? static_cast<std::int64_t>(fs::file_size(path)) + at : at);
  const auto place = file.tellg();
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(place);
  file.put(byte);
  ASSERT_TRUE(file.good());
}

TEST(MemoryPairs, EachHostIsKeptByOneOther) {
  EXPECT_TRUE(pair_hosts(1).empty());
  for (int hosts = 2; hosts < 12; ++hosts) {
    std::multiset<int> kept, keeps;
    for (const auto& round : pair_hosts(hosts)) {
      std::set<int> busy;
      for (const HostPair& pair : round) {
        EXPECT_NE(pair.first, pair.second);
        EXPECT_TRUE(busy.insert(pair.first).second && busy.insert(pair.second).second)
            << "in one round twice";
        kept.insert(pair.first), keeps.insert(pair.second);
        if (pair.both) kept.insert(pair.second), keeps.insert(pair.first);
      }
    }
    for (int host = 0; host < hosts; ++host) {
      EXPECT_EQ(kept.count(host), 1u) << host << " of " << hosts;
      EXPECT_EQ(keeps.count(host), 1u) << host << " of " << hosts;
    }
  }
}

TEST(MemoryPairs, EveryRankOfAHostIsKept) {
  for (const std::vector<int>& node_of :
       {std::vector{0, 1}, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 1, 2, 2, 2}, {0, 1, 0, 1, 2, 2, 3}}) {
    std::map<int, std::set<int>> keepers;
    const int nodes = *std::ranges::max_element(node_of) + 1;
    for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
      comm::Place place{.rank = static_cast<int>(rank), .size = static_cast<int>(node_of.size())};
      place.node = node_of[rank], place.nodes = nodes, place.node_of = node_of;
      for (const int copied : copied_by(place)) {
        EXPECT_NE(node_of[static_cast<std::size_t>(copied)], place.node) << "on the same host";
        keepers[copied].insert(place.node);
      }
    }
    EXPECT_EQ(keepers.size(), node_of.size());
    for (const auto& [rank, by] : keepers) EXPECT_EQ(by.size(), 1u) << "rank " << rank;
  }
}

TEST(Memory, TheNewestIsFoundAndReadByAnyRanks) {
  for (const int ranks : {1, 2, 4}) {
    Hosts hosts(std::vector<int>(static_cast<std::size_t>(ranks), 0));
    EXPECT_EQ(hosts.find().step, -1);
    const auto taken = hosts.take({3, 6, 9});
    ASSERT_EQ(taken.size(), 3u);
    EXPECT_EQ(taken[2].step, 9);
    EXPECT_TRUE(taken[2].whole);
    EXPECT_FALSE(taken[2].copied) << "there is no other host";
    EXPECT_GT(taken[2].seconds, 0);
    for (const int others : {1, 3, 4}) {
      hosts.become(std::vector<int>(static_cast<std::size_t>(others), 0));
      const auto found = hosts.find();
      EXPECT_EQ(found.step, 9) << ranks << " to " << others;
      EXPECT_FALSE(found.other_host);
    }
  }
}

TEST(Memory, ColumnsOfMatricesAreTakenAndRead) {
  const Hosts hosts({0, 1, 0});
  hosts.run([](comm::Job& job, MemoryTier& tier) {
    auto tensors = sample(5);
    tier.take({.step = 5,
               .zero_stage = 2,
               .slices = columns_of(tensors, job.rank(), job.size()),
               .state = Json{{"step", 5}},
               .config_yaml = "seed: 1\n"},
              false);
    EXPECT_TRUE(tier.wait()->whole);
    auto found = tier.find();
    ASSERT_TRUE(found.has_value());
    auto read = sample(6);
    auto wanted = sample(5);
    // Reads other columns than this rank saved.
    const int rank = (job.rank() + 1) % 2;
    const auto mine = columns_of(read, rank, 2), ours = columns_of(wanted, rank, 2);
    read_together(job, found->checkpoint, mine);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      each_run(mine[i], [&, at = std::size_t{0}](std::int64_t first, std::int64_t count,
                                                 const void* data) mutable {
        std::size_t run = 0;
        each_run(ours[i], [&](std::int64_t, std::int64_t, const void* other) {
          if (run++ != at || count == 0) return;
          EXPECT_EQ(std::memcmp(data, other, static_cast<std::size_t>(count) * size_of(mine[i].dtype)), 0)
              << mine[i].name << " from element " << first;
        });
        ++at;
      });
    }
  });
}

// A resumed run may store moments in another format.
TEST(Memory, IsReadInTheFormatThatIsAskedFor) {
  const Hosts hosts({0, 0});
  hosts.take({4});
  hosts.run([](comm::Job& job, MemoryTier& tier) {
    const auto found = tier.find();
    ASSERT_TRUE(found.has_value());
    // The range crosses the boundary between the ranks' slices, in another format than the saved one.
    constexpr std::int64_t kBegin = 700 * 450 - 1000, kCount = 2000;
    const std::string name = "exp_avg_sq/model.embed_tokens.weight";
    std::vector<float> whole(kCount), rounded(kCount);
    std::vector<std::byte> narrow(kCount * 2);
    const auto slice = [&](DType dtype, void* data) {
      return std::vector<TensorSlice>{{name, dtype, {700, 900}, kBegin, kCount, data}};
    };
    read_together(job, found->checkpoint, slice(DType::f32, whole.data()));
    read_together(job, found->checkpoint, slice(DType::bf16, narrow.data()));
    weights::to_float(DType::bf16, narrow.data(), kCount, rounded.data());
    std::vector<std::byte> expected(kCount * 2);
    weights::from_float(DType::bf16, whole.data(), kCount, expected.data());
    EXPECT_EQ(narrow, expected);
    std::int64_t differing = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) differing += whole[i] != rounded[i];
    EXPECT_GT(differing, kCount / 2) << "it was rounded";
  });
}

TEST(Memory, HoldsWhatWasThereWhenItWasTaken) {
  const Hosts hosts({0, 0, 1});
  const auto taken = hosts.take({3, 6}, true);
  EXPECT_TRUE(taken[1].whole && taken[1].copied) << taken[1].wrong;
  EXPECT_EQ(hosts.find().step, 6);
}

TEST(Memory, IsFinishedBehindTheSteps) {
  const Hosts hosts({0});
  std::vector<float> values(std::size_t{16} << 20,
                            1.0f);  // large enough that the test observes the work in progress
  const auto count = static_cast<std::int64_t>(values.size());
  hosts.run([&](comm::Job&, MemoryTier& tier) {
    const auto seen_at = [&](bool beside) {
      bool seen = false;
      for (std::int64_t step = 1; step <= 10 && !seen; ++step) {
        tier.take({.step = step,
                   .slices = {{.name = "w",
                               .dtype = DType::f32,
                               .shape = {count},
                               .count = count,
                               .data = values.data()}}},
                  beside);
        for (int i = 0; i < 100 && !seen; ++i) seen = test::a_thread_runs_behind();
        tier.wait();
      }
      return seen;
    };
    EXPECT_TRUE(seen_at(true));
    EXPECT_EQ(seen_at(false), test::this_thread_runs_behind())
        << "the thread that computes finishes it itself";
  });
}

TEST(Memory, AHostThatIsLostIsReadFromAnotherOne) {
  for (const std::vector<int>& node_of : {std::vector{0, 1}, {0, 0, 1}, {0, 1, 2}, {0, 1, 2, 3, 3}}) {
    const int nodes = *std::ranges::max_element(node_of) + 1;
    for (int lost = 0; lost < nodes; ++lost) {
      Hosts hosts(node_of);
      const auto taken = hosts.take({4, 8});
      EXPECT_TRUE(taken[1].copied) << taken[1].wrong;
      EXPECT_FALSE(hosts.find().other_host) << "each has its own";
      fs::remove_all(hosts.folder(lost));
      const auto again = hosts.find();
      EXPECT_EQ(again.step, 8) << lost << " of " << nodes;
      EXPECT_TRUE(again.other_host);
      // The remaining hosts, with another order of ranks. They take the next checkpoints.
      fs::remove_all(hosts.folder(lost));
      std::vector<int> left;
      for (const int node : node_of) {
        if (node != lost) left.push_back(node - (node > lost ? 1 : 0));
      }
      for (int node = lost; node + 1 < nodes; ++node) fs::rename(hosts.folder(node + 1), hosts.folder(node));
      hosts.become(left);
      EXPECT_EQ(hosts.find().step, 8);
      EXPECT_EQ(hosts.take({12}).front().copied, nodes > 2);
      EXPECT_EQ(hosts.find().step, 12);
    }
  }
}

TEST(Memory, TwoHostsThatAreLostAreTooMany) {
  const Hosts hosts({0, 1, 2, 3});
  hosts.take({4});
  fs::remove_all(hosts.folder(0));
  fs::remove_all(hosts.folder(3));
  EXPECT_EQ(hosts.find().step, 4) << "of two pairs";
  hosts.take({5});
  fs::remove_all(hosts.folder(0));
  fs::remove_all(hosts.folder(1));
  EXPECT_EQ(hosts.find().step, -1);
}

TEST(Memory, ADamagedPartIsNamedAndTheOneBeforeTaken) {
  for (const std::int64_t at : {0, 20, 4200, 100000, -1}) {
    const Hosts hosts({0, 0});
    hosts.take({3, 6});
    flip(hosts.folder(0) + "/b/part-1-of-2", at);
    testing::internal::CaptureStderr();
    const auto found = hosts.find();
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(found.step, 3) << at;
    EXPECT_NE(said.find("a part of a checkpoint in memory is not used (host "), std::string::npos) << said;
    EXPECT_NE(said.find("/b/part-1-of-2"), std::string::npos) << said;
    EXPECT_NE(said.find("step 6 in memory is incomplete: 1 of 2 parts are valid"), std::string::npos) << said;
  }
}

TEST(Memory, ACopyStandsInForADamagedPart) {
  const Hosts hosts({0, 1});
  hosts.take({3, 6});
  flip(hosts.folder(0) + "/b/part-0-of-2", -100);
  auto found = hosts.find();
  EXPECT_EQ(found.step, 6);
  EXPECT_TRUE(found.other_host);
  flip(hosts.folder(1) + "/b/copy-part-0-of-2", -100);
  found = hosts.find();
  EXPECT_EQ(found.step, 3);
  EXPECT_FALSE(found.other_host);
}

TEST(Memory, WhatWasNotFinishedOrCutShortIsNotTaken) {
  const Hosts hosts({0, 0});
  hosts.take({3, 6});
  const std::string part = hosts.folder(0) + "/b/part-0-of-2";
  fs::resize_file(part, 8192);
  EXPECT_EQ(hosts.find().step, 3);
  fs::resize_file(part, 0);
  EXPECT_EQ(hosts.find().step, 3);
  std::ofstream(part, std::ios::trunc) << std::string(100000, '\0');
  EXPECT_EQ(hosts.find().step, 3) << "the page of a part that is being written";
  std::ofstream(part, std::ios::trunc) << std::string(100000, 'x');
  EXPECT_EQ(hosts.find().step, 3);
  fs::remove(part);
  ASSERT_EQ(::mkfifo(part.c_str(), 0600), 0);
  EXPECT_EQ(hosts.find().step, 3) << "a pipe";
  fs::remove(part);
  fs::create_symlink("/etc/passwd", part);
  EXPECT_EQ(hosts.find().step, 3) << "a link";
}

TEST(Memory, PartsOfTwoMomentsAreNoCheckpoint) {
  const Hosts hosts({0, 0});
  hosts.take({3, 6});
  const std::string part = hosts.folder(0) + "/b/part-0-of-2";
  const std::string kept = hosts.folder(0) + "/kept";
  fs::copy_file(part, kept);
  hosts.take({3, 6});  // the same steps again
  fs::remove(part);
  fs::rename(kept, part);
  EXPECT_EQ(hosts.find().step, 3);
}

TEST(Memory, OfAnotherRunIsNamedAndNotTaken) {
  const Hosts hosts({0});
  hosts.take({3});
  testing::internal::CaptureStderr();
  EXPECT_EQ(hosts.find("another run").step, -1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("is of another run, model or configuration"),
            std::string::npos);
}

TEST(Memory, GenerationsAreWrittenInTurnAndOnesOfOtherRanksGo) {
  Hosts hosts({0, 0, 1});
  hosts.take({3, 6, 9});
  EXPECT_EQ(hosts.parts(0, "a"),
            (std::vector<std::string>{"copy-part-2-of-3", "part-0-of-3", "part-1-of-3"}));
  EXPECT_EQ(hosts.parts(1, "b"),
            (std::vector<std::string>{"copy-part-0-of-3", "copy-part-1-of-3", "part-2-of-3"}));
  hosts.become({0, 0});
  hosts.run([](comm::Job& job, MemoryTier& tier) {
    ASSERT_TRUE(tier.find().has_value());
    auto tensors = sample(12);
    tier.take({.step = 12,
               .zero_stage = 2,
               .slices = slices_of(tensors, job.rank(), job.size()),
               .state = Json{{"step", 12}},
               .config_yaml = "seed: 1\n"},
              false);
    tier.wait();
  });
  EXPECT_EQ(hosts.parts(0, "b"), (std::vector<std::string>{"part-0-of-2", "part-1-of-2"}))
      << "the older generation is written over";
  EXPECT_EQ(hosts.parts(0, "a").size(), 3u) << "the newer one stays";
  EXPECT_EQ(hosts.find().step, 12);
}

TEST(Memory, ForgettingAndRemovingLeaveNothing) {
  const Hosts hosts({0, 1});
  hosts.take({3, 6});
  hosts.run([](comm::Job&, MemoryTier& tier) { tier.forget(); });
  EXPECT_EQ(hosts.find().step, -1);
  EXPECT_TRUE(fs::exists(hosts.folder(1)));
  hosts.take({3});
  hosts.run([](comm::Job&, MemoryTier& tier) { tier.remove(); });
  EXPECT_FALSE(fs::exists(hosts.folder(0)));
  EXPECT_FALSE(fs::exists(hosts.folder(1)));
}

TEST(Memory, RoomIsAskedForWithFigures) {
  const MemoryRoom room{.file_system = INT64_C(3) << 30, .memory = INT64_C(5) << 30};
  EXPECT_NO_THROW(require_memory_room(INT64_C(3) << 30, room, "/dev/shm/x", "node7"));
  for (const MemoryRoom& small :
       {MemoryRoom{INT64_C(1) << 30, INT64_C(5) << 30}, MemoryRoom{INT64_C(5) << 30, INT64_C(1) << 30}}) {
    try {
      require_memory_room(INT64_C(2) << 30, small, "/dev/shm/x", "node7");
      ADD_FAILURE() << "it fits nowhere";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      for (const char* word : {"2.0", "1.0", "5.0", "node7", "/dev/shm"})
        EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << word << " in " << e.what();
    }
  }
  const MemoryRoom here = memory_room("/dev/shm/x");
  EXPECT_GT(here.file_system, 0);
  EXPECT_GT(here.memory, 0);
}

TEST(Memory, WhatTheHostsFilesTakeAlreadyCountsAsRoom) {
  const Hosts hosts({0});
  hosts.take({3, 6});
  const MemoryRoom with = memory_room(hosts.folder(0));
  std::int64_t bytes = 0;
  for (const char* slot : {"a", "b"})
    bytes += static_cast<std::int64_t>(fs::file_size(hosts.folder(0) + "/" + slot + "/part-0-of-1"));
  const MemoryRoom without = memory_room(hosts.folder(0) + "-not-there");
  EXPECT_NEAR(static_cast<double>(with.file_system - without.file_system), static_cast<double>(bytes), 4e6);
}

TEST(MemoryFolder, IsThisUsersAndHeldByAnyNumber) {
  const Scratch scratch;
  const std::string folder = scratch / "held";
  {
    const MemoryHold one(folder), other(folder);
    struct stat st {};
    ASSERT_EQ(::stat(folder.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
  }
  std::ofstream(scratch / "file") << "x";
  EXPECT_THROW(MemoryHold(scratch / "file"), Error);
  EXPECT_NE(memory_folder("one"), memory_folder("other"));
  EXPECT_NE(memory_folder("one-1"), memory_folder("one-2"));
}

TEST(MemoryFolder, OfEarlierRunsOfTheJobThatNobodyHoldsGo) {
  const Scratch scratch;
  const auto in_scratch = [&](const std::string& run) {
    return scratch / fs::path(memory_folder(run)).filename().string();
  };
  for (const char* run : {"job-1", "job-2", "job-3", "work-1"}) fs::create_directory(in_scratch(run));
  const MemoryHold held(in_scratch("job-2"));
  remove_earlier_memory(in_scratch("job-3"));
  EXPECT_FALSE(fs::exists(in_scratch("job-1")));
  EXPECT_TRUE(fs::exists(in_scratch("job-2"))) << "somebody holds it";
  EXPECT_TRUE(fs::exists(in_scratch("job-3"))) << "its own";
  EXPECT_TRUE(fs::exists(in_scratch("work-1"))) << "of another job";
  EXPECT_EQ(memory_folder("one"), memory_folder("one"));
}

}  // namespace
}  // namespace octet::memory_tier::memory_test
