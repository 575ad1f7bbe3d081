// The start of a run: from a checkpoint or fresh.
#include "../src/train/start/run_start.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "../src/train/start.h"
#include "octet/base/error.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/save.h"
#include "octet/config/config.h"
#include "train/tiny_run.h"

namespace octet::train::run_start_test {
namespace {

using run_objects::expect_logged;
using run_objects::logged;
using run_objects::TinyRun;

/// The start of a tiny run. An epoch has six steps of two documents.
class StartedRun : public TinyRun {
 public:
  explicit StartedRun(config::Config config = {}) : TinyRun(of_two(std::move(config))) {}
  RunStart& start() { return start_; }
  Sizing& sizing() { return sizing_; }
  /// Saves a checkpoint with `changes` in its state.
  std::string save(std::int64_t step, const Json& changes = Json::object()) {
    Json state = model_state();
    state["resume_hash"] = config::resume_hash(run().config);
    state.update(changes);
    return checkpoint::save(run().job, run().config.output_dir,
                            {.step = step, .state = state, .config_yaml = run().resolved.to_yaml()});
  }

 private:
  static config::Config of_two(config::Config config) {
    config.per_device_train_batch_size = 2;
    config.gradient_accumulation_steps = 1;
    return config;
  }
  Evaluations evaluations_{run(), parts()};
  Saves saves_{run(), parts(), evaluations_, {}};
  Sizing sizing_{run(), parts()};
  StartNotes notes_{run(), parts(), sizing_, saves_};
  RunStart start_{run(), parts(), sizing_, evaluations_, notes_};
};

TEST(RunStart, OpensTheCheckpointThatTheConfigurationAsksFor) {
  struct Row {
    std::vector<std::int64_t> saved;
    const char* wish;
    std::int64_t step;  ///< -1: none
  };
  for (const Row& row : std::vector<Row>{{{}, "", -1},
                                         {{3, 5}, "", 5},
                                         {{3, 5}, "auto", 5},
                                         {{3, 5}, "true", 5},
                                         {{3, 5}, "false", -1},
                                         {{3, 5}, "checkpoint-3", 3}}) {
    StartedRun run;
    for (const std::int64_t step : row.saved) run.save(step);
    const std::string wish = row.wish;
    if (!wish.empty())
      run.run().resolved.config.resume_from_checkpoint =
          wish.starts_with("checkpoint") ? run.folder() / wish : wish;
    run.start().open_checkpoint();
    EXPECT_EQ(run.parts().checkpoint ? run.parts().checkpoint->step() : -1, row.step) << row.wish;
    EXPECT_EQ(run.start().from(), row.step < 0 ? "" : "disk");
    EXPECT_EQ(run.start().on_disk().step, -1) << "only a run that resumes from memory needs it";
  }
}

TEST(RunStart, RefusesTheCheckpointOfAnotherModel) {
  StartedRun run;
  run.save(3);
  run.parts().architecture.hidden *= 2;
  try {
    run.start().open_checkpoint();
    ADD_FAILURE() << "another model was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    expect_logged(e.what(), "the checkpoint is of another model");
  }
}

TEST(RunStart, SetsStepsAndRatesOfTheSchedule) {
  struct Row {
    std::int64_t max_steps;
    double epochs;
    std::int64_t steps;
  };
  for (const Row& row : {Row{-1, 1, 6}, {-1, 2.5, 15}, {4, 3, 4}, {20, 1, 20}}) {
    config::Config config;
    config.max_steps = row.max_steps;
    config.num_train_epochs = row.epochs;
    config.lr_scheduler_type = "linear";
    config.learning_rate = 1;
    StartedRun run(config);
    run.sizing().choose();
    run.start().prepare_schedule();
    EXPECT_EQ(run.run().total_steps, row.steps);
    EXPECT_DOUBLE_EQ(run.parts().schedule->learning_rate(row.steps / 2),
                     1 - static_cast<double>(row.steps / 2) / static_cast<double>(row.steps));
  }
}

TEST(RunStart, ContinuesTheDataAtTheCheckpoint) {
  StartedRun first;
  first.sizing().choose();
  first.start().continue_data();
  EXPECT_EQ(first.parts().feed->step().epoch, 0) << "a fresh run begins at the first row";
  first.parts().feed->start({.micro = 2, .accumulation = 1, .rank = 0, .world = 1});
  for (int i = 0; i < 3; ++i) first.parts().feed->next(true, nullptr);
  const Json place{{"place", first.parts().feed->position()}};

  StartedRun resumed;
  resumed.save(3, place);
  resumed.start().open_checkpoint();
  resumed.sizing().choose();
  resumed.start().continue_data();
  EXPECT_DOUBLE_EQ(resumed.parts().feed->step().epoch, 0.5);
  // The run returns to the checkpoint, to its own place or to another one.
  resumed.run().step = 3;
  resumed.start().restart_data(nullptr);
  EXPECT_DOUBLE_EQ(resumed.parts().feed->step().epoch, 0.5);
  first.parts().feed->next(true, nullptr);
  const Json other = first.parts().feed->position();
  resumed.start().restart_data(&other);
  EXPECT_GT(resumed.parts().feed->step().epoch, 0.5) << "the data since the checkpoint are skipped";
}

// Each row changes the state of the checkpoint.
TEST(RunStart, TellsWhatDiffersFromTheRunOfTheCheckpoint) {
  struct Row {
    Json changes;
    std::string says;
  };
  for (const Row& row : std::vector<Row>{
           {{}, ""},
           {{{"global_batch", 2}, {"data_fingerprint", "others"}},
            "the training data differ from the data of"},
           {{{"global_batch", 2}}, ""},
           {{{"global_batch", 1234}, {"total_steps", 10}},
            "a step trains 2 samples from here on, instead of 1,234: the run continues at the same place in "
            "the data and ends after step 10; set global_batch_size"},
           {{{"global_batch", 4}, {"total_steps", 5}},
            "ends after step 10 instead of 5, which stretches or shortens the schedule"},
           {{{"model_config", {{"config.json", {{"rope_theta", 1}}}}}}, "files of tiny changed: "},
       }) {
    StartedRun run;
    run.sizing().choose();
    Json state{{"data_fingerprint", run.parts().feed->fingerprint()}};
    if (row.changes.is_object()) state.update(row.changes);
    run.parts().model_config = Json{{"config.json", {{"rope_theta", 2}}}};
    if (!state.contains("model_config")) state["model_config"] = run.parts().model_config;
    run.parts().checkpoint.emplace(run.save(4, state));
    const std::string text = logged([&] { run.start().say_differences(); });
    EXPECT_EQ(text.empty(), row.says.empty()) << text;
    expect_logged(text, row.says);
  }
}

TEST(RunStart, FallsBackToACheckpointThatIsNotDamaged) {
  StartedRun run;
  run.sizing().choose();
  run.start().prepare_schedule();
  run.parts().fresh = true;
  run.start().make_engine();
  run.start().begin_weights();
  const Json place{{"place", run.parts().feed->position()}};
  for (const std::int64_t step : {2, 4}) {
    Json state = run.model_state();
    state.update(place);
    checkpoint::save(run.run().job, run.run().config.output_dir,
                     {.step = step,
                      .slices = state_slices(*run.parts().engine),
                      .state = state,
                      .config_yaml = run.run().resolved.to_yaml()});
  }
  const std::string file = run.folder() / "checkpoint-4/checkpoint.h5";
  {
    std::fstream data(file, std::ios::in | std::ios::out | std::ios::binary);
    data.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) / 2));
    data.write("damage", 6);
  }
  run.parts().engine.reset();
  run.start().open_checkpoint();
  EXPECT_EQ(run.parts().checkpoint->step(), 4);
  const std::string text = logged([&] { run.start().make_engine(); });
  EXPECT_EQ(run.parts().checkpoint->step(), 2);
  EXPECT_EQ(run.start().from(), "disk");
  expect_logged(text, "skipping an invalid checkpoint: " + (run.folder() / "checkpoint-4"));
  ASSERT_NE(run.parts().engine, nullptr);
  // A checkpoint to return to is of this process: damage ends the run.
  try {
    run.start().read_again(run.folder() / "checkpoint-4");
    ADD_FAILURE() << "a damaged checkpoint was read";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::hang);
  }
}

}  // namespace
}  // namespace octet::train::run_start_test
