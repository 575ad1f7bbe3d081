// The processes and files of a start after its launcher and its supervisor were killed.
#include "../src/supervise/supervised_job.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>

#include "octet/base/error.h"
#include "support/program.h"

namespace octet::supervise::job_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::spill;
using test::TemporaryFolder;

/// A launcher that starts a rank and is killed, with the files of Open MPI 4 or 5. The name of its folder
/// selects the version.
class KilledLauncher {
 public:
  explicit KilledLauncher(const std::string& name, const std::string& session = "ompi.host.0/pid.77")
      : folder_(name),
        four_(session.starts_with("ompi.host")),
        number_(static_cast<std::uint32_t>(::getpid()) * 65536U + 1U) {
    char job[16];
    std::snprintf(job, sizeof job, "%x", number_);
    const std::string memory = std::string("/dev/shm/") + (four_ ? "vader" : "sm") + "_segment.host.0." + job;
    session_ = folder_ / session;
    other_session_ = folder_ / std::string(session).replace(session.find("77"), 2, "78");
    memory_ = memory + ".0";
    others_ = memory + "1.0";
    pmix_ = folder_ / "pmix-gds-shmem.host-1.jobdata.77";
    other_pmix_ = folder_ / "pmix-gds-shmem.host-1.jobdata.78";
    for (const std::string& file :
         {session_ + "/contact", other_session_ + "/contact", memory_, others_, pmix_, other_pmix_})
      spill(file, "something");
  }
  ~KilledLauncher() {
    std::error_code none;
    for (const std::string& file : {memory_, others_}) fs::remove(file, none);
  }

  /// `rank`: command that the launcher leaves running; `ends`: how the launcher ends itself; `clears_up`:
  /// time that another process has to clean up; `ends_first`: whether the rank ends before the launcher.
  void run(const std::string& rank, const std::string& ends, std::chrono::milliseconds clears_up,
           bool ends_first = false) const {
    adopt_orphans();
    const std::string number = std::to_string(number_);
    const std::string environment =
        four_ ? "OMPI_MCA_orte_jobfam_session_dir=" + session_ + " PMIX_NAMESPACE=" + number
              : "PMIX_SERVER_TMPDIR=" + session_ + " PMIX_NAMESPACE=prterun-host-77@1";
    const std::string script = "export " + environment + "\nsetsid " + rank + " >/dev/null 2>&1 &\nsleep " +
                               (ends_first ? "4" : "0.2") + "\n" + ends;
    Job job({"bash", "-c", script}, [](std::string_view) {});
    const Requests requests;
    while (job.wait(requests.file(), 50)) {
    }
    EXPECT_EQ(processes_below().empty(), ends_first) << "the rank is left";
    job.end_rest(clears_up);
    EXPECT_TRUE(processes_below().empty());
  }

  bool session() const { return fs::exists(session_); }
  bool memory() const { return fs::exists(memory_); }
  /// Whether the file exists that PMIx 5 shares with the ranks.
  bool pmix() const { return fs::exists(pmix_); }
  bool of_others() const {
    return fs::exists(others_) && fs::exists(other_session_ + "/contact") && fs::exists(other_pmix_);
  }
  /// Returns the command of a rank that maps the memory for so many seconds, like ranks some time after their
  /// start.
  std::string maps_for(const std::string& seconds) const {
    return "python3 -c 'import mmap, time; files = [open(name, \"r+b\") for name in (\"" + memory_ +
           "\", \"" + pmix_ + "\")]; memory = [mmap.mmap(file.fileno(), 0) for file in files]; time.sleep(" +
           seconds + ")'";
  }

 private:
  TemporaryFolder folder_;
  bool four_;
  std::uint32_t number_;
  std::string session_, other_session_, memory_, others_, pmix_, other_pmix_;
};

TEST(Job, FilesOfAJobGoWhenItsLauncherAndTheKeeperWereKilled) {
  const KilledLauncher start("killed_launcher");
  start.run("sleep 60", "kill -KILL $$", 300ms);
  EXPECT_FALSE(start.session());
  EXPECT_FALSE(start.memory());
  EXPECT_TRUE(start.of_others()) << "other jobs' stay";
}

// Names of these files do not identify the job's shared memory. The mappings of a rank do.
TEST(Job, FilesOfOpenMpi5GoToo) {
  const KilledLauncher killed("killed_launcher_5", "prterun.host.77.0");
  killed.run(killed.maps_for("60"), "kill -KILL $$", 2s);
  EXPECT_FALSE(killed.session());
  EXPECT_FALSE(killed.memory() || killed.pmix());
  EXPECT_TRUE(killed.of_others()) << "other jobs' stay";
  const KilledLauncher ended("ranks_first_5", "ompi.77");
  ended.run(ended.maps_for("2"), "kill -KILL $$", 300ms, true);
  EXPECT_FALSE(ended.session() || ended.memory() || ended.pmix());
  EXPECT_TRUE(ended.of_others());
}

TEST(Job, FoldersThatJobsShareStay) {
  for (const char* shared : {"ompi.host77", "pid.77x", "others77"}) {
    const KilledLauncher start("shared_folder", shared);
    start.run("sleep 60", "kill -KILL $$", 300ms);
    EXPECT_TRUE(start.session()) << shared;
  }
}

TEST(Job, FilesGoAlsoWhereAllElseEndedByItself) {
  const KilledLauncher start("all_end");
  start.run("sleep 1", "kill -KILL $$", 20s);
  EXPECT_FALSE(start.session() || start.memory()) << "mpirun may have been killed, too";
  EXPECT_TRUE(start.of_others());
}

TEST(Job, FilesGoWhereTheRanksHadEndedBeforeTheLauncherWasKilled) {
  const KilledLauncher start("ranks_first");
  start.run("sleep 2", "kill -KILL $$", 300ms, true);
  EXPECT_FALSE(start.session() || start.memory());
}

TEST(Job, ALauncherThatEndsByItselfHasClearedUp) {
  const KilledLauncher start("launcher_ends");
  start.run("sleep 60", "exit 3", 300ms);
  EXPECT_TRUE(start.session() && start.memory());
}

TEST(Job, ARequestWaitsForTheHandlersOfALauncherThatStarts) {
  const std::map<std::string, int> numbers{
      {"HUP", SIGHUP}, {"INT", SIGINT}, {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  for (const auto& [name, signal] : numbers) {
    std::signal(signal, SIG_DFL);  // background shells have some signals ignored, and bash keeps that
    Job job({"bash", "-c",
             "sleep 0.2; trap 'exit 9' HUP INT TERM USR1 USR2; for i in {1..100}; do sleep 0.05; done"},
            [](std::string_view) {});
    const Requests requests;
    job.send(signal);
    while (job.wait(requests.file(), 50)) {
    }
    EXPECT_EQ(job.code(), 9) << name;
  }
}

// A shell blocks signals for a moment while it forks. A signal that arrives then ends it.
TEST(Job, ARequestDoesNotTakeBlockedSignalsForHandlers) {
  Job job({"python3", "-c",
           "import signal, sys, time\n"
           "stops = [signal.SIGTERM, signal.SIGINT]\n"
           "signal.pthread_sigmask(signal.SIG_BLOCK, stops)\n"
           "time.sleep(0.05)\n"
           "signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)\n"
           "time.sleep(0.2)\n"
           "for stop in stops: signal.signal(stop, lambda *_: sys.exit(9))\n"
           "time.sleep(5)\n"},
          [](std::string_view) {});
  const Requests requests;
  job.send(SIGTERM);
  while (job.wait(requests.file(), 50)) {
  }
  EXPECT_EQ(job.code(), 9);
}

}  // namespace
}  // namespace octet::supervise::job_test
