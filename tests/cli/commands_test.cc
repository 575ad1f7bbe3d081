// The commands around a run: lint, verify, compare, gpu-info.
#include <sstream>

#include "cli/task.h"
#include "cli/two_logs.h"
#include "octet/base/json.h"

namespace octet::test::commands_test {
namespace {

bool prints(const Outcome& outcome, const std::string& text) {
  return outcome.out.find(text) != std::string::npos;
}

TEST(Words, OfOtherProgramsNameTheCommandThatDoesIt) {
  for (const auto& [word, command] : std::vector<std::pair<const char*, const char*>>{
           {"chat", "trainer generate MODEL"},
           {"serve", "vllm serve FOLDER"},
           {"api", "vllm serve FOLDER"},
           {"eval", "trainer generate MODEL --file QUESTIONS --exact-match"},
           {"merge", "trainer export ADAPTER FOLDER --merge"},
           {"finetune", "trainer train CONFIG"},
           {"chats.csv", "dataset=chats.csv"}}) {
    const Outcome told = trainer(word);
    EXPECT_EQ(told.code, 64) << word;
    EXPECT_EQ(errors_in(told), 1) << told.both();
    EXPECT_NE(told.err.find(command), std::string::npos) << word << "\n" << told.both();
  }
}

// Folders of sweeps have "=" in their names.
TEST(Words, ThatArePathsWithAnEqualsSignAreFiles) {
  const TemporaryFolder folder("signs");
  std::filesystem::create_directories(folder / "lr=1e-5");
  const std::string path = folder / "lr=1e-5/c.yaml";
  std::filesystem::copy_file(Task::get().config(), path);
  for (const char* command : {"lint ", "plan "}) {
    for (const std::string& start : {std::string(), "cd " + folder.path() + " && "}) {
      const std::string word = start.empty() ? path : "lr=1e-5/c.yaml";
      const Outcome read =
          shell(start + OCTET_TRAINER + " " + command + word + " device=cpu output_dir=never");
      EXPECT_NE(read.code, 64) << read.both();
      EXPECT_EQ(read.both().find("unknown key"), std::string::npos) << read.both();
    }
  }
}

TEST(Lint, SaysWhatIsDoubtfulAndEndsWithMistakes) {
  const TemporaryFolder folder("lint");
  const std::string config = Task::get().config() + " output_dir=" + (folder / "run") + " device=cpu ";
  const Outcome clean = trainer("lint " + config + " learning_rate=1.0e-5");
  EXPECT_EQ(clean.code, 0) << clean.both();
  EXPECT_TRUE(prints(clean, "nothing doubtful")) << clean.both();
  const std::string model = folder / "model";  // with weights
  expect_success(trainer(Task::get().train(model, "max_steps=1")));
  const Outcome doubtful =
      trainer("lint " + config +
              "val_size=0.1 save_strategy=no fp8=true cutoff_len=100000 train_from_scratch=false " +
              "model_name_or_path=" + model);
  EXPECT_EQ(doubtful.code, 1) << doubtful.both();
  for (const char* text : {"held out and never evaluated", "cannot resume", "fp8 on a CPU",
                           "is high for fine-tuning", "positions that the model was made for"}) {
    EXPECT_TRUE(prints(doubtful, text)) << text << "\n" << doubtful.both();
  }
  const Outcome wrong = trainer("lint " + config + "zero_stage=4");
  EXPECT_EQ(wrong.code, 64);
  EXPECT_EQ(errors_in(wrong), 1) << wrong.both();
  for (const char* mistake : {"template=nosuch", "dataset=/nowhere.jsonl", "model_name_or_path=/nowhere",
                              "train_from_scratch=false", "global_batch_size=7 per_device_train_batch_size=2",
                              "learning_rate=nan"}) {
    const Outcome refused = trainer("lint " + config + mistake);
    EXPECT_NE(refused.code, 0) << mistake;
    EXPECT_EQ(errors_in(refused), 1) << mistake << "\n" << refused.both();
    EXPECT_FALSE(prints(refused, "nothing doubtful")) << mistake;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run")) << "nothing is written";
}

TEST(Verify, PassesAloneAndUnderALauncher) {
  const TemporaryFolder folder("verify");
  for (const int np : {0, 3}) {
    const Outcome run = trainer("verify device=cpu --folder " + folder.path(), np);
    EXPECT_EQ(run.code, 0) << run.both();
    for (const char* text :
         {"✓ ranks ", "✓ sameness ", "✓ cores ", "✓ memory ", "✓ limits ", "✓ environment ", "✓ messages ",
          "✓ disk ", "✓ checkpoint ", "✓ device ", "✓ FP8 step", "near that of bf16", "checks pass"}) {
      EXPECT_TRUE(prints(run, text)) << text << "\n" << run.both();
    }
    EXPECT_TRUE(prints(run, np == 0 ? "none are needed" : "sums agree")) << run.both();
    EXPECT_EQ(prints(run, "✓ carrier     messages on every rank"), np > 0) << run.both();
    EXPECT_EQ(prints(run, "carrier"), np > 0) << "a lone rank sends nothing";
    EXPECT_EQ(prints(run, "✓ links       GB/s between every two ranks"), np > 0) << run.both();
    if (np == 0) continue;
    const std::string table = run.out.substr(run.out.find("MPI\n"));
    int rates = 0, own = 0;  // three ranks: nine cells
    std::istringstream rows(table.substr(table.find("rank"), table.find("disk") - table.find("rank")));
    for (std::string word; rows >> word;) {
      rates += word.find('.') != std::string::npos ? 1 : 0;
      own += word == "-" ? 1 : 0;
    }
    EXPECT_EQ(rates, 6) << table;
    EXPECT_EQ(own, 3) << table;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  expect_success(trainer("verify device=cpu --folder " + (folder / "not/there/yet")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing is left";
  // Ranks on CPUs use the messages carrier, even if gpu_transport is set.
  const Outcome asked = trainer("verify device=cpu gpu_transport=peer --folder " + folder.path(), 2);
  EXPECT_EQ(asked.code, 0) << asked.both();
  EXPECT_TRUE(prints(asked, "✓ carrier     messages on every rank")) << asked.both();
  EXPECT_EQ(trainer("verify device=cpu gpu_transport=nvlink").code, 64);
}

TEST(Verify, GoesOnWhereACheckFailsAndSaysWhatToDo) {
  for (const int np : {0, 2}) {
    const Outcome run = trainer("verify device=cpu --folder /proc/nowhere", np);
    EXPECT_EQ(run.code, 64) << run.both();
    for (const char* text : {"✗ disk ", "✗ checkpoint ", "✓ FP8 step", "where:    /proc/nowhere", "2 of "})
      EXPECT_TRUE(prints(run, text)) << text << "\n" << run.both();
    EXPECT_EQ(errors_in(run), 0) << run.both();
  }
  const Outcome limits = shell("ulimit -n 200; " OCTET_TRAINER " verify device=cpu --folder /tmp");
  EXPECT_TRUE(prints(limits, "✗ limits      too few files may be open")) << limits.both();
  EXPECT_TRUE(prints(limits, "to do:    ulimit -n 1024")) << limits.both();
  const Outcome stack =
      shell("ulimit -s 900; LD_PRELOAD=" OCTET_FLIPPING_DISK
            " BAD_DISK_FLIP=.verify-checkpoint " OCTET_TRAINER " verify device=cpu --folder /tmp");
  EXPECT_EQ(stack.code, 1) << stack.both();
  EXPECT_TRUE(prints(stack,
                     "✗ limits      the stack is too small\n              expected: 1.0 MiB\n"
                     "              found:    900.0 KiB\n              to do:    ulimit -s 8192\n"))
      << stack.both();
  EXPECT_TRUE(prints(stack, "✓ disk ")) << stack.both();
  EXPECT_TRUE(prints(stack, "✗ checkpoint  /config of a checkpoint is damaged")) << stack.both();
  EXPECT_TRUE(prints(stack, "2 of 11 checks fail: see ✗ above")) << stack.both();
  const Outcome set =
      shell("WORLD_SIZE=2 CUDA_LAUNCH_BLOCKING=1 " OCTET_TRAINER " verify device=cpu --folder /tmp --json");
  EXPECT_EQ(set.code, 1) << set.both();
  const Json json = parse_json(set.out, "verify");
  EXPECT_FALSE(json["ok"]);
  int wrong = 0;
  for (const Json& check : json["checks"]) {
    if (check["ok"]) {
      EXPECT_FALSE(check["found"].get<std::string>().empty()) << check;
      continue;
    }
    ++wrong;
    EXPECT_EQ(check["name"], "environment");
    EXPECT_NE(check["problem"]["found"].get<std::string>().find("CUDA_LAUNCH_BLOCKING"), std::string::npos);
    EXPECT_EQ(check["problem"]["to_do"], "unset it");
  }
  EXPECT_EQ(wrong, 1);
  const Outcome fine = shell("WORLD_SIZE=2 " OCTET_TRAINER " verify device=cpu --folder /tmp");
  EXPECT_EQ(fine.code, 0) << fine.both();
  EXPECT_TRUE(prints(fine, "WORLD_SIZE=2: does nothing")) << fine.both();
}

TEST(Verify, RanksThatAreNotAlikeAreNamed) {
  const std::string one = OCTET_TRAINER " verify device=cpu --folder /tmp";
  const Outcome run = two_ranks(one, one + " zero_stage=1");
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_TRUE(prints(run, "✗ sameness")) << run.both();
  EXPECT_TRUE(prints(run, "zero_stage")) << run.both();
}

TEST(Compare, ShowsRunsSideBySide) {
  const TemporaryFolder folder("compare");
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "a", "max_steps=6")));
  expect_success(trainer(task.train(folder / "b", "max_steps=6")));
  expect_success(trainer(task.train(folder / "c", "max_steps=6 seed=7")));
  const std::string three = (folder / "a") + " " + (folder / "b") + " " + (folder / "c");
  const Outcome table = trainer("compare " + three);
  EXPECT_EQ(table.code, 0) << table.both();
  EXPECT_TRUE(prints(table, "tokens per second") && prints(table, "run 3")) << table.out;
  const Json runs = parse_json(trainer("compare --json " + three).out, "compare");
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0]["last step"], 6);
  EXPECT_EQ(runs[0]["last loss"], steps_of(folder / "a").at(6)["loss"]);
  EXPECT_EQ(runs[1]["most_relative_difference"], 0.0);
  EXPECT_EQ(runs[2]["shared_steps"], 6);
  EXPECT_GT(runs[2]["most_relative_difference"].get<double>(), 0.0);
  EXPECT_GT(runs[2]["tokens a second"].get<double>(), 0.0);
  const Outcome none = trainer("compare " + (folder / "nowhere"));
  EXPECT_NE(none.code, 0);
  EXPECT_EQ(errors_in(none), 1) << none.both();
  spill(folder / "empty/trainer_log.jsonl", "{\"loss\": 1.0\n\n[1]\n");
  EXPECT_EQ(trainer("compare " + (folder / "empty")).code, 64);
}

TEST(Compare, SaysWhatTheLogsSay) {
  const TemporaryFolder folder("logs");
  const auto [one, other] = two_logs();
  spill(folder / "one/trainer_log.jsonl", one);
  spill(folder / "other.jsonl", other);
  const Json runs = parse_json(
      trainer("compare --json " + (folder / "one") + " " + (folder / "other.jsonl")).out, "compare");
  const std::map<std::string, double> expected{{"last step", 20},
                                               {"last loss", 5},
                                               {"mean loss of the last tenth", 5.125},
                                               {"last evaluation loss", 7.5},
                                               {"seconds a step", 5.25},
                                               {"tokens a second", 1050},
                                               {"model TFLOP/s of a device", 21},
                                               {"model FLOPs used, %", 10.5},
                                               {"memory of a rank, GiB", 10.5},
                                               {"gradient norm", 10.5}};
  for (const auto& [key, value] : expected) EXPECT_NEAR(runs[0].at(key).get<double>(), value, 1e-12) << key;
  EXPECT_EQ(runs[0].size(), expected.size() + 4) << "and the name and the distance";
  EXPECT_TRUE(runs[1].at("model FLOPs used, %").is_null());
  EXPECT_TRUE(runs[1].at("last evaluation loss").is_null());
  EXPECT_EQ(runs[1].at("shared_steps"), 10);
  EXPECT_DOUBLE_EQ(runs[1].at("most_relative_difference").get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(runs[1].at("mean_relative_difference").get<double>(), 0.05);
  const Outcome table = trainer("compare " + (folder / "one") + " " + (folder / "other.jsonl"));
  EXPECT_TRUE(prints(table, "at most 5.00e-01 at step 8 (of 10 steps)")) << table.out;
}

TEST(GpuInfo, SaysWhyThereIsNoneOrShowsThem) {
  const Outcome run = trainer("gpu-info --json");
  const Json found = parse_json(run.out, "gpu-info");
  bool usable = false;
  for (const Json& gpu : found["gpus"]) {
    usable = usable || gpu["usable"].get<bool>();
    EXPECT_EQ(gpu["uuid"].get<std::string>().size(), 40u) << gpu;
    EXPECT_TRUE(gpu.contains("bus") && gpu["numa_node"].get<int>() >= -1) << gpu;
  }
  const std::size_t count = found["gpus"].size();
  EXPECT_EQ(found["pairs"].size(), count < 2 ? 0 : count * (count - 1) / 2);
  for (const Json& pair : found["pairs"]) {
    EXPECT_LT(pair["first"].get<int>(), pair["second"].get<int>());
    EXPECT_TRUE(pair["peer_access"].is_boolean());
  }
  // NVML may be missing. Then links_why_not has the reason.
  const bool joined = found["links_why_not"].get<std::string>().empty();
  EXPECT_EQ(found["ports"].size(), joined ? count : 0);
  EXPECT_EQ(found["links"].size(), joined ? found["pairs"].size() : 0);
  EXPECT_EQ(run.code, usable ? 0 : 1);
  EXPECT_EQ(found["why_not"].get<std::string>().empty(), usable);
  EXPECT_FALSE(trainer("gpu-info").out.empty());
}

}  // namespace
}  // namespace octet::test::commands_test
