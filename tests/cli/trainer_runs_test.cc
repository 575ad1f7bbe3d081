// Whole runs of the program against whole runs of transformers.Trainer (tests/models/trainer_runs): every
// step in trainer_log.jsonl, on one and three ranks, with and without packing, and after a resume.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>
#include <vector>

#include "cli/task.h"
#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::test::trainer_runs_test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/";

class TrainerRuns : public testing::TestWithParam<std::string> {
 protected:
  TrainerRuns() {
    const Json all = read_json(kGolden + "trainer_runs/runs.json");
    reference_ = all["runs"][GetParam()];
    const std::string model = kGolden + "models/" + all["model"].get<std::string>() + "/";
    for (const std::string& from :
         {model + "config.json", model + "model.safetensors", kGolden + "trainer_runs/tokenizer.json",
          kGolden + "trainer_runs/tokenizer_config.json", kGolden + "trainer_runs/chat_template.jinja"}) {
      fs::create_directories(folder_ / "model");
      fs::copy_file(from, (folder_ / "model/") + fs::path(from).filename().string());
    }
  }

  // Trainer's own arguments, under the same names. The number of samples per micro-batch over all ranks stays
  // equal.
  Json configuration(const std::string& output, int np) const {
    Json config = reference_["arguments"];
    const std::int64_t ranks = std::max(1, np);
    const std::int64_t samples = config["per_device_train_batch_size"].get<std::int64_t>() *
                                 reference_["processes"].get<std::int64_t>();
    EXPECT_EQ(samples % ranks, 0);
    config["per_device_train_batch_size"] = samples / ranks;
    config["per_device_eval_batch_size"] = 2;
    config["model_name_or_path"] = folder_ / "model";
    config["dataset"] = kGolden + "trainer_runs/train.jsonl";
    config["eval_dataset"] = kGolden + "trainer_runs/held_out.jsonl";
    config["disable_shuffling"] = true;
    config["output_dir"] = folder_ / output;
    config["save_steps"] = 11;
    if (reference_.contains("cutoff_len")) {
      config["packing"] = true;
      config["cutoff_len"] = reference_["cutoff_len"];
    }
    return config;
  }

  Outcome run(const std::string& output, int np, const std::string& more = "") {
    spill(folder_ / "config.json", configuration(output, np).dump(1));
    return trainer((folder_ / "config.json") + " " + more, np);
  }

  std::vector<Json> rows(const std::string& output) const {
    std::vector<Json> rows;
    for (const auto& line : split(slurp(folder_ / (output + "/trainer_log.jsonl")), '\n')) {
      if (!line.empty()) rows.push_back(parse_json(line, "trainer_log.jsonl"));
    }
    return rows;
  }

  // Resumes from the checkpoint of step 11 of `from`, in a folder that has only the log up to it.
  Outcome resume(const std::string& from, const std::string& output, int np) {
    std::string log;
    for (const Json& row : rows(from)) {
      if (row["current_steps"].get<std::int64_t>() <= 11) log += row.dump() + "\n";
    }
    spill(folder_ / (output + "/trainer_log.jsonl"), log);
    return run(output, np, "resume_from_checkpoint=" + (folder_ / (from + "/checkpoint-11")));
  }

  // `total`: steps of the run. The program logs the last step independent of logging_steps.
  void expect_steps(const std::string& output, std::int64_t total) const {
    const auto steps = steps_of(folder_ / output);
    const bool ends = reference_["steps"].back()["step"] == total;
    ASSERT_EQ(steps.size(), reference_["steps"].size() + (ends ? 0 : 1));
    EXPECT_TRUE(steps.contains(total));
    for (const Json& expected : reference_["steps"]) {
      const auto step = expected["step"].get<std::int64_t>();
      ASSERT_TRUE(steps.contains(step)) << step;
      const Json& row = steps.at(step);
      const auto number = [](const Json& from, const char* key) { return from.at(key).get<double>(); };
      SCOPED_TRACE("step " + std::to_string(step));
      EXPECT_EQ(row["total_steps"], total);
      EXPECT_NEAR(number(row, "loss") / number(expected, "loss"), 1.0, 1e-5);
      EXPECT_NEAR(number(row, "grad_norm") / number(expected, "grad_norm"), 1.0, 1e-4);
      // The first rate of a warm-up is 0.
      const double rate = number(expected, "learning_rate");
      EXPECT_NEAR(number(row, "lr"), rate, 1e-12 * rate);
      EXPECT_DOUBLE_EQ(number(row, "epoch"), number(expected, "epoch"));
      EXPECT_EQ(row["total_tokens"], expected["tokens"]);
    }
  }

  void expect_evaluations(const std::string& output) const {
    std::size_t count = 0;
    for (const Json& row : rows(output)) {
      if (!row.contains("eval_loss")) continue;
      ASSERT_LT(count, reference_["evaluations"].size()) << row;
      const Json& expected = reference_["evaluations"][count++];
      EXPECT_EQ(row["current_steps"], expected["step"]);
      EXPECT_NEAR(row["eval_loss"].get<double>() / expected["eval_loss"].get<double>(), 1.0, 1e-5)
          << "step " << expected["step"];
    }
    EXPECT_EQ(count, reference_["evaluations"].size());
  }

  TemporaryFolder folder_{"trainer_runs"};
  Json reference_;
};

// Three ranks use stage 3. Every run resumes in the middle of an epoch from a checkpoint of the other number
// of ranks.
TEST_P(TrainerRuns, EveryStepIsThatOfHuggingFacesTrainer) {
  expect_success(run("alone", 0));
  expect_success(run("three", 3, "zero_stage=3"));
  for (const auto& [from, output, np] :
       {std::tuple{"three", "alone_resumed", 0}, std::tuple{"alone", "three_resumed", 3}}) {
    const Outcome resumed = resume(from, output, np);
    expect_success(resumed);
    EXPECT_NE(resumed.err.find("Continuing from global step 11"), std::string::npos) << resumed.err;
  }
  for (const char* output : {"alone", "three", "alone_resumed", "three_resumed"}) {
    SCOPED_TRACE(output);
    expect_steps(output, 20);
    expect_evaluations(output);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TrainerRuns, testing::Values("drop_last"),
                         [](const auto& param) { return param.param; });
INSTANTIATE_TEST_SUITE_P(Whole, TrainerRuns, testing::Values("short", "packed"),
                         [](const auto& param) { return param.param; });

class SeldomLogged : public TrainerRuns {};

// A row's loss is the mean of the steps since the previous row.
TEST_P(SeldomLogged, RowsAreThoseOfHuggingFacesTrainer) {
  expect_success(run("alone", 0));
  expect_steps("alone", 10);
  expect_evaluations("alone");
}

INSTANTIATE_TEST_SUITE_P(Golden, SeldomLogged, testing::Values("seldom"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace octet::test::trainer_runs_test
