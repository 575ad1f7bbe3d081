// `trainer plan`: the predicted memory of a run equals the memory of the run itself.
#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::plan_test {
namespace {

Json plan_of(const std::string& arguments, int code = 0) {
  const Outcome run = trainer("plan --json " + arguments);
  EXPECT_EQ(run.code, code) << run.both();
  return parse_json(run.out, "standard output");
}

TEST(PlanCommand, PlansLlamaForOneGpuOnAMachineWithoutOne) {
  const std::string common =
      "llama-3.1-8b device=cuda cutoff_len=4096 per_device_train_batch_size=6 fp8=true ";
  const Json small = plan_of(
      common + "memory=141GB fp8_transposed_weights=keep param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32",
      1);
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
  // Advice is ordered from the cheapest level to the level with the largest micro-batch.
  const Json open = plan_of(common + "memory=141GB world=8 zero_stage=3");
  EXPECT_GE(open["fitting"].size(), 3u);
  double before = 0;
  for (const Json& row : open["fitting"]) {
    EXPECT_GT(row["micro_batch"].get<double>(), before);
    before = row["micro_batch"].get<double>();
  }
}

TEST(PlanCommand, EvaluationTakesNoMoreThanTrainingUnlessItIsAskedTo) {
  const std::string model = "tiny device=cpu cutoff_len=64 per_device_train_batch_size=2 ";
  const auto bytes = [&](const std::string& more) { return plan_of(model + more)["total_bytes"]; };
  EXPECT_EQ(bytes("val_size=0.1"),
            plan_of("tiny device=cpu cutoff_len=64 per_device_train_batch_size=2")["total_bytes"]);
  EXPECT_GT(bytes("val_size=0.1 per_device_eval_batch_size=8"), bytes("val_size=0.1"));
  EXPECT_EQ(bytes("val_size=0.1 per_device_eval_batch_size=1"), bytes("val_size=0.1"));
}

// An 80 GB card with some memory taken by driver and libraries: the plan finds and prints a configuration
// that fits.
TEST(WholePlanCommand, FindsHowEightBillionParametersAreTunedIn75Gigabytes) {
  const std::string model = "llama-3.1-8b device=cuda cutoff_len=4096 fp8=true memory=75GB ";
  const std::string wide = " param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32";
  const Json full = plan_of(model + "per_device_train_batch_size=6" + wide, 1);
  EXPECT_EQ(full["fits"], false);
  EXPECT_TRUE(full["fitting"].empty()) << "fp32 masters, gradients and moments alone are 128 GB";
  ASSERT_EQ(full["alternatives"].size(), 3u);
  const Json& found = full["alternatives"][0];
  EXPECT_EQ(found["keys"], "param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8");
  // The suggested micro-batch fits, and one more sample does not.
  const auto with = [&](std::int64_t micro) {
    return model + found["keys"].get<std::string>() + " recompute=" + found["recompute"].get<std::string>() +
           " fp8_transposed_weights=" + found["fp8_transposed_weights"].get<std::string>() +
           " per_device_train_batch_size=" + std::to_string(micro);
  };
  const auto micro = found["micro_batch"].get<std::int64_t>();
  EXPECT_GE(micro, 1);
  const Json fits = plan_of(with(micro));
  EXPECT_EQ(fits["fits"], true);
  EXPECT_LE(fits["total_bytes"].get<double>(), 75e9);
  EXPECT_EQ(plan_of(with(micro + 1), 1)["fits"], false);
  const Outcome text = trainer("plan " + model + "per_device_train_batch_size=6" + wide);
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.out.find("param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8 per_device_train_batch_size="),
            std::string::npos)
      << text.out;
}

// Without a setting, states are stored as wide as the device allows: in fp32 on a large one, otherwise in 16
// bits, otherwise with moments in 8 bits.
TEST(WholePlanCommand, StoresStatesAsWideAsTheyFit) {
  const std::string run =
      "llama-3.1-8b device=cuda cutoff_len=1024 recompute=full per_device_train_batch_size=1 ";
  const auto stored = [&](const std::string& words) {
    const Json plan = plan_of(run + words);
    EXPECT_EQ(plan["fits"], true) << words;
    return plan["param_dtype"].get<std::string>() + " " + plan["grad_dtype"].get<std::string>() + " " +
           plan["optim_dtype"].get<std::string>();
  };
  EXPECT_EQ(stored("memory=192GB"), "fp32 fp32 fp32");
  EXPECT_EQ(stored("memory=141GB"), "bf16 bf16 bf16");
  EXPECT_EQ(stored("memory=60GB"), "bf16 bf16 int8");
  EXPECT_EQ(stored("memory=141GB world=8 zero_stage=1"), "fp32 fp32 fp32");
  EXPECT_EQ(stored("memory=80GB grad_dtype=fp32"), "bf16 fp32 int8") << "what is set stays";
  EXPECT_EQ(stored("memory=141GB bf16=false fp8=false optim_dtype=int8"), "fp32 fp32 int8");
}

// Frozen weights have no master weights, moments and gradients. This changes the bytes, the work and the
// advice.
TEST(WholePlanCommand, AdviceNamesAdaptersWithTheirGigabytes) {
  const std::string common =
      "llama-3.1-8b device=cuda cutoff_len=2048 per_device_train_batch_size=1 memory=40GB ";
  const Json full = plan_of(common, 1);
  EXPECT_EQ(full["trained_parameters"], full["parameters"]);
  EXPECT_EQ(full["parameters"], 8030261248);
  ASSERT_EQ(full["alternatives"].size(), 2u) << "moments of 8 billion parameters fit in no format";
  const Json& found = full["alternatives"][0];
  EXPECT_EQ(found["keys"], "finetuning_type=lora");
  const Json lora =
      plan_of(common + "finetuning_type=lora recompute=" + found["recompute"].get<std::string>() +
              " per_device_train_batch_size=" + found["micro_batch"].dump());
  EXPECT_EQ(lora["fits"], true);
  EXPECT_EQ(lora["total_bytes"], found["total_bytes"]);
  const Json& quantised = full["alternatives"][1];
  EXPECT_EQ(quantised["keys"], "finetuning_type=lora quantization_bit=4");
  EXPECT_GT(quantised["micro_batch"], found["micro_batch"]) << "the base is a quarter as large";
  // Rank 8: 8 (in + out) for each of 7 modules in 32 blocks.
  const std::int64_t trained = 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336));
  EXPECT_EQ(lora["trained_parameters"], trained);
  EXPECT_EQ(lora["parameters"], 8030261248 + trained);
  EXPECT_TRUE(plan_of("llama-3.1-8b device=cuda cutoff_len=2048 train_from_scratch=true memory=40GB",
                      1)["alternatives"]
                  .empty())
      << "random weights are no base";
  const Outcome text = trainer("plan " + common);
  const std::string gib = human_bytes(found["total_bytes"].get<double>());
  EXPECT_NE(text.out.find("fits with finetuning_type=lora per_device_train_batch_size="), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find(": " + gib), std::string::npos) << gib << " in " << text.out;
  const Outcome share = trainer("plan " + common + "finetuning_type=lora");
  EXPECT_NE(share.out.find("of which 20,971,520 (0.26 %) are trained"), std::string::npos) << share.out;
}

// 4 operations for a frozen weight and 6 for a trained one, so the time bound of an equal shape falls.
TEST(PlanCommand, AFrozenWeightIsTwoThirdsOfTheWork) {
  const auto rate = [](const std::string& words) {
    return plan_of("llama-3.1-8b device=cuda cutoff_len=2048 per_device_train_batch_size=2 memory=200GB " +
                   words)["tokens_per_second_at_most"]
        .get<double>();
  };
  EXPECT_GT(rate("finetuning_type=lora"), 1.2 * rate("pure_bf16=true"));
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
  // auto keeps them if they fit, and otherwise transposes at use.
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

TEST(WholePlanCommand, CountsWhatSeveralGpusNeedOnce) {
  const std::string common = "llama-3.2-1b device=cuda cutoff_len=1024 memory=141GB ";
  const auto checked = [&](const std::string& words) {
    const Json plan = plan_of(common + words);
    double sum = 0;
    for (const auto& [name, bytes] : plan["memory"].items()) {
      EXPECT_FALSE(name.starts_with("communication")) << "counted beside them: " << name;
      sum += bytes.get<double>();
    }
    for (const char* name : {"messages_bytes", "nccl_bytes", "library_bytes"})
      sum += plan[name].get<double>();
    EXPECT_EQ(plan["total_bytes"].get<double>(), sum);
    return plan;
  };
  constexpr int mib = 1 << 20;
  EXPECT_EQ(checked("world=1")["messages_bytes"], 0);
  EXPECT_EQ(checked("world=1 gpu_transport=nccl")["nccl_bytes"], 0);
  for (const int world : {2, 3, 4, 8}) {
    const std::string words = "world=" + std::to_string(world) + " zero_stage=" + std::to_string(world % 4);
    const Json plan = checked(words);
    // Two sets of buffers for direct sums, which hold values and marks: a megabyte divided by the other
    // ranks, for each rank.
    const double direct_sums = 4.0 * world / (world - 1);
    EXPECT_NEAR(plan["messages_bytes"].get<double>() / 0x1p20, 200 + direct_sums, 1) << world;
    EXPECT_EQ(plan["nccl_bytes"], 0) << "GPUs of a host copy";
    EXPECT_EQ(checked(words + " gpu_transport=host")["total_bytes"], plan["total_bytes"])
        << "pinned memory is the host's";
    EXPECT_EQ(checked(words + " gpu_transport=nccl")["nccl_bytes"], 1600 * mib);
    EXPECT_EQ(checked(words + " gpu_sums=nccl deterministic=false")["nccl_bytes"], 1312 * mib);
  }
  EXPECT_EQ(checked("world=4 ranks_per_node=2")["nccl_bytes"], 1600 * mib);
  EXPECT_EQ(checked("world=4 ranks_per_node=2 gpu_transport=peer")["nccl_bytes"], 1600 * mib);
  EXPECT_EQ(checked("world=4 ranks_per_node=2 gpu_transport=host")["nccl_bytes"], 0);
  EXPECT_EQ(plan_of("tiny device=cpu world=2 gpu_transport=nccl cutoff_len=64")["nccl_bytes"], 0);
}

TEST(WholePlanCommand, SetsMessagesInsideAHostBesideWhatIsComputed) {
  const std::string common =
      "llama-3.1-8b device=cuda cutoff_len=4096 per_device_train_batch_size=2 "
      "recompute=full fp8=true memory=1TB gradient_accumulation_steps=4 ";
  const auto seconds = [&](const std::string& words) {
    return plan_of(common + words)["message_seconds"].get<double>();
  };
  EXPECT_EQ(seconds("world=1"), 0);
  // Each of two ranks sends half of its fp32 gradients once, and half of the sums are sent back.
  EXPECT_NEAR(seconds("world=2"), 8.03e9 * 4 / 370e9, 0.01 * 0.087);
  const Json one = plan_of(common + "world=2 zero_stage=1");
  const Json by_stage = one["message_seconds_by_link"]["NVLink"];
  ASSERT_EQ(by_stage.size(), 4u);
  EXPECT_EQ(one["message_seconds"], by_stage[1]);
  EXPECT_EQ(plan_of(common + "world=2 zero_stage=3")["message_seconds_by_link"]["NVLink"], by_stage);
  EXPECT_LT(by_stage[1].get<double>(), by_stage[0].get<double>()) << "FP8 weights come back, not sums";
  EXPECT_GT(by_stage[2].get<double>(), 3 * by_stage[1].get<double>()) << "each of four micro-batches";
  EXPECT_GT(by_stage[3].get<double>(), by_stage[2].get<double>());
  EXPECT_EQ(seconds("world=4 ranks_per_node=2"), 0) << "nothing is known of the network";
  // The bound is the larger of compute and message time, because at best one hides the other.
  EXPECT_EQ(one["floor_seconds"].get<double>() > one["message_seconds"].get<double>(), true);
  const Json short_step = plan_of("llama-3.1-8b device=cuda cutoff_len=64 world=8 zero_stage=1 memory=1TB");
  EXPECT_EQ(short_step["floor_seconds"], short_step["message_seconds"]);
  const Outcome text = trainer("plan llama-3.1-8b device=cuda cutoff_len=64 world=8 zero_stage=1 memory=1TB");
  EXPECT_EQ(text.code, 0) << text.both();
  for (const char* word : {"message buffers", "messages per rank and step", "ms over NVLink", "ms over PCIe",
                           "zero_stage", "take longer than computation"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  EXPECT_EQ(text.out.find("NCCL"), std::string::npos) << text.out;
}

// Ranks on the CPUs of a host share its memory. Other hosts have their own memory.
TEST(PlanCommand, MemoryOfAHostIsSharedByItsOwnRanks) {
  const auto bytes = [](const std::string& world) {
    return plan_of("tiny device=cpu cutoff_len=64 world=" + world)["device_bytes"].get<double>();
  };
  const double of_eight = bytes("8");
  EXPECT_EQ(bytes("16"), of_eight);
  EXPECT_NEAR(bytes("1") / of_eight, 8, 1e-6);
}

// 16 ranks on two hosts: of each rank's 15 slices of fp32 gradients, 8 cross between the hosts.
TEST(WholePlanCommand, SaysWhatEachLinkTakesAtEachStage) {
  const std::string common =
      "llama-3.1-8b device=cuda cutoff_len=4096 recompute=full memory=1TB zero_stage=1 "
      "hierarchical_comm=false deterministic=false ";
  const Json two = plan_of(common + "world=16");
  const Json& stages = two["messages_by_stage"];
  ASSERT_EQ(stages.size(), 4u);
  // fp32 gradients and bf16 parameters: a 16th of each is sent to every other rank.
  const double parameters = 8.03e9, all = parameters * (4 + 2) * 15 / 16, between = all * 8 / 15;
  EXPECT_NEAR(stages[1]["bytes_sent"].get<double>() / all, 1, 0.01);
  EXPECT_NEAR(stages[1]["bytes_between_hosts"].get<double>() / between, 1, 0.01);
  const Json& links = two["message_seconds_by_link"];
  const auto seconds = [&](const char* link) { return links[link][1].get<double>(); };
  EXPECT_NEAR(seconds("NVLink"), (all - between) / 370e9, 0.01 * seconds("NVLink"));
  EXPECT_NEAR(seconds("PCIe"), (all - between) / 55e9, 0.01 * seconds("PCIe"));
  for (const auto& [name, gigabits] : std::vector<std::pair<const char*, double>>{{"3200 Gbit/s", 3200},
                                                                                  {"400 Gbit/s", 400},
                                                                                  {"100 Gbit/s", 100},
                                                                                  {"10 Gbit/s", 10},
                                                                                  {"1 Gbit/s", 1}}) {
    EXPECT_NEAR(seconds(name), 8 * between * 8 / (gigabits * 1e9), 0.01 * seconds(name)) << name;
  }
  const Json one = plan_of(common + "world=8");
  EXPECT_EQ(one["messages_by_stage"][1]["bytes_between_hosts"], 0);
  EXPECT_EQ(one["message_seconds_by_link"]["1 Gbit/s"][1], 0);
  const Outcome text = trainer("plan " + common + "world=16");
  for (const char* word :
       {"16 x GPU on 2 hosts of up to 8", "MiB to ranks of its host", "MiB to ranks of other hosts",
        "ms over 400 Gbit/s per host", "ms over 1 Gbit/s per host"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
}

// A run also counts the sums at the end of a step, which are some kilobytes.
TEST(PlanCommand, CountsTheBytesThatARunSends) {
  const std::string arguments =
      "tiny cutoff_len=64 per_device_train_batch_size=2 device=cpu gradient_accumulation_steps=2 "
      "overlap_comm=false ";  // overlap moves messages of one step into the next if a core is free
  for (const std::string stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(stage);
    const Json planned = plan_of(arguments + "world=2 zero_stage=" + stage);
    const Outcome run = trainer("bench --json steps=2 warmup=1 " + arguments + "zero_stage=" + stage, 2);
    ASSERT_EQ(run.code, 0) << run.both();
    const double sent = parse_json(run.out, "bench")["comm_bytes"].get<double>();
    const double expected = planned["messages_by_stage"][std::stoul(stage)]["bytes_sent"].get<double>();
    EXPECT_GE(sent, expected);
    EXPECT_NEAR(sent / expected, 1, 0.002);
  }
}

TEST(PlanCommand, IsWhatTheRunReserves) {
  // A benchmark does not save.
  const std::string arguments =
      "tiny cutoff_len=64 per_device_train_batch_size=2 device=cpu fp8=true save_strategy=no ";
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
  const std::string arguments =
      "tiny cutoff_len=512 per_device_train_batch_size=8 device=cpu save_async=false recompute=";
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
  for (const char* word : {"memory per rank", "parameters/master", "fits, free are", "least time per step",
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

/// Returns a plan of `trainer generate`.
Json generation_of(const std::string& arguments, int code = 0) {
  return plan_of("--generate device=cuda memory=141GB llama-3.1-8b " + arguments, code);
}

// 8,030,261,248 parameters; embedding and head have 525,336,576 each.
TEST(Plan, OfAGenerationCountsWeightsAndCache) {
  constexpr double kAll = 8'030'261'248.0, kTable = 525'336'576.0, kBlocks = kAll - 2 * kTable;
  for (const auto& [dtype, whole, block] :
       {std::tuple{"fp32", 4.0, 4.0}, {"bf16", 2.0, 2.0}, {"fp8", 2.0, 1.0}}) {
    const Json plan = generation_of("batch=16 max_length=4096 dtype=" + std::string(dtype));
    EXPECT_NEAR(plan["weight_bytes"].get<double>(), whole * 2 * kTable + block * kBlocks, 2e-3 * kAll);
    EXPECT_NEAR(plan["step_weight_bytes"].get<double>(), whole * kTable + block * kBlocks, 2e-3 * kAll);
    // 32 layers with keys and values of 8 heads of dimension 128.
    const double token = 32 * 2 * 8 * 128 * (dtype == std::string("fp32") ? 4.0 : 2.0);
    EXPECT_NEAR(plan["cache_bytes"].get<double>(), 16 * 4096 * token, 64 * 256);
    // After 2,047 tokens, a step attends to 2,048.
    EXPECT_NEAR(plan["step_cache_bytes"].get<double>(), 16 * 2048 * token, 1);
    EXPECT_EQ(plan["dtype"], dtype);
    double rows = 0;
    for (const auto& [name, bytes] : plan["memory"].items()) rows += bytes.get<double>();
    EXPECT_EQ(plan["total_bytes"].get<double>() - rows, 768.0 * (1 << 20)) << "driver and libraries";
  }
  const Json narrow = generation_of("batch=16 max_length=4096 dtype=fp8 kv_cache_dtype=fp8");
  EXPECT_NEAR(narrow["cache_bytes"].get<double>(), 16.0 * 4096 * 32 * 2 * 8 * 132, 128 * 256);
}

// 30,532,122,624 parameters, with 128 experts of 3 x 2,048 x 768 in each of 48 blocks.
TEST(Plan, OfAGenerationCountsTheExpertsThatAStepReads) {
  constexpr double kAll = 30'532'122'624.0, kTable = 151'936.0 * 2048, kExperts = 48.0 * 128 * 3 * 2048 * 768;
  for (const int batch : {1, 16, 4096}) {
    const Json plan =
        plan_of("--generate device=cuda memory=141GB qwen3-30b-a3b max_length=128 dtype=bf16 batch=" +
                    std::to_string(batch),
                0);
    EXPECT_NEAR(plan["weight_bytes"].get<double>(), 2 * kAll, 1e-4 * kAll);
    const double taken = 1 - std::pow(1 - 8.0 / 128, batch);
    EXPECT_NEAR(plan["step_weight_bytes"].get<double>(), 2 * (kAll - kTable - kExperts * (1 - taken)),
                1e-4 * kAll);
    if (batch != 4096) continue;
    // GEMMs dominate: a token uses eight experts per block.
    for (const Json& row : plan["batches"]) {
      if (row["batch"] != batch) continue;
      const double flops = 2 * (kAll - kTable - kExperts * 120 / 128) * batch;
      const double bytes = plan["step_weight_bytes"].get<double>() + plan["step_cache_bytes"].get<double>();
      EXPECT_NEAR(row["floor_seconds"].get<double>(), std::max(flops / 750e12, bytes / 4.2e12), 1e-5);
    }
  }
}

// In FP8, experts and attention take a byte per value and a scale per output. Tables and the router stay in
// bf16.
TEST(WholePlan, OfAGenerationInFp8CountsTheExpertsThatAStepReads) {
  constexpr double kAll = 30'532'122'624.0, kTable = 151'936.0 * 2048, kExperts = 48.0 * 128 * 3 * 2048 * 768;
  constexpr double kAttention = 48.0 * 2048 * (5120 + 4096);
  constexpr double kExpertScales = 48.0 * 128 * 4 * (1536 + 2048), kScales = 48.0 * 4 * (5120 + 2048);
  for (const int batch : {1, 16}) {
    const Json plan =
        plan_of("--generate device=cuda memory=141GB qwen3-30b-a3b max_length=128 dtype=fp8 batch=" +
                    std::to_string(batch),
                0);
    const double all = 2 * kAll - kExperts - kAttention + kExpertScales + kScales;
    EXPECT_NEAR(plan["weight_bytes"].get<double>(), all, 1e-4 * kAll);
    const double missed = std::pow(1 - 8.0 / 128, batch);
    EXPECT_NEAR(plan["step_weight_bytes"].get<double>(),
                all - 2 * kTable - missed * (kExperts + kExpertScales), 1e-4 * kAll);
  }
}

TEST(Plan, OfAGenerationTellsTheLargestBatchAndTheFloor) {
  const Json plan = generation_of("batch=32 max_length=2048 dtype=bf16");
  const auto largest = plan["largest_batch"].get<std::int64_t>();
  const auto with = [](std::int64_t batch, int code) {
    return generation_of("max_length=2048 dtype=bf16 batch=" + std::to_string(batch), code);
  };
  EXPECT_GT(largest, 300);
  EXPECT_EQ(with(largest, 0)["fits"], true);
  EXPECT_EQ(with(largest + 1, 1)["fits"], false);
  EXPECT_GT(generation_of("dtype=bf16 kv_cache_dtype=fp8")["largest_batch"].get<std::int64_t>(),
            largest * 3 / 2);
  bool asked = false;
  for (const Json& row : plan["batches"]) {
    EXPECT_EQ(row["fits"].get<bool>(), row["batch"].get<std::int64_t>() <= largest);
    if (row["batch"] != 32) continue;
    asked = true;
    const double bytes = plan["step_weight_bytes"].get<double>() + plan["step_cache_bytes"].get<double>();
    EXPECT_NEAR(row["floor_seconds"].get<double>(), bytes / 4.2e12, 1e-9) << "bytes decide";
    EXPECT_NEAR(row["tokens_per_second_at_most"].get<double>() * row["floor_seconds"].get<double>(), 32,
                1e-6);
  }
  EXPECT_TRUE(asked);
  // Many short sequences fit, and their GEMMs take longer than reading the weights.
  const Json many = generation_of("batch=4096 max_length=16 dtype=bf16");
  EXPECT_NEAR(many["batches"].back()["floor_seconds"].get<double>(), 2 * 4096 * 7'504'924'672.0 / 750e12,
              1e-4);
  const Outcome text = trainer("plan --generate llama-3.1-8b device=cuda memory=141GB dtype=fp8");
  EXPECT_EQ(text.code, 0) << text.both();
  for (const char* word : {"--dtype fp8", "keys and values", "tokens/s", "fits"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << text.out;
}

// A page of 64 tokens in bf16, with the keys and values of 32 blocks with 8 heads of dimension 128, takes 8
// MiB.
TEST(Plan, OfAGenerationCountsThePagesOfACacheOfAnySize) {
  const Json all = generation_of("dtype=bf16 batch=16 max_length=1000");
  EXPECT_EQ(all["cache_pages"], 16 * 16) << "1,000 tokens lie in 16 pages";
  EXPECT_EQ(all["cache_bytes"].get<double>(), 256.0 * (8 << 20));
  const Json given = generation_of("dtype=bf16 batch=16 max_length=1000 kv_cache_bytes=1GiB");
  EXPECT_EQ(given["cache_pages"], 128);
  EXPECT_EQ(given["cache_bytes"].get<double>(), 0x1p30);
  EXPECT_EQ(given["total_bytes"].get<double>() - all["total_bytes"].get<double>(), -0x1p30);
  EXPECT_EQ(generation_of("dtype=bf16 batch=16 max_length=1000 kv_page_tokens=16")["cache_pages"], 16 * 63);
  // On a GPU a pass has room for 4,096 tokens.
  const auto bytes = [&](const std::string& tokens) {
    return generation_of("dtype=bf16 batch=16 max_length=1000 max_num_batched_tokens=" +
                         tokens)["total_bytes"]
        .get<double>();
  };
  const auto unset = generation_of("dtype=bf16 batch=16 max_length=1000")["total_bytes"].get<double>();
  EXPECT_EQ(bytes("4096"), unset);
  // Each token takes the MLP's gates and values, its input, and more.
  EXPECT_LT(bytes("512"), unset - 3584.0 * (2 * 14336 + 4096) * 2);
  EXPECT_GT(bytes("8192"), unset);
  // Prompts need room in addition to the answers of a large batch.
  const std::string many = "dtype=bf16 batch=4096 max_length=64";
  EXPECT_EQ(generation_of(many)["total_bytes"],
            generation_of(many + " max_num_batched_tokens=8192")["total_bytes"]);
  EXPECT_GT(generation_of(many)["total_bytes"],
            generation_of(many + " max_num_batched_tokens=4096")["total_bytes"]);
  // The share limits everything that a rank holds, up to a page.
  for (const double share : {0.5, 0.9}) {
    const Json filled =
        generation_of("dtype=bf16 batch=16 max_length=1000 gpu_memory_utilization=" + std::to_string(share));
    const double left = share * 141e9 - filled["total_bytes"].get<double>();
    EXPECT_GE(left, 0);
    EXPECT_LT(left, (8 << 20) + 64 * 256);
  }
  const Outcome text = trainer("plan --generate llama-3.1-8b device=cuda memory=141GB dtype=bf16 batch=16");
  EXPECT_NE(text.out.find("512 pages of 64 tokens"), std::string::npos) << text.out;
}

TEST(Plan, OfAGenerationRefusesWhatItDoesNotRead) {
  const auto refused = [](const std::string& arguments, const std::string& words) {
    const Outcome run = trainer("plan tiny " + arguments);
    EXPECT_EQ(run.code, 64) << arguments << run.both();
    EXPECT_NE(run.err.find(words), std::string::npos) << arguments << run.both();
  };
  refused("dtype=bf16", "give --generate");
  refused("kv_cache_dtype=fp8", "give --generate");
  refused("batch=3", "give --generate");
  refused("--generate fp8=true", "does not read this key");
  refused("--generate world=2", "one rank");
  refused("--generate dtype=fp4", "dtype");
  refused("--generate batch=0", "batch");
  refused("--generate max_length=1", "max_length");
  refused("kv_cache_bytes=1GiB", "give --generate");
  refused("kv_page_tokens=16", "give --generate");
  refused("max_num_batched_tokens=16", "give --generate");
  refused("--generate max_num_batched_tokens=0", "max_num_batched_tokens");
  refused("gpu_memory_utilization=0.5", "give --generate");
  refused("--generate kv_cache_bytes=1KiB", "does not hold one sequence");
  refused("--generate kv_page_tokens=24", "a power of two");
  for (const char* share : {"0", "1.5", "nan"})
    refused("--generate device=cuda gpu_memory_utilization=" + std::string(share), "above 0, at most 1");
  refused("--generate device=cpu gpu_memory_utilization=0.5", "give kv_cache_bytes instead");
  refused("--generate device=cuda gpu_memory_utilization=0.5 kv_cache_bytes=1GiB", "give one of them");
  refused("--generate device=cuda memory=1GiB gpu_memory_utilization=0.5 max_length=1000000",
          "does not hold the model and the KV cache of one sequence");
  EXPECT_EQ(plan_of("--generate tiny device=cpu memory=1MiB", 1)["largest_batch"], 0);
}

}  // namespace
}  // namespace octet::test::plan_test
