// Too little address space ends a command with one message and a documented code.
#include <filesystem>

#include "cli/task.h"

namespace octet::test::memory_limit_test {
namespace {

bool loads(const std::string& limited, int mib) {
  return shell(limited + " " + std::to_string(mib * 1024) + " --version", 60).code == 0;
}

// Returns a small limit in MiB that lets the loader and the constructors of all libraries finish. With less,
// they end the process before the first line of the program. It depends on the build and on the system's
// libraries.
int least_limit(const std::string& limited) {
  int too_little = 16, enough = 1024;
  while (enough - too_little > 1) {
    const int middle = (too_little + enough) / 2;
    (loads(limited, middle) ? enough : too_little) = middle;
  }
  return enough;
}

// Returns the first limit from `mib` on with which the program loads. Constructors of libraries can fail with
// a larger limit than one that is enough, such as those of jemalloc in Arrow.
int next_limit(const std::string& limited, int mib) {
  while (mib < 1024 && !loads(limited, mib)) ++mib;
  return mib;
}

// The first limit is too little to start; the last one is about the need of a run.
TEST(MemoryLimits, OfEveryCommandGiveOneMessageAndADocumentedCode) {
  const Task& task = Task::get();
  const TemporaryFolder folder("memory_limits");
  const std::string run = folder / "run";
  expect_success(trainer(task.train(run, "max_steps=1 save_steps=1 device=cpu")));
  const std::string model = run + " --template chatml --device cpu ";
  const std::string limited = folder / "limited";
  spill(limited, "#!/bin/bash\nulimit -v $1\nshift\nexec " OCTET_TRAINER " \"$@\"\n");
  std::filesystem::permissions(limited, std::filesystem::perms::owner_all);
  const int least = least_limit(limited);
  ASSERT_LT(least, 512);
  const int limits[] = {next_limit(limited, least + 1), next_limit(limited, least + 24),
                        next_limit(limited, least + 104)};
  const std::string commands[] = {
      task.train(folder / "other", "max_steps=1 overwrite_output_dir=true device=cpu"),
      "plan " + task.config() + " output_dir=" + (folder / "plan"),
      "generate " + model + "--max-new 1 hello",
      "generate " + model + "--score --overwrite --file " + task.held_out() + " --out " + (folder / "scores"),
      "export " + run + "/checkpoint-1 " + (folder / "exported") + " --overwrite",
  };
  for (const int ranks : {1, 2}) {
    for (const std::string& command : commands) {
      for (const int mib : limits) {
        if (ranks == 2 && (&command != &commands[0] || mib == limits[1])) continue;
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(mib) + " MiB: " + command);
        // The limit applies to the program only: mpirun has other messages.
        const std::string launch = ranks == 1 ? "" : OCTET_SOURCE_DIR "/launch/mpirun -np 2 ";
        std::filesystem::remove_all(folder / "exported");
        const Outcome outcome =
            shell(launch + limited + " " + std::to_string(mib * 1024) + " " + command, 60);
        if (outcome.code == 0) continue;
        // A restart would fail again.
        EXPECT_EQ(outcome.code, 64) << outcome.both();
        EXPECT_NE(outcome.err.find("ulimit -v"), std::string::npos) << outcome.err;
        // Before MPI's start the ranks cannot communicate, so each prints its own error.
        EXPECT_GE(errors_in(outcome), 1) << outcome.err;
        EXPECT_LE(errors_in(outcome), ranks) << outcome.err;
        EXPECT_NE(outcome.err.find("to do:"), std::string::npos) << outcome.err;
      }
    }
  }
}

TEST(StackLimits, EndNoCommandWithoutAMessage) {
  const Task& task = Task::get();
  const TemporaryFolder folder("stack_limits");
  for (const std::string& command :
       {"lint " + task.config(), "plan " + task.config() + " output_dir=" + (folder / "plan"),
        "encode " + task.config(), std::string("plan llama-3.1-8b card=h100"),
        task.train(folder / "run", "max_steps=1 device=cpu")}) {
    const Outcome outcome = shell("ulimit -s 64; " OCTET_TRAINER " " + command + " < /dev/null", 60);
    SCOPED_TRACE(command + "\n" + outcome.both());
    if (outcome.code <= 128) continue;
    EXPECT_EQ(errors_in(outcome), 1);
    EXPECT_NE(outcome.err.find("look at the limits (ulimit -a: stack"), std::string::npos);
  }
}

}  // namespace
}  // namespace octet::test::memory_limit_test
