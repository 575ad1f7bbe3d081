// What a run will hold, before it starts: the figures of the run itself.
#include "cli/task.h"

namespace octet::test {
namespace {

Json plan_of(const std::string& arguments, int code = 0) {
  const Outcome run = trainer("plan --json " + arguments);
  EXPECT_EQ(run.code, code) << run.both();
  return parse_json(run.out, "standard output");
}

TEST(PlanCommand, PlansLlamaForOneGpuOnAMachineWithoutOne) {
  const std::string common =
      "llama-3.1-8b device=cuda cutoff_len=4096 per_device_train_batch_size=6 fp8=true ";
  const Json small = plan_of(common + "memory=141GB fp8_transposed_weights=keep", 1);
  EXPECT_EQ(small["fits"], false) << "fp32 masters, moments and gradients are 16 bytes a parameter";
  const double parameters = 8.03e9;
  EXPECT_NEAR(small["memory"]["parameters/master"].get<double>() / (4 * parameters), 1, 0.01);
  EXPECT_GT(small["memory"]["parameters/transposed"].get<double>(), 6.9e9);
  const Json eight = plan_of(common + "memory=141GB world=8 zero_stage=3 global_batch_size=48");
  EXPECT_EQ(eight["fits"], true);
  EXPECT_NEAR(eight["memory"]["parameters/master"].get<double>() / (4 * parameters / 8), 1, 0.01);
  EXPECT_EQ(eight["accumulation"], 1);
  EXPECT_GT(eight["tokens_per_second_at_most"].get<double>(), 8 * 15000.0);
  EXPECT_EQ(eight["fitting"].size(), 1u) << "six samples are all that a rank has";
  // Advice goes from the cheapest level to the one with the largest micro-batch.
  const Json open = plan_of(common + "memory=141GB world=8 zero_stage=3");
  EXPECT_GE(open["fitting"].size(), 3u);
  double before = 0;
  for (const Json& row : open["fitting"]) {
    EXPECT_GT(row["micro_batch"].get<double>(), before);
    before = row["micro_batch"].get<double>();
  }
}

// An 80 GB card, of which the driver and libraries take a part: what fits is found, and said.
TEST(PlanCommand, FindsHowEightBillionParametersAreTunedIn75Gigabytes) {
  const std::string common = "llama-3.1-8b device=cuda cutoff_len=4096 fp8=true memory=75GB ";
  const Json full = plan_of(common + "per_device_train_batch_size=6", 1);
  EXPECT_EQ(full["fits"], false);
  EXPECT_TRUE(full["fitting"].empty()) << "fp32 masters, gradients and moments alone are 128 GB";
  ASSERT_EQ(full["alternatives"].size(), 1u);
  const Json& found = full["alternatives"][0];
  EXPECT_EQ(found["keys"], "param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8");
  // What it names is what fits, and one more is too much.
  const auto with = [&](std::int64_t micro) {
    return common + found["keys"].get<std::string>() + " recompute=" + found["recompute"].get<std::string>() +
           " fp8_transposed_weights=" + found["fp8_transposed_weights"].get<std::string>() +
           " per_device_train_batch_size=" + std::to_string(micro);
  };
  const auto micro = found["micro_batch"].get<std::int64_t>();
  EXPECT_GE(micro, 1);
  const Json fits = plan_of(with(micro));
  EXPECT_EQ(fits["fits"], true);
  EXPECT_LE(fits["total_bytes"].get<double>(), 75e9);
  EXPECT_EQ(plan_of(with(micro + 1), 1)["fits"], false);
  const Outcome text = trainer("plan " + common + "per_device_train_batch_size=6");
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.out.find("param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8 per_device_train_batch_size="),
            std::string::npos)
      << text.out;
}

TEST(PlanCommand, TransposedWeightsMadeAtUseSpareThemInAllBlocksButOne) {
  const std::string common =
      "llama-3.1-8b device=cuda cutoff_len=4096 per_device_train_batch_size=1 fp8=true "
      "pure_bf16=true fp8_transposed_weights=";
  const Json kept = plan_of(common + "keep memory=141GB"), at_use = plan_of(common + "at_use memory=141GB");
  const auto bytes = [](const Json& plan) { return plan["memory"]["parameters/transposed"].get<double>(); };
  EXPECT_EQ(bytes(kept), 32 * bytes(at_use));
  EXPECT_EQ(kept["total_bytes"].get<double>() - at_use["total_bytes"].get<double>(),
            bytes(kept) - bytes(at_use));
  // auto keeps them where they fit, and makes them at use where only that fits.
  EXPECT_EQ(plan_of(common + "auto memory=141GB")["fp8_transposed_weights"], "keep");
  const auto less = static_cast<long long>(kept["total_bytes"].get<double>()) - 1;
  const Json tight = plan_of(common + "auto memory=" + std::to_string(less));
  EXPECT_EQ(tight["fp8_transposed_weights"], "at_use");
  EXPECT_EQ(tight["recompute"], "none") << "which nobody left to the plan";
}

TEST(PlanCommand, AShapeIsInBf16UnlessItIsToldOtherwise) {
  const auto bytes = [](const std::string& words) {
    const Json plan = plan_of("tiny cutoff_len=64 device=cpu " + words);
    return plan["memory"]["activations/qkv"].get<double>();
  };
  const double bf16 = bytes("");
  EXPECT_EQ(bytes("bf16=false"), 2 * bf16);
  EXPECT_EQ(bytes("--bf16=false"), 2 * bf16);
  EXPECT_EQ(bytes("--bf16 false"), 2 * bf16);
  EXPECT_EQ(bytes("pure_bf16=true"), bf16);
  EXPECT_EQ(bytes("param_dtype=bf16 grad_dtype=bf16"), bf16) << "which are allowed with bf16 alone";
  const Outcome bench = trainer("bench tiny cutoff_len=64 device=cpu param_dtype=bf16 steps=1 warmup=0");
  EXPECT_EQ(bench.code, 0) << bench.both();
}

TEST(PlanCommand, IsWhatTheRunReserves) {
  const std::string arguments = "tiny cutoff_len=64 per_device_train_batch_size=2 device=cpu fp8=true ";
  for (const std::string stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(stage);
    const Json planned = plan_of(arguments + "world=2 zero_stage=" + stage);
    const Outcome run = trainer("bench --json steps=1 warmup=0 " + arguments + "zero_stage=" + stage, 2);
    ASSERT_EQ(run.code, 0) << run.both();
    double sum = 0;
    for (const auto& [name, bytes] : planned["memory"].items()) sum += bytes.get<double>();
    EXPECT_EQ(sum, parse_json(run.out, "bench")["reserved_bytes"].get<double>());
  }
}

TEST(PlanCommand, AutoTakesTheCheapestLevelThatFits) {
  const std::string arguments = "tiny cutoff_len=512 per_device_train_batch_size=8 device=cpu recompute=";
  double before = 1e18;
  for (const std::string level : {"none", "norms", "qkv", "full"}) {
    const double bytes = plan_of(arguments + level)["total_bytes"].get<double>();
    EXPECT_LT(bytes, before);
    before = bytes;
    const Json chosen = plan_of(arguments + "auto memory=" + std::to_string(static_cast<long long>(bytes)));
    EXPECT_EQ(chosen["recompute"], level);
  }
  const Outcome none = trainer("plan " + arguments + "auto memory=1MiB");
  EXPECT_EQ(none.code, 64);
  EXPECT_NE(none.err.find("does not fit"), std::string::npos) << none.err;
}

TEST(PlanCommand, ReadsAConfigurationAndSaysWhatItFinds) {
  const Outcome run =
      trainer("plan " + Task::get().config() + " world=2 device=cuda fp8=true bf16=true memory=80GB");
  EXPECT_EQ(run.code, 0) << run.both();
  for (const char* word : {"memory of a rank", "parameters/master", "fits, free are", "floor",
                           "FP8 does not pay", "largest micro-batch that fits", "recompute=none"}) {
    EXPECT_NE(run.out.find(word), std::string::npos) << word << "\n" << run.out;
  }
  EXPECT_EQ(trainer("plan " + Task::get().config() + " memory=much").code, 64);
}

TEST(AutomaticSizes, ARunChoosesItsMicroBatchAndTrainsAsWithIt) {
  const TemporaryFolder folder("auto");
  const Task& task = Task::get();
  const Outcome chosen =
      trainer(task.train(folder / "auto", "auto_find_batch_size=true recompute=auto max_steps=3"), 2);
  expect_success(chosen);
  EXPECT_NE(chosen.err.find("per_device_train_batch_size=12 recompute=none"), std::string::npos)
      << chosen.err;
  expect_success(trainer(task.train(folder / "fixed", "per_device_train_batch_size=12 max_steps=3"), 2));
  expect_same_losses(folder / "auto", folder / "fixed", 0);
  const Outcome refused =
      trainer(task.train(folder / "wrong", "auto_find_batch_size=true global_batch_size=null"));
  EXPECT_EQ(refused.code, 64);
  EXPECT_NE(refused.err.find("needs global_batch_size"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace octet::test
