// training.log has every line of the screen. A stopped run names the command that resumes it.
#include <algorithm>
#include <filesystem>

#include "cli/task.h"

namespace octet::test::training_log_test {
namespace {

/// Returns the lines of the screen that the log lacks. The progress bar is not counted.
std::vector<std::string> missing_lines(const Outcome& run, const std::string& output) {
  const std::string log = slurp(output + "/training.log");
  std::vector<std::string> missing;
  for (const std::string& line : split(run.err, '\n')) {
    const bool bar = line.find('\r') != std::string::npos || line.find("%|") != std::string::npos;
    if (!line.empty() && !bar && log.find(line) == std::string::npos) missing.push_back(line);
  }
  return missing;
}

TEST(TrainingLog, HoldsEveryLineOfTheScreen) {
  const TemporaryFolder folder("log");
  spill(folder / "rows.jsonl", slurp(Task::get().data()) + "{\"messages\": []}\n");
  struct Row {
    const char *name, *keys;
    int np, code;
    std::vector<const char*> holds;
  };
  for (const Row& row : {
           Row{"fp8",
               "bf16=true fp8=true fp8_backend=te cutoff_len=600",
               0,
               0,
               {"FP8 backend: te", "device: ", "warning: command line: cutoff_len 600",
                "***** Training completed *****"}},
           {"ranks", "learning_rate=0", 2, 0, {"learning_rate is 0", "device: "}},
           {"failed",
            "learning_rate=1e308 lr_scheduler_type=constant save_steps=1",
            2,
            1,
            {"error: the weights are not finite"}},
       }) {
    SCOPED_TRACE(row.name);
    const std::string output = folder / row.name;
    const Outcome run =
        trainer(Task::get().train(
                    output, "device=cpu max_steps=3 dataset=" + (folder / "rows.jsonl") + " " + row.keys),
                row.np);
    EXPECT_EQ(run.code, row.code) << run.both();
    EXPECT_EQ(missing_lines(run, output), std::vector<std::string>{});
    const std::string log = slurp(output + "/training.log");
    for (const char* piece : row.holds) EXPECT_NE(log.find(piece), std::string::npos) << piece << "\n" << log;
    // Other runs do not mention FP8 or GPUs.
    if (std::string(row.name) == "ranks") {
      for (const char* piece : {"FP8", "GPU"}) EXPECT_EQ(log.find(piece), std::string::npos) << log;
    }
  }
}

TEST(TrainingLog, AStoppedRunNamesTheCommandThatResumesIt) {
  const TemporaryFolder folder("a folder");
  for (const int np : {0, 2}) {
    for (const std::string more : {"", "overwrite_output_dir=true", "resume_from_checkpoint=false"}) {
      SCOPED_TRACE(std::to_string(np) + more);
      const std::string output = folder / ("out" + std::to_string(np) + more);
      const std::string rows = "\"" + output + "/trainer_log.jsonl\"";
      // Starts a command, stops it when more than `steps` are logged, and waits. The run is too long to
      // finish by itself.
      const auto stopped_after = [&](const std::string& command, std::size_t steps) {
        const std::string script = folder / "start.sh";
        spill(script, "cd " OCTET_SOURCE_DIR "\nexec " + command + "\n");
        return shell("sh \"" + script + "\" & job=$!; until [ -e " + rows + " ] && [ $(wc -l <" + rows +
                     ") -gt " + std::to_string(steps) +
                     " ]; do sleep 0.02; done; kill -USR2 $job; wait $job");
      };
      const std::string launch =
          np == 0 ? "" : OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " ";
      const Outcome stopped =
          stopped_after(launch + OCTET_TRAINER " " + Task::get().config() + " \"output_dir=" + output +
                            "\" max_steps=20000 save_steps=100000 device=cpu " + more,
                        0);
      EXPECT_EQ(stopped.code, 76) << stopped.both();
      EXPECT_EQ(missing_lines(stopped, output), std::vector<std::string>{});
      const std::string mark = "to resume: ";
      const std::size_t at = stopped.err.find(mark);
      ASSERT_NE(at, std::string::npos) << stopped.err;
      const std::string command =
          stopped.err.substr(at + mark.size(), stopped.err.find('\n', at) - at - mark.size());
      const std::size_t before = steps_of(output).size();
      const Outcome resumed = stopped_after(command, before);
      EXPECT_EQ(resumed.code, 76) << command << "\n" << resumed.both();
      EXPECT_NE(resumed.err.find("Training is resumed from"), std::string::npos) << resumed.err;
      EXPECT_GT(steps_of(output).size(), before);
      expect_every_step(output, static_cast<std::int64_t>(steps_of(output).size()));
    }
  }
}

}  // namespace
}  // namespace octet::test::training_log_test
