// Suggested changes for a run that does not fit, with the resulting memory per rank, in plans and in errors
// of runs.
#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::ladder_test {
namespace {

Json plan_of(const std::string& arguments, int code) {
  const Outcome run = trainer("plan --json " + arguments);
  EXPECT_EQ(run.code, code) << run.both();
  return parse_json(run.out, "standard output");
}

const std::string kGpuRun =
    "llama-3.1-8b device=cuda cutoff_len=4096 bf16=true param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32 "
    "per_device_train_batch_size=6 gradient_accumulation_steps=4 ";

// The order of a guide for one GPU of 96 GB. Moving state to the host frees device memory.
TEST(Ladder, MovesTheStateOfAGpuToItsHostBeforeMicroBatchesOfOneSample) {
  const std::string run = kGpuRun + "memory=96GB ";
  const Json ladder = plan_of(run, 1)["ladder"];
  ASSERT_EQ(ladder.size(), 3u);
  EXPECT_EQ(ladder[0]["keys"], "per_device_train_batch_size=3 gradient_accumulation_steps=8");
  EXPECT_EQ(ladder[1]["keys"], "cutoff_len=2048");
  EXPECT_EQ(ladder[2]["keys"], "optim_state_cpu_offload=true");
  EXPECT_TRUE(ladder[2]["fits"].get<bool>());
  const auto moved = ladder[2]["moved_to_host_bytes"].get<std::int64_t>();
  EXPECT_NEAR(static_cast<double>(moved), 12 * 8.03e9, 1e8);
  const Json with = plan_of(
      run + ladder[0]["keys"].get<std::string>() + " cutoff_len=2048 optim_state_cpu_offload=true", 0);
  EXPECT_EQ(with["total_bytes"], ladder[2]["total_bytes"]);
  // All moved bytes leave the device, except the pieces that an update stages there.
  EXPECT_EQ(ladder[1]["total_bytes"].get<std::int64_t>() - ladder[2]["total_bytes"].get<std::int64_t>() +
                with["memory"]["state under way"].get<std::int64_t>(),
            moved);
  std::int64_t pinned = 0;
  for (const char* name : {"parameters/master", "optimizer/exp_avg", "optimizer/exp_avg_sq"})
    pinned += with["pinned_memory"][name].get<std::int64_t>();
  EXPECT_EQ(pinned, moved);
  EXPECT_NEAR(with["time"]["optimizer's state, over PCIe"].get<double>(), static_cast<double>(moved) / 55e9,
              1e-3);
  const Outcome words = trainer("plan " + run + "world=8");
  EXPECT_NE(words.out.find("; 89.74 GiB are moved to host memory, 717.95 GiB for all ranks of a host\n"),
            std::string::npos)
      << words.out;
  const Outcome on = trainer("plan " + run + "world=8 optim_state_cpu_offload=true");
  for (const char* piece :
       {"the optimizer's in the host's memory", "the optimizer's state               89.74 GiB",
        "of all 8 ranks of a host", "55 GB/s each way, as measured over PCIe 5.0"}) {
    EXPECT_NE(on.out.find(piece), std::string::npos) << piece << "\n" << on.out;
  }
}

// Each suggestion equals a plan with the keys of all suggestions up to it.
TEST(Ladder, ItsFiguresAreThoseOfPlansWithItsKeys) {
  const std::string run = kGpuRun + "optim_state_cpu_offload=true memory=40GB ";
  const Json ladder = plan_of(run, 1)["ladder"];
  std::vector<std::string> keys;
  for (const Json& rung : ladder) keys.push_back(rung["keys"]);
  const std::vector<std::string> order{"per_device_train_batch_size=3 gradient_accumulation_steps=8",
                                       "cutoff_len=2048",
                                       "per_device_train_batch_size=1 gradient_accumulation_steps=24",
                                       "recompute=full", "zero_stage=3 on 2 ranks"};
  EXPECT_EQ(keys, order);
  std::string with = run;
  double before = 1e30;
  for (std::size_t i = 0; i < ladder.size(); ++i) {
    with += (i + 1 < ladder.size() ? keys.at(i) : "zero_stage=3 world=2") + " ";
    const Json plan = plan_of(with, ladder[i]["fits"].get<bool>() ? 0 : 1);
    EXPECT_EQ(plan["total_bytes"], ladder[i]["total_bytes"]) << keys.at(i);
    EXPECT_LT(plan["total_bytes"].get<double>(), before) << keys.at(i);
    before = plan["total_bytes"].get<double>();
    EXPECT_EQ(ladder[i]["fits"].get<bool>(), i + 1 == ladder.size()) << "it ends where it fits";
  }
  const Outcome words = trainer("plan " + run);
  EXPECT_NE(words.out.find("what to change, one after another (each line includes the lines above)\n"
                           "  per_device_train_batch_size=3 gradient_accumulation_steps=8: "),
            std::string::npos)
      << words.out;
  EXPECT_NE(words.out.find("GiB per rank, which fits\n"), std::string::npos) << words.out;
}

TEST(Ladder, LeavesOutWhatIsSaidAlreadyAndStopsWhereItFits) {
  const auto keys_of = [](const std::string& words) {
    std::string all;
    const Json plan = plan_of(words, 1);
    for (const Json& rung : plan["ladder"]) all += rung["keys"].get<std::string>() + "; ";
    return all;
  };
  const std::string small =
      "tiny device=cpu cutoff_len=512 param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32 recompute=full "
      "zero_stage=3 world=2 per_device_train_batch_size=";
  EXPECT_EQ(keys_of(small + "1 memory=1MiB").find("cutoff_len=256; zero_stage=3 on "), 0u);
  EXPECT_EQ(
      keys_of(small + "7 memory=1MiB").find("per_device_train_batch_size=1 gradient_accumulation_steps=7"),
      0u)
      << "a step keeps its samples";
  EXPECT_EQ(keys_of(small + "4 global_batch_size=16 memory=1MiB").find("per_device_train_batch_size=2; "),
            0u);
  const auto bytes =
      plan_of(small + "4 per_device_train_batch_size=2 memory=100GB", 0)["total_bytes"].get<std::int64_t>();
  EXPECT_EQ(keys_of(small + "4 memory=" + std::to_string(bytes)),
            "per_device_train_batch_size=2 gradient_accumulation_steps=2; ");
  EXPECT_TRUE(plan_of(small + "4 memory=100GB", 0)["ladder"].empty());
}

// The list has only keys that a run may change. It has no size that is found automatically, and no evaluation
// batch wider than a step.
TEST(Ladder, FollowsWhatTheConfigurationLeavesOpen) {
  const auto ladder_of = [](const std::string& words) {
    std::vector<std::string> keys;
    const Json plan = plan_of("tiny device=cpu param_dtype=fp32 memory=1MiB " + words, 1);
    for (const Json& rung : plan["ladder"]) keys.push_back(rung["keys"]);
    return keys;
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(ladder_of("global_batch_size=16 per_device_train_batch_size=4 per_device_eval_batch_size=4 "
                      "val_size=0.1 cutoff_len=512"),
            (Keys{"per_device_train_batch_size=2 per_device_eval_batch_size=2", "cutoff_len=256",
                  "per_device_train_batch_size=1 per_device_eval_batch_size=1", "recompute=full"}));
  EXPECT_EQ(ladder_of("per_device_train_batch_size=2 per_device_eval_batch_size=1 cutoff_len=511"),
            (Keys{"per_device_train_batch_size=1 gradient_accumulation_steps=2", "recompute=full"}));
  EXPECT_EQ(ladder_of("world=4 zero_stage=1 per_device_train_batch_size=1 cutoff_len=256"),
            (Keys{"recompute=full", "zero_stage=3", "zero_stage=3 on 32 ranks"}))
      << "with more ranks, the buffers of messages grow by more than the shards shrink";
  EXPECT_EQ(ladder_of("world=2 zero_stage=3 per_device_train_batch_size=1 cutoff_len=256 recompute=full"),
            (Keys{"zero_stage=3 on 32 ranks"}));
  const Outcome own_size = trainer(
      "plan tiny device=cpu param_dtype=fp32 memory=1MiB auto_find_batch_size=true global_batch_size=8 "
      "cutoff_len=512");
  EXPECT_NE(own_size.err.find("and keep the earlier changes:\n            cutoff_len=256: "),
            std::string::npos)
      << own_size.err;
}

// Sizes are left open, and none fits.
TEST(Ladder, ARunThatCannotFitTellsIt) {
  const TemporaryFolder folder("ladder");
  const Outcome run =
      shell("OMP_NUM_THREADS=2 OCTETRUN_MEMORY_LIMIT=1 " OCTET_TRAINER " " +  // each thread has scratch
            Task::get().train(folder / "run", "device=cpu recompute=auto"));
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.both();
  for (const char* piece : {"the run does not fit the memory of its device",
                            "change one after another, and keep the earlier changes:",
                            "            per_device_train_batch_size=2: ", " per rank, which fits"}) {
    EXPECT_NE(run.err.find(piece), std::string::npos) << piece << "\n" << run.err;
  }
  const Outcome plan = trainer("plan tiny device=cpu cutoff_len=512 recompute=auto memory=1MiB");
  EXPECT_EQ(plan.code, 64);
  EXPECT_NE(plan.err.find("change one after another, and keep the earlier changes:"), std::string::npos)
      << plan.err;
}

// With nothing left open, only the allocation can fail. Here the limit is that of the process.
TEST(WholeLadder, ADeviceThatHasNoMemoryLeftTellsItToo) {
  const TemporaryFolder folder("memory");
  for (const int np : {1, 2}) {
    const std::string launch =
        np == 1 ? "" : OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " ";
    const Outcome run = shell("ulimit -v 2000000; " + launch + OCTET_TRAINER " " +
                              Task::get().train(folder / "run",
                                                "device=cpu cutoff_len=65536 packing=true param_dtype=fp32 "
                                                "grad_dtype=fp32 optim_dtype=fp32 global_batch_size=512 "
                                                "per_device_train_batch_size=256"));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    for (const char* piece : {"not enough memory", "change one after another, and keep the earlier changes:",
                              "            per_device_train_batch_size=128: "}) {
      EXPECT_NE(run.err.find(piece), std::string::npos) << piece << "\n" << run.err;
    }
  }
}

}  // namespace
}  // namespace octet::test::ladder_test
