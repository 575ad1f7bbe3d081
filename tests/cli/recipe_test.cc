// Training options: evaluation, packing, plain text, recomputation, and the files of a run.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::recipe_test {
namespace {

namespace fs = std::filesystem;

TEST(Evaluation, HeldOutRowsAreEvaluatedAlikeByAnyNumberOfRanks) {
  const TemporaryFolder folder("evaluation");
  const Task& task = Task::get();
  const std::string options = "val_size=0.1 eval_strategy=steps eval_steps=6 per_device_eval_batch_size=5 ";
  std::map<int, double> losses;
  for (const int np : {0, 3}) {
    const std::string output = folder / std::to_string(np);
    expect_success(trainer(task.train(output, options + "per_device_train_batch_size=4"), np));
    std::vector<double> found;
    for (const auto& line : split(slurp(output + "/trainer_log.jsonl"), '\n')) {
      if (line.find("\"eval_loss\"") == std::string::npos) continue;
      const Json row = parse_json(line, "log");
      found.push_back(row["eval_loss"]);
      EXPECT_FALSE(row.contains("loss"));
    }
    ASSERT_EQ(found.size(), 2u) << "steps 6 and 12";
    EXPECT_LT(found[1], found[0]);
    losses[np] = found[1];
    EXPECT_NEAR(parse_json(slurp(output + "/eval_results.json"), "eval")["eval_loss"].get<double>(), found[1],
                1e-12);
  }
  EXPECT_NEAR(losses[3] / losses[0], 1.0, 1e-5);
}

TEST(Evaluation, ADataSetOfItsOwnIsEvaluatedAndNotTrained) {
  const TemporaryFolder folder("eval_dataset");
  const Task& task = Task::get();
  const Outcome run = trainer(task.train(
      folder / "run", "max_steps=3 eval_strategy=epoch eval_dataset=" + task.held_out() + " max_samples=48"));
  expect_success(run);
  EXPECT_NE(run.err.find("evaluation data: 12 documents of 12 rows"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("training data: 48 documents of 48 rows"), std::string::npos) << run.err;
  EXPECT_TRUE(fs::exists(folder / "run/eval_results.json"));
}

TEST(Packing, PackedQuestionsTrainAndResumeLikeAnyOthers) {
  const TemporaryFolder folder("packing");
  const std::string options =
      "packing=true cutoff_len=96 lr_scheduler_type=constant global_batch_size=8 "
      "per_device_train_batch_size=";
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "alone", options + "4")));
  expect_success(trainer(task.train(folder / "whole", options + "2"), 2));
  expect_success(trainer(task.train(folder / "two", options + "2 max_steps=5"), 2));
  std::filesystem::remove(folder / "two/model.safetensors");
  const Outcome resumed = trainer(task.train(folder / "two", options + "2"), 2);
  expect_success(resumed);
  EXPECT_NE(resumed.err.find("Continuing from global step 5"), std::string::npos) << resumed.err;
  expect_every_step(folder / "two", 12);
  // Steps 6 to 12 were trained after the resume. They have the bits of a run without a stop, and the losses
  // of one rank that takes all packs.
  expect_identical(folder / "whole/checkpoint-12", folder / "two/checkpoint-12");
  expect_same_losses(folder / "two", folder / "whole", 0);
  expect_same_losses(folder / "two", folder / "alone", 1e-5);
}

TEST(PlainText, StagePtTrainsEveryTokenAndReportsPerplexity) {
  const TemporaryFolder folder("plain");
  std::string rows;
  for (int i = 0; i < 60; ++i) {
    rows +=
        Json{{"text", "line " + std::to_string(i) + " of a plain text about sorting words"}}.dump() + "\n";
  }
  spill(folder / "text.jsonl", rows);
  const Task& task = Task::get();
  const Outcome run = trainer(task.train(
      folder / "run", "stage=pt dataset=" + (folder / "text.jsonl") + " val_size=6 eval_strategy=epoch"));
  expect_success(run);
  const Json results = parse_json(slurp(folder / "run/all_results.json"), "results");
  EXPECT_NEAR(results["perplexity"].get<double>(), std::exp(results["eval_loss"].get<double>()), 1e-9);
}

TEST(Recompute, EveryLevelGivesTheBitsOfNone) {
  const TemporaryFolder folder("recompute");
  const Task& task = Task::get();
  // model_tests compares every level with every recipe.
  for (const auto& [recipe, levels] :
       {std::pair<std::string, std::vector<std::string>>{"bf16=true", {"norms", "full"}},
        {"bf16=true fp8=true", {"qkv"}}}) {
    SCOPED_TRACE(recipe);
    const std::string options = recipe + " max_steps=5 overwrite_output_dir=true recompute=";
    expect_success(trainer(task.train(folder / "none", options + "none"), 2));
    for (const std::string& level : levels) {
      expect_success(trainer(task.train(folder / level, options + level), 2));
      expect_identical(folder / "none/checkpoint-5", folder / (level + "/checkpoint-5"));
    }
  }
}

TEST(Files, ARunLeavesWhatHuggingFaceUsersExpect) {
  const TemporaryFolder folder("files");
  const Outcome run = trainer(Task::get().train(folder / "run", "report_to=tensorboard plot_loss=true"), 2);
  expect_success(run);
  EXPECT_EQ(run.out, "") << "what is not a result goes to standard error";
  for (const char* name :
       {"trainer_log.jsonl", "trainer_state.json", "all_results.json", "train_results.json", "README.md",
        "training_loss.svg", "training_loss.png", "config.resolved.yaml", "config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_TRUE(fs::exists(folder / (std::string("run/") + name))) << name;
  }
  const Json state = parse_json(slurp(folder / "run/trainer_state.json"), "state");
  EXPECT_EQ(state["global_step"], 12);
  EXPECT_EQ(state["max_steps"], 12);
  ASSERT_TRUE(state["log_history"].is_array());
  EXPECT_GE(state["log_history"].size(), 12u);
  for (const char* key : {"loss", "grad_norm", "learning_rate", "epoch", "step"}) {
    EXPECT_TRUE(state["log_history"][0].contains(key)) << key;
  }
  const Json results = parse_json(slurp(folder / "run/all_results.json"), "results");
  for (const char* key : {"epoch", "total_flos", "train_loss", "train_runtime", "train_samples_per_second",
                          "train_steps_per_second"}) {
    EXPECT_TRUE(results.contains(key)) << key;
  }
  bool events = false;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "run/runs")) {
    const bool is_one = entry.path().filename().string().starts_with("events.out.tfevents.");
    events = events || (is_one && entry.file_size() > 200);
  }
  EXPECT_TRUE(events);
}

TEST(Generate, AnswersComeFromTheFinalModelToStandardOutput) {
  const TemporaryFolder folder("generate");
  expect_success(trainer(Task::get().train(folder / "run", "max_steps=3"), 2));
  const std::string model = "generate " + (folder / "run") + " --template chatml --max-new 8 ";
  const Outcome alone = trainer(model + "--file " + Task::get().held_out());
  expect_success(alone);
  EXPECT_EQ(std::ranges::count(alone.out, '\n'), 12);
  const Outcome three = trainer(model + "--input_file " + Task::get().held_out(), 3);
  expect_success(three);
  EXPECT_EQ(three.out, alone.out);
  const Outcome match = trainer(model + "--exact-match --file " + Task::get().held_out(), 2);
  expect_success(match);
  EXPECT_TRUE(match.out.starts_with("exact match: "))
      << "the command cannot tell which rows were trained: " << match.out;
  const Outcome rouge = trainer(model + "--rouge-l --exact-match --file " + Task::get().held_out(), 2);
  expect_success(rouge);
  EXPECT_NE(rouge.out.find("\nROUGE-L: "), std::string::npos) << rouge.out;
  EXPECT_TRUE(rouge.out.starts_with(match.out)) << "both are printed: " << rouge.out;
}

// Trained prompts are recognised by their text, independent of the file.
TEST(Generate, PromptsThatWereTrainedAreReported) {
  const TemporaryFolder folder("trained_prompts");
  const auto row = [](int i) {
    const std::string number = std::to_string(i);
    return Json{{"messages",
                 {{{"role", "user"}, {"content", "What is after " + number + "?"}},
                  {{"role", "assistant"}, {"content", std::to_string(i + 1)}}}}}
               .dump() +
           "\n";
  };
  const auto write = [&](const std::string& name, int first, int last) {
    std::string text;
    for (int i = first; i < last; ++i) text += row(i);
    spill(folder / name, text);
    return folder / name;
  };
  const std::string rows = write("rows.jsonl", 0, 20);
  const std::string half = write("half.jsonl", 15, 25), fresh = write("fresh.jsonl", 20, 25);
  const auto train = [&](const std::string& name, const std::string& keys) {
    expect_success(trainer(Task::get().train(
        folder / name,
        "dataset=" + rows + " max_steps=1 global_batch_size=8 save_steps=1 device=cpu " + keys)));
    return folder / name;
  };
  const std::string all = train("all", "");
  const std::string held = train("held", "val_size=4");
  const std::string stream = train("stream", "val_size=4 streaming=true buffer_size=8");
  struct Case {
    std::string model, file, warns;
  };
  for (const Case& c : {Case{all, rows, "20 of 20 prompts"}, Case{all, half, "5 of 10 prompts"},
                        Case{all, fresh, ""}, Case{all + "/checkpoint-1", half, "5 of 10 prompts"},
                        Case{held, rows, "16 of 20 prompts"}, Case{stream, rows, "16 of 20 prompts"}}) {
    SCOPED_TRACE(c.model + " " + c.file);
    const Outcome run = trainer("generate " + c.model +
                                " --template chatml --device cpu --max-new 1 --exact-match --file " + c.file);
    expect_success(run);
    const std::string words = "are rows that the model was trained on";
    EXPECT_EQ(run.err.find(words) != std::string::npos, !c.warns.empty()) << run.err;
    EXPECT_NE(run.err.find(c.warns), std::string::npos) << run.err;
  }
  std::filesystem::remove(rows);
  const Outcome gone = trainer("generate " + all +
                               " --template chatml --device cpu --max-new 1 --exact-match --file " + fresh);
  expect_success(gone);
  EXPECT_NE(gone.err.find("cannot tell whether prompts of "), std::string::npos) << gone.err;
}

}  // namespace
}  // namespace octet::test::recipe_test
