// trainer verify: failed checks, and cleanup.
#include <filesystem>
#include <set>

#include "cli/small_disk.h"
#include "octet/base/json.h"

namespace octet::test::verify_test {
namespace {

namespace fs = std::filesystem;

bool prints(const Outcome& outcome, const std::string& text) {
  return outcome.out.find(text) != std::string::npos;
}

/// Returns the names of the failed checks of `verify --json`. Each must have a fix.
std::set<std::string> crosses_in(const Outcome& outcome) {
  std::set<std::string> names;
  const Json all = parse_json(outcome.out, "verify");
  EXPECT_GT(all["checks"].size(), 9u) << outcome.both();
  for (const Json& check : all["checks"]) {
    if (check["ok"]) continue;
    names.insert(check["name"]);
    EXPECT_FALSE(check["problem"]["to_do"].get<std::string>().empty()) << check;
  }
  EXPECT_EQ(all["ok"].get<bool>(), names.empty());
  return names;
}

using Names = std::set<std::string>;

TEST(Verify, ADeviceThatCannotBeOpenedIsACrossAndTheOthersGoOn) {
  if (trainer("gpu-info").code == 0) GTEST_SKIP() << "there is one";
  const Outcome run = trainer("verify device=cuda --folder /tmp");
  for (const char* text :
       {"✗ device ", "to do:", "the checks below ran on the CPU", "✓ messages", "✓ FP8 step", "1 of "})
    EXPECT_TRUE(prints(run, text)) << text << "\n" << run.both();
  const Outcome two = trainer("verify device=cuda --json --folder /tmp", 2);
  EXPECT_EQ(crosses_in(two), Names{"device"});
  for (const Outcome& each : {run, two}) {
    EXPECT_EQ(each.code, 64) << each.both();
    EXPECT_EQ(errors_in(each), 0) << each.both();
  }
}

TEST(WholeVerify, AnMpiThatAllowsNoThreadsIsACrossAndTheOthersGoOn) {
  const std::string start = "LD_PRELOAD=" OCTET_FEW_THREADS " " OCTET_SOURCE_DIR
                            "/launch/mpirun -np 2 " OCTET_TRAINER " verify device=cpu --folder /tmp";
  const Outcome run = shell(start);
  EXPECT_EQ(run.code, 1) << run.both();
  for (const char* text : {"✗ ranks ", "MPI_THREAD_FUNNELED or more", "MPI_THREAD_SINGLE (",
                           "built with thread support", "✓ messages", "✓ FP8 step", "1 of "})
    EXPECT_TRUE(prints(run, text)) << text << "\n" << run.both();
  EXPECT_EQ(crosses_in(shell(start + " --json")), Names{"ranks"});
  const Outcome fine = trainer("verify device=cpu --folder /tmp", 2);
  EXPECT_TRUE(prints(fine, "2 ranks on 1 node, MPI_THREAD_")) << "the level that was found: " << fine.both();
  EXPECT_FALSE(prints(fine, "MPI_THREAD_SINGLE")) << fine.both();
}

TEST(Verify, TooLittleMemoryIsACross) {
  const TemporaryFolder folder("meminfo");
  spill(folder / "meminfo", "MemTotal: 4000000 kB\nMemFree: 900000 kB\nMemAvailable: 900000 kB\n");
  const std::string with =
      "unshare -m sh -c \"mount --bind " + (folder / "meminfo") + " /proc/meminfo && exec ";
  if (shell(with + "true\"").code != 0) GTEST_SKIP() << "needs the right to mount";
  const std::string verify = OCTET_TRAINER " verify device=cpu --json --folder /tmp";
  EXPECT_EQ(crosses_in(shell(with + verify + "\"")), Names{}) << "900 MB for one rank";
  const Outcome two = shell(with + OCTET_SOURCE_DIR "/launch/mpirun -np 2 " + verify + "\"");
  EXPECT_EQ(two.code, 1) << two.both();
  EXPECT_EQ(crosses_in(two), Names{"memory"}) << "900 MB for two";
}

TEST(Verify, TooLittleRoomOnTheDiskIsACrossAndNothingIsLeft) {
  const SmallDisk room(100 * 1024);
  if (!room.mounted()) GTEST_SKIP() << kNoSmallDisk;
  const Outcome run = trainer("verify device=cpu --json --folder " + room.path());
  EXPECT_EQ(run.code, 1) << run.both();
  EXPECT_EQ(crosses_in(run), Names{"disk"});
  EXPECT_TRUE(prints(run, "1.00 GiB at least")) << run.both();
  EXPECT_TRUE(fs::is_empty(room.path()));
  const SmallDisk full(20 * 1024);
  if (!full.mounted()) GTEST_SKIP() << kNoSmallDisk;
  EXPECT_TRUE(crosses_in(trainer("verify device=cpu --json --folder " + full.path(), 2)).contains("disk"));
  EXPECT_TRUE(fs::is_empty(full.path()));
}

/// Returns a shell command: verify with a disk that hangs when it writes the checkpoint.
std::string hanging(const std::string& launch, const std::string& folder) {
  return "LD_PRELOAD=" OCTET_FLIPPING_DISK " BAD_DISK_HANG=.verify-checkpoint " + launch +
         OCTET_TRAINER " verify device=cpu --folder " + folder + "/not/there/yet & job=$!; until ls -d " +
         folder + "/not/there/yet/.verify-checkpoint*/* >/dev/null 2>&1; do sleep 0.05; done; sleep 0.3; ";
}

TEST(WholeVerify, ThatIsStoppedLeavesNothing) {
  for (const std::string launch : {"", OCTET_SOURCE_DIR "/launch/mpirun -np 2 "}) {
    for (const auto& [signal, code] : {std::pair{"TERM", 143}, {"HUP", 129}}) {
      const TemporaryFolder folder("stopped");
      const Outcome run = shell(hanging(launch, folder.path()) + "kill -" + signal + " $job; wait $job", 60);
      EXPECT_EQ(run.code, code) << run.both();
      EXPECT_TRUE(fs::is_empty(folder.path())) << launch << signal << shell("find " + folder.path()).out;
      EXPECT_NE(run.err.find("what the checks had made is removed"), std::string::npos) << run.both();
    }
  }
}

}  // namespace
}  // namespace octet::test::verify_test
