// The output of a run before its first step.
#include "../src/train/start/start_notes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "octet/base/log.h"
#include "octet/config/config.h"
#include "train/tiny_run.h"

namespace octet::train::start_notes_test {
namespace {

using run_objects::expect_logged;
using run_objects::TinyRun;

/// The start of a run with an engine. The run has ten steps.
class NotedRun : public TinyRun {
 public:
  explicit NotedRun(const config::Config& config) : TinyRun(config) {
    sizing_.choose();
    sizing_.build_engine(sizing_.options());
  }
  StartNotes& notes() { return notes_; }
  /// Returns what the start of the run prints and logs.
  std::string begin(const std::string& from) {
    testing::internal::CaptureStderr();
    notes_.begin(from);
    log::end_start();
    const std::string printed = testing::internal::GetCapturedStderr();
    return printed + test::slurp(folder() / "training.log");
  }

 private:
  Evaluations evaluations_{run(), parts()};
  Saves saves_{run(), parts(), evaluations_, {}};
  Sizing sizing_{run(), parts()};
  StartNotes notes_{run(), parts(), sizing_, saves_};
};

config::Config with_batch(std::int64_t micro, std::int64_t accumulation) {
  config::Config config;
  config.per_device_train_batch_size = micro;
  config.gradient_accumulation_steps = accumulation;
  return config;
}

// Eleven documents are an epoch.
TEST(StartNotes, BeginTheLogOfARun) {
  struct Row {
    config::Config config;
    std::vector<std::string> says;
  };
  config::Config fp8 = with_batch(2, 1);
  fp8.fp8 = true;
  fp8.fp8_backend = "te";
  for (const Row& row : std::vector<Row>{
           {with_batch(2, 2), {"no: a step has", "no: FP8 backend", "memory per rank: "}},
           {with_batch(4, 8),
            {"a step has 32 samples, but an epoch has only 11: each step trains one epoch, in 3 "
             "micro-batches "
             "per rank"}},
           {with_batch(16, 2), {"each step trains one epoch, in 1 micro-batch per rank"}},
           {fp8, {"FP8 backend: te (this program's own FP8 core instead), recipe "}},
       }) {
    NotedRun run(row.config);
    const std::string text = run.begin("");
    for (const std::string& says : row.says) expect_logged(text, says);
    expect_logged(text, "no: nothing is left to train");
    ASSERT_NE(run.parts().reporter, nullptr);
    expect_logged(test::slurp(run.folder() / "config.resolved.yaml"), "per_device_train_batch_size: ");
  }
}

TEST(StartNotes, TellFromWhereARunResumes) {
  for (const std::int64_t step : {4, 10}) {
    NotedRun run(with_batch(2, 2));
    const std::string path = run.save_checkpoint(step, Json::object());
    run.parts().checkpoint.emplace(path);
    run.run().step = step;
    const std::string text = run.begin("disk");
    expect_logged(text, "Training is resumed from " + path);
    expect_logged(text, (step == 4 ? "no: nothing is left to train" : "nothing is left to train: " + path));
    testing::internal::CaptureStderr();
    run.notes().begin_again("disk", 1234, Back::same_data);
    expect_logged(test::slurp(run.folder() / "training.log"), "returned from step 1,234 to " + path + "\n");
    run.notes().begin_again("disk", 1234, Back::other_data);
    testing::internal::GetCapturedStderr();
    expect_logged(test::slurp(run.folder() / "training.log"),
                  path + "; the data since this checkpoint are skipped\n");
  }
}

}  // namespace
}  // namespace octet::train::start_notes_test
