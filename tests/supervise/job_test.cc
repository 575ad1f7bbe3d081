// What is left of a start whose launcher was killed, and what watched over it as well.
#include "../src/supervise/job.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "octet/base/error.h"
#include "support/program.h"

namespace octet::supervise {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::spill;
using test::TemporaryFolder;

/// A launcher that starts a rank and is killed, with the files that Open MPI makes for a job of this number.
class KilledLauncher {
 public:
  explicit KilledLauncher(const std::string& name)
      : folder_(name),
        number_(static_cast<std::uint32_t>(::getpid()) * 65536U + 1U),
        session_(folder_ / "ompi.host.0/pid.77") {
    char job[16];
    std::snprintf(job, sizeof job, "%x", number_);
    memory_ = std::string("/dev/shm/vader_segment.host.0.") + job + ".0";
    others_ = std::string("/dev/shm/vader_segment.host.0.") + job + "1.0";
    for (const std::string& file :
         {session_ + "/contact", folder_ / "ompi.host.0/pid.78/contact", memory_, others_})
      spill(file, "");
  }
  ~KilledLauncher() {
    std::error_code none;
    for (const std::string& file : {memory_, others_}) fs::remove(file, none);
  }

  /// `rank`: what the launcher leaves running; `ends`: how it ends itself; `clears_up`: how long somebody
  /// else has to clear up; `ends_first`: whether the rank ends before the launcher.
  void run(const std::string& rank, const std::string& ends, std::chrono::milliseconds clears_up,
           bool ends_first = false) const {
    adopt_orphans();
    const std::string script = "export OMPI_MCA_orte_jobfam_session_dir=" + session_ +
                               " PMIX_NAMESPACE=" + std::to_string(number_) + "\nsetsid " + rank +
                               " >/dev/null 2>&1 &\nsleep " + (ends_first ? "2.5" : "0.2") + "\n" + ends;
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
  bool of_others() const { return fs::exists(others_) && fs::exists(folder_ / "ompi.host.0/pid.78/contact"); }

 private:
  TemporaryFolder folder_;
  std::uint32_t number_;
  std::string session_, memory_, others_;
};

TEST(Job, FilesOfAJobGoWhenItsLauncherAndTheKeeperWereKilled) {
  const KilledLauncher start("killed_launcher");
  start.run("sleep 60", "kill -KILL $$", 300ms);
  EXPECT_FALSE(start.session());
  EXPECT_FALSE(start.memory());
  EXPECT_TRUE(start.of_others()) << "other jobs' stay";
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

}  // namespace
}  // namespace octet::supervise
