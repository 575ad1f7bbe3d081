// The whole program at every ZeRO stage: equal bits in checkpoints, equal evaluations, and runs that resume
// at another stage. tests/cli/stages.sh tests the full matrix.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "octet/base/json.h"
#include "support/program.h"

namespace octet::stages_test {
namespace {

struct TrainRun {
  int np = 2;
  int stage = 0;
  bool overlap = true;
  std::string options;
  int steps = 4;
};

std::vector<Json> read_rows(const std::string& path) {
  std::vector<Json> rows;
  std::istringstream text(test::slurp(path));
  for (std::string line; std::getline(text, line);) rows.push_back(parse_json(line, path));
  return rows;
}

class Stages : public testing::Test {
 protected:
  Stages() : folder_("stages") {
    ::setenv("OCTETRUN_OVERLAP", "always", 1);  // without a free core the program would disable overlap
    const auto made = test::trainer("quickstart " + (folder_ / "task") + " --rows 600 --held-out 10");
    EXPECT_EQ(made.code, 0) << made.both();
  }

  // Trains into `name` and returns its last checkpoint.
  std::string train(const std::string& name, const TrainRun& run) {
    const auto outcome = test::trainer(
        (folder_ / "task/config.yaml") + " output_dir=" + (folder_ / name) +
            " zero_stage=" + std::to_string(run.stage) + " overlap_comm=" + (run.overlap ? "true" : "false") +
            " max_steps=" + std::to_string(run.steps) +
            " per_device_train_batch_size=2 gradient_accumulation_steps=2 global_batch_size=null "
            "lr_scheduler_type=constant warmup_ratio=0 save_steps=100 logging_steps=1 plot_loss=false "
            "report_to=none " +
            run.options,
        run.np);
    EXPECT_EQ(outcome.code, 0) << name << "\n" << outcome.both();
    return folder_ / (name + "/checkpoint-" + std::to_string(run.steps));
  }

  struct Recipe {
    const char *name, *options;
    int np = 2;
  };
  const std::vector<Recipe> recipes_{
      {"fp32", "bf16=false"},
      {"bf16", "bf16=true recompute=full"},
      {"delayed", "bf16=true fp8=true", 3},
      {"current", "bf16=false fp8=true fp8_recipe=current"},
      {"block", "bf16=true fp8=true fp8_recipe=block"},
  };
  struct Way {
    int stage;
    bool overlap;
  };
  const std::vector<Way> ways_{{0, true}, {1, true}, {2, true}, {3, true}, {3, false}};

  /// Expects the bits of stage 0 without overlap.
  void expect_same_bits(const Recipe& recipe, const std::vector<Way>& ways) {
    SCOPED_TRACE(recipe.name);
    const std::string prefix = std::string(recipe.name) + "-";
    const std::string reference =
        train(prefix + "0", {.np = recipe.np, .stage = 0, .overlap = false, .options = recipe.options});
    int number = 1;
    for (const auto& [stage, overlap] : ways) {
      SCOPED_TRACE("stage " + std::to_string(stage) + (overlap ? " overlap" : ""));
      expect_same(reference,
                  train(prefix + std::to_string(number++),
                        {.np = recipe.np, .stage = stage, .overlap = overlap, .options = recipe.options}));
    }
  }

  struct Share {
    int np, accumulation, stage;
    bool overlap;
  };
  const std::vector<Share> shares_{{1, 8, 0, true}, {2, 4, 3, true}, {4, 2, 1, false}, {8, 1, 2, true}};
  const std::vector<std::string> strict_recipes_{"bf16=false", "bf16=true",
                                                 "bf16=true fp8=true fp8_recipe=current"};

  /// Expects equal parameters, moments, losses and norms for all shares. The last batch of an evaluation is
  /// partial.
  void expect_strict(const std::string& recipe, const std::vector<Share>& shares) {
    SCOPED_TRACE(recipe);
    std::string reference;
    std::set<std::string> losses;
    for (const auto& [np, accumulation, stage, overlap] : shares) {
      SCOPED_TRACE("ranks " + std::to_string(np));
      const std::string name = "strict" + std::to_string(np);
      const std::string checkpoint =
          train(name, {.np = np,
                       .stage = stage,
                       .overlap = overlap,
                       .options = recipe + " deterministic=strict gradient_accumulation_steps=" +
                                  std::to_string(accumulation) +
                                  " val_size=5 eval_strategy=steps eval_steps=2 per_device_eval_batch_size=2 "
                                  "overwrite_output_dir=true",
                       .steps = 3});
      std::string found;
      for (const Json& row : read_rows(folder_ / (name + "/trainer_log.jsonl"))) {
        for (const char* key : {"loss", "eval_loss", "grad_norm"}) {
          if (row.contains(key)) found += row[key].dump() + " ";
        }
      }
      EXPECT_GT(found.size(), 60u);
      losses.insert(found);
      if (reference.empty()) {
        std::filesystem::rename(checkpoint, reference = folder_ / "strict-reference");
      } else {
        expect_same(reference, checkpoint);
      }
    }
    EXPECT_EQ(losses.size(), 1u);
    std::filesystem::remove_all(reference);
  }

  void expect_resumed(const std::vector<std::pair<int, int>>& stages) {
    const std::string options = "bf16=true fp8=true";
    const std::string whole = train("whole", {.stage = 0, .options = options});
    for (const auto& [first, second] : stages) {
      SCOPED_TRACE(std::to_string(first) + " then " + std::to_string(second));
      const std::string name = "resumed" + std::to_string(first);
      train(name, {.stage = first, .options = options, .steps = 2});
      std::filesystem::remove(folder_ / (name + "/model.safetensors"));
      expect_same(whole, train(name, {.stage = second,
                                      .options = options +
                                                 " overwrite_output_dir=false resume_from_checkpoint=true"}));
    }
  }

  void expect_same(const std::string& a, const std::string& b) {
    const auto diff = test::trainer("inspect " + a + " --diff " + b);
    EXPECT_EQ(diff.code, 0) << diff.both();
  }

  test::TemporaryFolder folder_;
};

class WholeStages : public Stages {};

// Each recipe runs in two ways, and each way with two recipes.
TEST_F(WholeStages, CheckpointsAgreeInEveryBitWithOverlapOrWithout) {
  for (std::size_t i = 0; i < recipes_.size(); ++i)
    expect_same_bits(recipes_[i], {ways_[i], ways_[(i + 3) % ways_.size()]});
  const auto missing = test::trainer("inspect " + (folder_ / "fp32-0/checkpoint-4") + " --diff " +
                                     (folder_ / "fp32-0/checkpoint-40"));
  EXPECT_EQ(missing.code, 77) << "not a difference\n" << missing.both();
}

TEST_F(WholeStages, CheckpointsOfEveryRecipeAgreeInEveryWay) {
  for (const Recipe& recipe : recipes_) expect_same_bits(recipe, ways_);
}

// One rank uses all cores. Eight ranks use one core each and are oversubscribed.
TEST_F(WholeStages, StrictRunsOfAnyNumberOfRanksEndWithTheSameBits) {
  for (std::size_t i = 0; i < strict_recipes_.size(); ++i)
    expect_strict(strict_recipes_[i], {shares_[0], shares_[i + 1]});
}

TEST_F(WholeStages, StrictRunsOfEveryRecipeAndNumberOfRanksEndWithTheSameBits) {
  for (const std::string& recipe : strict_recipes_) expect_strict(recipe, shares_);
}

// The residuals of narrow reductions are in the checkpoint. Another number of ranks restarts without them.
TEST_F(Stages, ErrorFeedbackGoesOnWhereItWas) {
  const std::string options = "reduce_dtype=int8 error_feedback=true";
  const std::string whole = train("whole", {.stage = 1, .options = options});
  const std::string again = options + " overwrite_output_dir=false resume_from_checkpoint=true";
  train("half", {.stage = 2, .options = options, .steps = 2});
  std::filesystem::remove(folder_ / "half/model.safetensors");
  std::filesystem::copy(folder_ / "half", folder_ / "others", std::filesystem::copy_options::recursive);
  expect_same(whole, train("half", {.stage = 3, .options = again}));
  const auto kept = test::trainer("inspect " + whole + " --filter residuals/");
  EXPECT_EQ(kept.code, 0) << kept.both();
  EXPECT_NE(kept.both().find("residuals/"), std::string::npos);
  train("others", {.np = 3, .stage = 1, .options = again});
  const auto alone = test::trainer("inspect " + whole + " --diff " + folder_ / "others/checkpoint-4");
  EXPECT_EQ(alone.code, 1);
}

// Five held-out rows on three ranks: one rank has no row in the last batch.
TEST_F(WholeStages, EvaluationGivesTheSameLossAtEveryStage) {
  std::set<std::string> losses;
  for (const int stage : {0, 1, 2, 3}) {
    const std::string name = "eval" + std::to_string(stage);
    train(name, {.np = 3,
                 .stage = stage,
                 .options = "val_size=5 eval_strategy=steps eval_steps=1 per_device_eval_batch_size=1"});
    std::string found;
    for (const Json& row : read_rows(folder_ / (name + "/trainer_log.jsonl"))) {
      if (row.contains("eval_loss")) found += row["eval_loss"].dump() + " ";
    }
    EXPECT_GT(found.size(), 12u);
    losses.insert(found);
  }
  EXPECT_EQ(losses.size(), 1u);
}

TEST_F(WholeStages, ARunGoesOnAtAnotherStage) {
  expect_resumed({{3, 1}, {0, 3}});
}

TEST_F(WholeStages, ARunGoesOnAtOthers) {
  expect_resumed({{2, 0}, {1, 2}});
}

TEST_F(WholeStages, ModelsAreExportedAlikeAtEveryStage) {
  std::set<std::string> weights;
  for (const int stage : {0, 3}) {
    const std::string name = "export" + std::to_string(stage);
    train(name, {.np = 3, .stage = stage, .steps = 2});
    weights.insert(test::slurp(folder_ / (name + "/model.safetensors")));
    const auto answer =
        test::trainer("generate " + (folder_ / name) + " --template chatml --max-new 4 b,a", 2);
    EXPECT_EQ(answer.code, 0) << answer.both();
  }
  EXPECT_EQ(weights.size(), 1u);
  EXPECT_GT(weights.begin()->size(), 100000u);
}

}  // namespace
}  // namespace octet::stages_test
