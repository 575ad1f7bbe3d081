// `trainer plan` for GPUs that are not in this machine: fit, cost, and the suggested stage.
#include <sys/resource.h>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::plan_cards_test {
namespace {

Json plan_of(const std::string& arguments, int code = 0) {
  const Outcome run = trainer("plan --json " + arguments);
  EXPECT_EQ(run.code, code) << run.both();
  return parse_json(run.out, "standard output");
}

void expect_words(const std::string& arguments, const std::vector<std::string>& words) {
  const Outcome run = trainer("plan " + arguments);
  for (const std::string& word : words)
    EXPECT_NE(run.out.find(word), std::string::npos) << word << run.both();
}

void expect_refused(const std::string& arguments, const std::vector<std::string>& words) {
  const Outcome run = trainer("plan " + arguments);
  EXPECT_EQ(run.code, 64) << arguments << run.both();
  for (const std::string& word : words)
    EXPECT_NE(run.err.find(word), std::string::npos) << word << run.both();
}

TEST(PlanCards, HaveTheirMemoryAndTheirRates) {
  const std::string run = "llama-3.2-1b cutoff_len=1024 per_device_train_batch_size=1 card=";
  const auto optimizer = [](const Json& plan) { return plan["time"]["optimizer"].get<double>(); };
  const Json h100 = plan_of(run + "h100"), h200 = plan_of(run + "h200"), gh200 = plan_of(run + "gh200");
  EXPECT_EQ(h100["card"], "h100");
  EXPECT_EQ(h100["device"], "cuda") << "a card is a GPU";
  EXPECT_EQ(h100["device_bytes"], 85017493504);
  EXPECT_NEAR(h200["device_bytes"].get<double>(), 139.8 * 0x1p30, 1);
  EXPECT_NEAR(gh200["device_bytes"].get<double>(), 94.5 * 0x1p30, 1);
  EXPECT_EQ(plan_of(run + "gh200-144gb")["device_bytes"], 153008209920);
  EXPECT_NEAR(optimizer(h100) / optimizer(h200), 4.8 / 3.35, 1e-9);
  EXPECT_NEAR(optimizer(gh200) / optimizer(h200), 4.8 / 4.0, 1e-9);
  EXPECT_EQ(h100["time"]["forward GEMMs"], h200["time"]["forward GEMMs"]);
  EXPECT_EQ(plan_of(run + "h100 memory=60GB")["device_bytes"], 60000000000);
  EXPECT_EQ(h100["total_bytes"], h200["total_bytes"]) << "a run holds the same";
  expect_words(run + "h100",
               {"1 x NVIDIA H100 80GB HBM3", "79.18 GiB: fits", "least time per step on an H100"});
}

TEST(PlanCards, ReachTheHostsMemoryOverTheirLink) {
  const std::string run =
      "llama-3.2-1b cutoff_len=1024 per_device_train_batch_size=1 param_dtype=fp32 optim_dtype=fp32 "
      "grad_dtype=fp32 optim_state_cpu_offload=true card=";
  const double pcie = plan_of(run + "h100")["time"]["optimizer's state, over PCIe"].get<double>();
  const double c2c = plan_of(run + "gh200")["time"]["optimizer's state, over NVLink-C2C"].get<double>();
  EXPECT_NEAR(pcie / c2c, 450.0 / 55, 1e-6);
  expect_words(run + "gh200", {"450 GB/s each way, as NVLink-C2C's data sheet says"});
}

TEST(PlanCards, OfAGenerationToo) {
  const Json h100 = plan_of("--generate llama-3.1-8b card=h100 dtype=bf16 batch=1 max_length=64");
  EXPECT_EQ(h100["device_bytes"], 85017493504);
  const Json& row = h100["batches"][0];
  const double bytes = h100["step_weight_bytes"].get<double>() + h100["step_cache_bytes"].get<double>();
  EXPECT_NEAR(row["floor_seconds"].get<double>(), bytes / (3.35e12 * 7 / 8), 1e-9);
  expect_words("--generate llama-3.1-8b card=h100", {"least time per step on an H100"});
}

TEST(PlanCards, ThatAreWrongAreRefused) {
  expect_refused("llama-3.2-1b card=h10", {"did you mean", "h100, h200, gh200, gh200-144gb"});
  expect_refused("llama-3.2-1b card=mi300x", {"is not a known card", "memory=80GB"});
  expect_refused("llama-3.2-1b card=h100 device=cpu", {"a card is a GPU", "leave one of them out"});
}

/// Returns the CPU seconds of this process's children. Other processes do not count.
double seconds_of_children() {
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// 126 layers of width 16,384 on 1,024 GPUs. Users first ask whether a run fits, so the plan must be fast.
TEST(PlanCards, A405BOn1024GpusIsPlannedInSeconds) {
  const double before = seconds_of_children();
  const Json plan = plan_of(
      "llama-3.1-405b device=cuda world=1024 zero_stage=3 cutoff_len=4096 "
      "per_device_train_batch_size=1 recompute=full card=h200");
  EXPECT_LT(seconds_of_children() - before, 5.0);
  EXPECT_EQ(plan["parameters"], 405853388800);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["gpus"], 1024);
  EXPECT_EQ(plan["stages"][0]["fits"], false) << "gradients alone take terabytes";
}

// 100 steps of 8 GPUs at 3 per hour.
TEST(PlanCost, IsThePriceOfAllGpusForTheLeastTime) {
  const std::string run =
      "llama-3.1-8b card=h200 world=8 zero_stage=1 cutoff_len=1024 per_device_train_batch_size=1 ";
  const Json plan = plan_of(run + "gpu_hour_price=3 max_steps=100");
  const double seconds = plan["floor_seconds"].get<double>();
  EXPECT_EQ(plan["gpus"], 8);
  EXPECT_EQ(plan["gpu_hour_price"], 3.0);
  EXPECT_EQ(plan["steps"], 100);
  EXPECT_NEAR(plan["cost_per_step_at_least"].get<double>(), 3.0 * 8 * seconds / 3600, 1e-12);
  EXPECT_NEAR(plan["cost_of_run_at_least"].get<double>(), 100 * 3.0 * 8 * seconds / 3600, 1e-10);
  EXPECT_NEAR(plan["run_seconds_at_least"].get<double>(), 100 * seconds, 1e-9);
  // 8 ranks of 1,024 tokens: a million tokens are 123 steps, of which the last is partial.
  EXPECT_EQ(plan_of(run + "tokens=1e6")["steps"], 123);
  EXPECT_EQ(plan_of(run + "tokens=1007616")["steps"], 123);
  EXPECT_EQ(plan_of(run + "tokens=1007617")["steps"], 124);
  const Json open = plan_of(run + "gpu_hour_price=3");
  EXPECT_TRUE(open["steps"].is_null());
  EXPECT_TRUE(open["cost_of_run_at_least"].is_null());
  EXPECT_FALSE(open["cost_per_step_at_least"].is_null());
  EXPECT_TRUE(plan_of(run)["cost_per_step_at_least"].is_null());
  expect_words(run + "gpu_hour_price=3 max_steps=100",
               {"at 3 per GPU and hour", "on 8 GPUs", "100 steps", "cost of these"});
}

TEST(PlanCost, IsNoneOfACpuAndOfWrongNumbers) {
  const Json cpu = plan_of("tiny device=cpu cutoff_len=64 gpu_hour_price=3 max_steps=10");
  EXPECT_EQ(cpu["gpus"], 0);
  EXPECT_TRUE(cpu["cost_per_step_at_least"].is_null()) << "nobody knows how long it computes";
  expect_refused("tiny max_steps=10 tokens=1e6", {"max_steps and tokens", "give one of them"});
  expect_refused("tiny tokens=0", {"tokens"});
  expect_refused("tiny tokens=many", {"tokens"});
  expect_refused("tiny --generate tokens=1e6", {"tokens is a setting of training plans, not of --generate"});
  expect_refused("tiny gpu_hour_price=-1", {"gpu_hour_price"});
}

// 8,030,261,248 parameters on two GPUs at stage 1, in bf16 with fp32 sums. The embedding has 525,336,576
// elements. Half of its sums (4 bytes) and half of its values (2 bytes) are sent while nothing is computed.
TEST(PlanExposed, OfALongStepIsTheEmbeddingAlone) {
  const Json plan = plan_of(
      "llama-3.1-8b card=h200 memory=1TB world=2 zero_stage=1 cutoff_len=8192 "
      "per_device_train_batch_size=4 param_dtype=fp32 grad_dtype=fp32");
  const double alone = 525336576.0 * (4 + 2) / 2;
  const Json& exposed = plan["exposed_seconds_by_link"];
  EXPECT_NEAR(exposed["NVLink"][1].get<double>(), alone / 370e9, 1e-5);
  EXPECT_NEAR(exposed["PCIe"][1].get<double>(), alone / 55e9, 1e-5);
  EXPECT_EQ(exposed["1 Gbit/s"][1], 0) << "there is one host";
  // At stage 0, sums are sent back in fp32.
  EXPECT_NEAR(exposed["NVLink"][0].get<double>(), 525336576.0 * 8 / 2 / 370e9, 1e-5);
}

// A step of 64 tokens hides almost no communication, and even less between hosts.
TEST(PlanExposed, OfAShortStepIsNearlyEverything) {
  const std::string run =
      "llama-3.1-8b card=h200 memory=1TB world=16 zero_stage=1 cutoff_len=64 "
      "per_device_train_batch_size=1 ";
  const Json plan = plan_of(run);
  for (const char* link : {"NVLink", "PCIe", "3200 Gbit/s", "400 Gbit/s", "1 Gbit/s"}) {
    for (const int stage : {0, 1, 2, 3}) {
      const double all = plan["message_seconds_by_link"][link][stage].get<double>();
      const double exposed = plan["exposed_seconds_by_link"][link][stage].get<double>();
      EXPECT_GE(exposed, 0) << link << stage;
      EXPECT_LE(exposed, all) << link << stage;
      if (std::string(link) == "1 Gbit/s") {
        EXPECT_GT(exposed, 0.99 * all) << stage;
      }
    }
  }
  const Json apart = plan_of(run + "overlap_comm=false");
  EXPECT_EQ(apart["exposed_seconds_by_link"], apart["message_seconds_by_link"]);
  expect_words(run, {"ms over NVLink", "exposed", "cannot hide", "ms over 3200 Gbit/s per host"});
  const Json cpu = plan_of("tiny device=cpu cutoff_len=64 world=2");
  EXPECT_TRUE(cpu["exposed_seconds_by_link"].empty());
}

TEST(PlanChoice, OfAStageIsTheFastestThatFits) {
  const std::string run =
      "llama-3.1-8b world=8 cutoff_len=2048 per_device_train_batch_size=1 "
      "param_dtype=fp32 grad_dtype=fp32 optim_dtype=fp32 card=h100 zero_stage=";
  const Json plan = plan_of(run + "3");
  ASSERT_EQ(plan["stages"].size(), 4u);
  double best = 1e9;
  std::map<int, double> steps;  // step times of the stages that fit
  for (int stage = 0; stage < 4; ++stage) {
    const Json& row = plan["stages"][static_cast<std::size_t>(stage)];
    EXPECT_EQ(row["zero_stage"], stage);
    EXPECT_EQ(row["fits"].get<bool>(),
              row["total_bytes"].get<double>() <= plan["device_bytes"].get<double>());
    // Its figures for another stage equal a plan with that stage.
    const Json other =
        plan_of(run + std::to_string(stage) + " recompute=" + row["recompute"].get<std::string>(),
                row["fits"].get<bool>() ? 0 : 1);
    EXPECT_EQ(row["total_bytes"], other["total_bytes"]) << stage;
    const double step = row["seconds_at_least"].get<double>() + row["exposed_seconds"].get<double>();
    if (row["fits"].get<bool>()) best = std::min(best, step), steps[stage] = step;
  }
  EXPECT_EQ(plan["stages"][0]["fits"], false) << "16 bytes per parameter";
  const int chosen = plan["chosen_stage"].get<int>();
  ASSERT_TRUE(steps.contains(chosen));
  for (const auto& [stage, step] : steps)
    EXPECT_EQ(stage < chosen, stage < chosen && step > 1.02 * best) << stage;
  EXPECT_LE(steps[chosen], 1.02 * best);
  EXPECT_EQ(plan["zero_stage"], 3) << "what is planned stays";
  const auto why = plan["why_stage"].get<std::string>();
  const std::string begins = "zero_stage " + std::to_string(chosen) + " with recompute=";
  for (const std::string& word : {begins, std::string("0 does not fit ("), std::string("3 takes ")})
    EXPECT_NE(why.find(word), std::string::npos) << why;
  EXPECT_EQ(plan["stages"][3]["exposed_seconds"], plan["exposed_seconds_by_link"]["NVLink"][3]);
  expect_words(run + "3", {"what to choose with this micro-batch, with messages over NVLink\n", why});
  // One rank cannot share, and CPUs have no model of time.
  const Json one = plan_of("llama-3.2-1b card=h200 cutoff_len=512 per_device_train_batch_size=1");
  EXPECT_TRUE(one["stages"].empty());
  EXPECT_TRUE(one["chosen_stage"].is_null());
  const Json cpu = plan_of("tiny device=cpu cutoff_len=64 world=2 zero_stage=0");
  EXPECT_NE(cpu["why_stage"].get<std::string>().find("sent per step"), std::string::npos) << cpu["why_stage"];
  expect_words("llama-3.1-405b card=h100 world=8 zero_stage=3 cutoff_len=512 per_device_train_batch_size=1",
               {"no zero_stage fits with this micro-batch: 0 needs "});
}

TEST(PlanChoice, OfALevelSaysWhatWouldBeFaster) {
  const std::string run = "llama-3.1-8b card=h200 world=8 zero_stage=3 cutoff_len=4096 ";
  const auto why = [&](const std::string& words, int code = 0) {
    return plan_of(run + words, code)["why_recompute"].get<std::string>();
  };
  EXPECT_EQ(why("per_device_train_batch_size=1"), "recompute=none fits, and no level is faster");
  const Json set = plan_of(run + "per_device_train_batch_size=1 recompute=full");
  const Json& levels = set["levels"];
  ASSERT_EQ(levels.size(), 4u);
  char less[64];
  std::snprintf(
      less, sizeof less, "%.1f ms less per step",
      1e3 * (levels[3]["seconds_at_least"].get<double>() - levels[0]["seconds_at_least"].get<double>()));
  EXPECT_EQ(set["why_recompute"],
            "recompute=full is set; recompute=none fits, too, and takes " + std::string(less));
  const Json large = plan_of(run + "per_device_train_batch_size=14 recompute=auto");
  EXPECT_EQ(large["recompute"], "full");
  const auto text = large["why_recompute"].get<std::string>();
  EXPECT_TRUE(text.starts_with("recompute=full fits, and nothing faster does: recompute=none needs "))
      << text;
  EXPECT_NE(text.find("recompute=qkv needs "), std::string::npos) << text;
  EXPECT_NE(why("per_device_train_batch_size=14 recompute=none", 1)
                .find("recompute=none does not fit; recompute=full does"),
            std::string::npos);
  EXPECT_TRUE(why("per_device_train_batch_size=128 recompute=none", 1)
                  .starts_with("no level of recomputation fits: recompute=full needs least, "));
}

TEST(PlanNotes, AreThoseOfARun) {
  const Task& task = Task::get();
  const Json quiet = plan_of(task.config() + " device=cpu");
  EXPECT_TRUE(quiet["doubts"].empty()) << quiet["doubts"];
  EXPECT_TRUE(quiet["cannot_run"].empty()) << quiet["cannot_run"];
  const Json doubtful = plan_of(task.config() + " device=cpu learning_rate=0 cutoff_len=1024");
  ASSERT_EQ(doubtful["doubts"].size(), 2u) << doubtful["doubts"];
  EXPECT_EQ(doubtful["doubts"][0],
            "command line: learning_rate is 0: nothing is learned; to do: set a learning_rate above 0");
  EXPECT_EQ(
      doubtful["doubts"][1],
      "command line: cutoff_len 1024 is more than the 512 positions that the model was made for: it has not "
      "learned later ones; to do: lower cutoff_len");
  expect_words(task.config() + " device=cpu learning_rate=0",
               {"\nwarning: command line: learning_rate is 0"});
  const Json noted = plan_of(task.config() + " device=cpu flash_attn=fa2");
  ASSERT_EQ(noted["notes"].size(), 1u) << noted["notes"];
  EXPECT_NE(noted["notes"][0].get<std::string>().find("flash_attn"), std::string::npos) << noted["notes"];
  expect_words(task.config() + " device=cpu flash_attn=fa2", {"\nnote: "});
}

// A shape alone has warnings only about the given options.
TEST(PlanNotes, OfAShapeAreOfTheWordsThatAreSaid) {
  EXPECT_TRUE(plan_of("tiny device=cpu cutoff_len=64")["doubts"].empty());
  const Json doubtful = plan_of("tiny device=cpu cutoff_len=64 max_grad_norm=0");
  ASSERT_EQ(doubtful["doubts"].size(), 1u) << doubtful["doubts"];
  EXPECT_EQ(doubtful["doubts"][0],
            "command line: max_grad_norm is 0: gradients are not clipped, so one bad step can spoil the "
            "weights; to "
            "do: set max_grad_norm: 1.0");
}

TEST(PlanNotes, SayWhatThisVersionCannotRun) {
  const TemporaryFolder folder("cannot_run");
  const Task& task = Task::get();
  std::filesystem::copy(task.model(), folder / "model");
  spill(folder / "model/pytorch_model.bin", "pickle");
  const std::string run = task.config() + " device=cpu model_name_or_path=" + (folder / "model");
  EXPECT_TRUE(plan_of(run)["cannot_run"].empty()) << "training begins without weights";
  const Json other = plan_of(run + " train_from_scratch=false", 64);
  ASSERT_EQ(other["cannot_run"].size(), 1u) << other["cannot_run"];
  EXPECT_NE(other["cannot_run"][0].get<std::string>().find("pytorch_model.bin"), std::string::npos);
  EXPECT_EQ(other["fits"], true);
  expect_words(run + " train_from_scratch=false",
               {"\ncannot run: the weights of a model are in an unsupported format"});
  const Json words = plan_of(run + " template=nosuch", 64);
  ASSERT_EQ(words["cannot_run"].size(), 1u) << words["cannot_run"];
  EXPECT_NE(words["cannot_run"][0].get<std::string>().find("there is no chat template"), std::string::npos);
  // The tokenizer has more tokens than the model's vocabulary has rows.
  Json config = parse_json(slurp(folder / "model/config.json"), "config.json");
  config["vocab_size"] = 300;
  spill(folder / "model/config.json", config.dump());
  const Json large = plan_of(run, 64);
  ASSERT_EQ(large["cannot_run"].size(), 1u) << large["cannot_run"];
  EXPECT_NE(large["cannot_run"][0].get<std::string>().find("does not fit the model"), std::string::npos);
}

}  // namespace
}  // namespace octet::test::plan_cards_test
