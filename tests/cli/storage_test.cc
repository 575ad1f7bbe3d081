// Runs with parameters, gradients and moments in narrow formats.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::storage_test {
namespace {

double mean_of_last(const std::string& output, std::int64_t steps, std::int64_t last) {
  const auto rows = steps_of(output);
  double sum = 0;
  for (std::int64_t step = last - steps + 1; step <= last; ++step) sum += rows.at(step)["loss"].get<double>();
  return sum / static_cast<double>(steps);
}

TEST(WholeStorage, LossesFollowThoseOfFp32States) {
  const TemporaryFolder folder("follow");
  const Task& task = Task::get();
  const std::string options = "bf16=true max_steps=120 save_strategy=no overwrite_output_dir=true ";
  const auto loss = [&](const std::string& formats) {
    const Outcome run = trainer(task.train(folder / "run", options + formats));
    EXPECT_EQ(run.code, 0) << run.both();
    return mean_of_last(folder / "run", 20, 120);
  };
  const double wide = loss("");
  EXPECT_LT(wide, 3.2) << "the task is learnt";
  for (const std::string formats :
       {"optim_dtype=int8", "pure_bf16=true", "pure_bf16=true deterministic=false",
        "pure_bf16=true optim_dtype=int8"}) {
    EXPECT_NEAR(loss(formats) / wide, 1.0, 0.01) << formats;
  }
}

TEST(Storage, StagesAgreeInEveryBit) {
  const TemporaryFolder folder("stages");
  const Task& task = Task::get();
  const std::string options = "pure_bf16=true optim_dtype=int8 fp8=true max_steps=4 save_steps=4 zero_stage=";
  expect_success(trainer(task.train(folder / "0", options + "0"), 3));
  expect_success(trainer(task.train(folder / "1", options + "1"), 3));
  expect_success(trainer(task.train(folder / "3", options + "3"), 3));
  expect_identical(folder / "0/checkpoint-4", folder / "1/checkpoint-4");
  expect_identical(folder / "0/checkpoint-4", folder / "3/checkpoint-4");
}

TEST(WholeStorage, AResumeInAnotherFormatConvertsAndSaysSoOrSaysWhyNot) {
  const TemporaryFolder folder("formats");
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "run", "bf16=true max_steps=5")));
  const Outcome narrow = trainer(task.train(folder / "run", "pure_bf16=true max_steps=10"));
  expect_success(narrow);
  EXPECT_NE(narrow.err.find("parameters are converted from fp32 to bf16"), std::string::npos) << narrow.err;
  EXPECT_NE(narrow.err.find("exp_avg are converted from fp32 to bf16"), std::string::npos) << narrow.err;
  const Outcome wide =
      trainer(task.train(folder / "run", "bf16=true param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32"));
  expect_success(wide);
  EXPECT_NE(wide.err.find("exp_avg_sq are converted from bf16 to fp32"), std::string::npos) << wide.err;
  expect_every_step(folder / "run", 12);
  const Outcome refused = trainer(task.train(folder / "run", "bf16=true optim_dtype=int8 max_steps=14"));
  EXPECT_EQ(refused.code, 64) << refused.both();
  EXPECT_NE(refused.err.find("cannot change their format"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("optim_dtype: fp32, as in the checkpoint"), std::string::npos) << refused.err;
}

// Without settings: fp32 if it fits, otherwise narrower formats. The choice is printed at the start, and kept
// on a resume.
TEST(WholeStorage, LeftOpenFollowsTheDeviceAndIsKept) {
  const TemporaryFolder folder("open");
  const Task& task = Task::get();
  // A model with more parameters than the task's, so that the scratch memory of threads matters little.
  const std::string model = folder / "model";
  std::filesystem::copy(task.model(), model);
  Json shape = parse_json(slurp(model + "/config.json"), "config.json");
  shape["hidden_size"] = 128, shape["intermediate_size"] = 512;
  spill(model + "/config.json", shape.dump());
  const auto run = [&](const std::string& output, const std::string& keys, const std::string& limit,
                       int np = 1) {
    const Outcome done = shell(
        limit + (np > 1 ? OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " " : "") +
        OCTET_TRAINER " " +
        task.train(folder / output, "model_name_or_path=" + model +
                                        " bf16=true save_steps=3 per_device_train_batch_size=6 " + keys));
    EXPECT_EQ(done.code, 0) << done.both();
    return done;
  };
  const std::string small = "OCTETRUN_MEMORY_LIMIT=1 ";
  const auto stored = [&](const std::string& output) {
    const std::string yaml = slurp(folder / (output + "/config.resolved.yaml"));
    std::string found;
    for (const std::string key : {"param_dtype: ", "grad_dtype: ", "optim_dtype: "}) {
      const std::size_t at = yaml.find("\n" + key);
      EXPECT_NE(at, std::string::npos) << key;
      found += split(yaml.substr(at + 1 + key.size()), '\n').front() + " ";
    }
    return found;
  };
  const Outcome wide = run("wide", "max_steps=3", "");
  EXPECT_EQ(stored("wide"), "fp32 fp32 fp32 ");
  const std::string fp32 =
      "states are stored as param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32: each rank";
  EXPECT_NE(wide.err.find(fp32), std::string::npos) << wide.err;
  EXPECT_EQ(wide.err.find(" with fp32"), std::string::npos) << wide.err;
  for (const int np : {1, 2}) {
    const std::string whole = "whole" + std::to_string(np), part = "part" + std::to_string(np);
    const Outcome narrow = run(whole, "max_steps=6", small, np);
    EXPECT_NE(
        narrow.err.find("states are stored as param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8: each rank"),
        std::string::npos)
        << narrow.err;
    EXPECT_NE(narrow.err.find(" of 1.0 MiB"), std::string::npos) << narrow.err;
    EXPECT_EQ(stored(whole), "bf16 bf16 int8 ");
    // Only the checkpoint of step 3 remains. The resumed run has no memory limit.
    std::filesystem::copy(folder / whole, folder / part, std::filesystem::copy_options::recursive);
    for (const char* end : {"checkpoint-6", "model.safetensors"})
      std::filesystem::remove_all(folder / (part + "/" + end));
    const Outcome resumed = run(part, "max_steps=6", "", np);
    const std::string taken =
        "states are stored as in the checkpoint, param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8: each "
        "rank holds ";
    const std::size_t line = resumed.err.find(taken);
    ASSERT_NE(line, std::string::npos) << resumed.err;
    EXPECT_EQ(resumed.err.find(taken, line + 1), std::string::npos) << "one line, of one rank";
    double narrow_size = 0, wide_size = 0;
    EXPECT_EQ(std::sscanf(resumed.err.c_str() + line + taken.size(), "%lf MiB (%lf MiB with fp32)",
                          &narrow_size, &wide_size),
              2)
        << resumed.err;
    EXPECT_LT(narrow_size + 1, wide_size);
    EXPECT_EQ(stored(part), "bf16 bf16 int8 ");
    expect_identical(folder / (whole + "/checkpoint-6"), folder / (part + "/checkpoint-6"));
  }
  const Outcome told = run("told", "max_steps=1 param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32", "");
  EXPECT_EQ(told.err.find("states are stored as"), std::string::npos) << "nothing was left open";
  run("set", "max_steps=1 optim_dtype=fp32", small);
  EXPECT_EQ(stored("set"), "bf16 bf16 fp32 ") << "what is set stays";
  run("again", "max_steps=3 overwrite_output_dir=true", small);
  EXPECT_NE(shell("OCTETRUN_MEMORY_LIMIT=x " OCTET_TRAINER " " + task.train(folder / "x", "bf16=true")).code,
            0);
}

TEST(Storage, WhatWasTrainedInBf16IsExportedAsItIs) {
  const TemporaryFolder folder("export");
  const Task& task = Task::get();
  expect_success(
      trainer(task.train(folder / "run", "pure_bf16=true optim_dtype=int8 max_steps=3 save_steps=3"), 2));
  expect_success(trainer("export " + (folder / "run/checkpoint-3") + " " + (folder / "exported")));
  EXPECT_EQ(slurp(folder / "exported/model.safetensors"), slurp(folder / "run/model.safetensors"));
  const Outcome shown = trainer("inspect " + (folder / "run/checkpoint-3") + " --verify");
  expect_success(shown);
  EXPECT_NE(shown.out.find("exp_avg_scale/"), std::string::npos) << shown.out;
}

}  // namespace
}  // namespace octet::test::storage_test
