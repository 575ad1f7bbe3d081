// The steps of a run with a tiny model.
#include "../src/train/train_steps.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/config/config.h"
#include "sizing/sizing.h"
#include "train/tiny_run.h"

namespace octet::train::train_steps_test {
namespace {

using run_objects::TinyRun;

/// A run with an engine. An epoch has six steps of two documents; the last has one document.
class SteppedRun : public TinyRun {
 public:
  explicit SteppedRun(config::Config config = {}) : TinyRun(of_two(std::move(config))) {
    sizing_.choose();
    make_schedule();
    sizing_.build_engine(sizing_.options());
    parts().engine->initialise(1);
    saves_.open();
    guard_.make();
  }
  TrainSteps& steps() { return steps_; }
  void take(int count) {
    for (int i = 0; i < count; ++i) steps_.take();
  }
  /// Returns the rows of each step in samples.jsonl, as text.
  std::string samples() const {
    std::string text;
    for (const std::string& line : split(test::slurp(folder() / "samples.jsonl"), '\n')) {
      if (line.empty()) continue;
      const Json row = Json::parse(line);
      text += row.at("step").dump() + row.at("rows").dump() + " ";
    }
    return text;
  }

 private:
  static config::Config of_two(config::Config config) {
    config.per_device_train_batch_size = 1;
    config.gradient_accumulation_steps = 2;
    config.learning_rate = 1e-3;
    return config;
  }
  Evaluations evaluations_{run(), parts()};
  Saves saves_{run(), parts(), evaluations_, {}};
  MemorySaves memory_{run(), parts(), saves_, {}};
  StepGuard guard_{run(), parts(), saves_};
  Sizing sizing_{run(), parts()};
  TrainSteps steps_{run(), parts(), guard_, saves_, memory_};
};

TEST(TrainSteps, CountStepsAndSamples) {
  config::Config config;
  config.log_samples = true;
  SteppedRun run(config);
  run.steps().start();
  struct Row {
    std::int64_t step, samples;
  };
  for (const Row& row : {Row{1, 2}, {2, 4}, {3, 6}, {4, 8}, {5, 10}, {6, 11}, {7, 13}}) {
    run.take(1);
    EXPECT_EQ(run.run().step, row.step);
    EXPECT_EQ(run.run().samples_seen, row.samples);
  }
  EXPECT_EQ(run.samples(),
            "1[[[0],[1]]] 2[[[2],[3]]] 3[[[4],[5]]] 4[[[6],[7]]] 5[[[8],[9]]] 6[[[10],[]]] 7[[[0],[1]]] ");
}

TEST(TrainSteps, ContinueAtACheckpoint) {
  config::Config config;
  config.log_samples = true;
  SteppedRun run(config);
  run.steps().start();
  run.take(3);
  const Json place = run.parts().feed->position();
  run.take(2);
  run.parts().checkpoint.emplace(run.save_checkpoint(3, {{"samples_seen", 6}}));
  run.steps().stand_at_checkpoint();
  EXPECT_EQ(run.run().step, 3);
  EXPECT_EQ(run.run().samples_seen, 6);
  run.parts().feed = feed::make_feed(run.run().session, run.run().config, false, run.parts().batch,
                                     *run.parts().encoder, run.parts().corpus);
  run.parts().feed->go_on(3, {{"place", place}}, "checkpoint-3");
  run.steps().start();
  EXPECT_EQ(run.samples(), "1[[[0],[1]]] 2[[[2],[3]]] 3[[[4],[5]]] ") << "later steps did not happen";
  run.take(1);
  EXPECT_EQ(run.run().step, 4);
  EXPECT_EQ(run.run().samples_seen, 8);
  EXPECT_EQ(run.samples(), "1[[[0],[1]]] 2[[[2],[3]]] 3[[[4],[5]]] 4[[[6],[7]]] ");
}

TEST(TrainSteps, RefuseACheckpointWithoutACountOfSamples) {
  SteppedRun run;
  for (const Json& samples : {Json(-1), Json("many"), Json(1.5)}) {
    run.parts().checkpoint.emplace(run.save_checkpoint(3, {{"samples_seen", samples}}));
    EXPECT_THROW(run.steps().stand_at_checkpoint(), Error) << samples;
  }
  run.parts().checkpoint.emplace(run.save_checkpoint(4, Json::object()));
  run.steps().stand_at_checkpoint();
  EXPECT_EQ(run.run().samples_seen, 0) << "older checkpoints do not have it";
}

}  // namespace
}  // namespace octet::train::train_steps_test
