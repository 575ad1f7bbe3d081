// Every user error ends with one message on all ranks, within seconds.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::wrong_input_test {
namespace {

namespace fs = std::filesystem;

struct Wrong {
  std::string name;
  std::string overrides;          ///< arguments; {} is the folder of the test
  std::vector<std::string> says;  ///< pieces of the message
  int code = 64;
};

void PrintTo(const Wrong& wrong, std::ostream* out) {
  *out << wrong.overrides;
}

std::string in_folder(std::string text, const std::string& folder) {
  for (std::size_t at; (at = text.find("{}")) != std::string::npos;) text.replace(at, 2, folder);
  return text;
}

// Expects one message with all these pieces, this exit code, and no rank that waits.
void expect_refusal(const Outcome& run, const Wrong& wrong, const std::string& folder,
                    std::chrono::steady_clock::time_point start) {
  EXPECT_EQ(run.code, wrong.code) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.both();
  EXPECT_EQ(run.err.find("internal error"), std::string::npos) << run.err;
  for (const std::string& piece : wrong.says) {
    EXPECT_NE(run.err.find(in_folder(piece, folder)), std::string::npos) << piece << "\n" << run.err;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

class WrongTraining : public testing::TestWithParam<Wrong> {
 protected:
  WrongTraining() : folder_("wrong") {
    const std::string model = Task::get().model();
    for (const char* name : {"small_vocabulary", "truncated", "lying", "twice", "pickled", "no_config",
                             "odd_heads", "settings"}) {
      fs::copy(model, folder_ / name);
    }
    Json config = parse_json(slurp(model + "/config.json"), "config");
    config["vocab_size"] = 100;
    spill(folder_ / "small_vocabulary/config.json", config.dump());
    config["vocab_size"] = 512, config["num_attention_heads"] = 3, config["num_key_value_heads"] = 2;
    spill(folder_ / "odd_heads/config.json", config.dump());
    fs::remove(folder_ / "no_config/config.json");
    spill(folder_ / "settings/generation_config.json", R"({"temperature": "hot"})");
    // A header with more bytes than the file, and a truncated header.
    const std::string header =
        R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[512,32],"data_offsets":[0,65536]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    spill(folder_ / "lying/model.safetensors", bytes + header + std::string(100, '\0'));
    spill(folder_ / "truncated/model.safetensors", bytes + header.substr(0, 20));
    std::string twice =
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
    bytes[0] = static_cast<char>(twice.size());
    spill(folder_ / "twice/model.safetensors", bytes + twice + std::string(8, '\0'));
    spill(folder_ / "pickled/pytorch_model.bin", "x");
    spill(folder_ / "pairs.jsonl", "{\"question\": \"why\", \"answer\": \"so\"}\n");
    fs::create_directories(folder_ / "set");
    spill(folder_ / "set/train.jsonl", "{\"question\": \"why\", \"answer\": \"so\"}\n");
    spill(folder_ / "set/validation.jsonl", "\n");
    const std::string columns = R"("columns":{"prompt":"question","response":"answer"})";
    spill(folder_ / "dataset_info.json",
          R"({"near":{"file_name":"pairs.jsonl","columns":{"prompt":"question","response":"anwser"}},)"
          R"("test":{"file_name":"set","split":"test",)" +
              columns + R"(},"validation":{"file_name":"set","split":"validation",)" + columns + "}}");
    spill(folder_ / "empty.jsonl", "");
    spill(folder_ / "broken.jsonl", "{\"messages\": [}\n");
    spill(folder_ / "strange.jsonl", "{\"first\": 1, \"second\": 2}\n");
    spill(folder_ / "questions.jsonl", R"({"messages": [{"role": "user", "content": "why"}]})"
                                       "\n");
    spill(folder_ / "file", "in the way");
    spill(folder_ / "two.yaml", "max_steps: 3\nmax_steps: 4\n");
    spill(folder_ / "list.yaml", "- max_steps\n");
    spill(folder_ / "torn.yaml", "model: [\n");
  }
  TemporaryFolder folder_;
};

TEST_P(WrongTraining, EndsWithOneMessageOnAllRanks) {
  const auto start = std::chrono::steady_clock::now();
  const std::string more = in_folder(GetParam().overrides, folder_.path());
  const bool own_config = more.starts_with("train ");
  expect_refusal(trainer(own_config ? more : Task::get().train(folder_ / "run", more), 2), GetParam(),
                 folder_.path(), start);
  EXPECT_FALSE(fs::exists(folder_ / "run/trainer_log.jsonl")) << "nothing was begun";
}

INSTANTIATE_TEST_SUITE_P(
    Each, WrongTraining,
    testing::Values(
        Wrong{"missing_config", "train {}/none.yaml", {"does not exist", "none.yaml"}},
        Wrong{"config_that_is_a_folder", "train {}/lying.yaml/", {"lying.yaml"}},
        Wrong{"two_configs", "{}/two.yaml", {"two.yaml"}},
        Wrong{"repeated_key", "train {}/two.yaml", {"max_steps", "two.yaml:2"}},
        Wrong{"config_of_a_list", "train {}/list.yaml", {"list.yaml"}},
        Wrong{"torn_yaml", "train {}/torn.yaml", {"torn.yaml"}},
        Wrong{"no_output", "train {}/none.yaml output_dir=x", {"none.yaml"}},
        Wrong{"wrong_key", "lerning_rate=1", {"lerning_rate", "learning_rate"}},
        Wrong{"wrong_type", "learning_rate=fast", {"learning_rate", "a number", "fast"}},
        Wrong{"rate_not_a_number", "learning_rate=nan", {"learning_rate"}},
        Wrong{"negative_steps", "save_steps=-3", {"save_steps"}},
        Wrong{"stage_out_of_range", "zero_stage=7", {"zero_stage"}},
        Wrong{"missing_model",
              "model_name_or_path={}/none",
              {"the folder of the model does not exist", "{}/none", "nothing is downloaded"}},
        Wrong{"weights_in_another_format",
              "train_from_scratch=false model_name_or_path={}/pickled",
              {"in an unsupported format", "pytorch_model.bin", "{}/pickled"}},
        Wrong{"model_without_config",
              "model_name_or_path={}/no_config",
              {"this is not a model folder", "{}/no_config"}},
        Wrong{"heads_that_do_not_divide", "model_name_or_path={}/odd_heads", {"num_attention_heads"}, 64},
        Wrong{"truncated_weights",
              "train_from_scratch=false model_name_or_path={}/truncated",
              {"truncated/model.safetensors"}},
        Wrong{"lying_weights",
              "train_from_scratch=false model_name_or_path={}/lying",
              {"lying/model.safetensors"}},
        Wrong{"tensor_twice",
              "train_from_scratch=false model_name_or_path={}/twice",
              {"twice/model.safetensors", "declared twice"}},
        Wrong{"tokenizer_of_another_model",
              "model_name_or_path={}/small_vocabulary",
              {"the tokenizer does not fit the model", "100", "512"}},
        Wrong{"settings_of_generation",
              "model_name_or_path={}/settings",
              {"value of 'temperature' cannot be used", "a finite number", "\"hot\"",
               "settings/generation_config.json"}},
        Wrong{"missing_data", "dataset={}/none.jsonl", {"none.jsonl"}},
        Wrong{"data_that_is_a_folder", "dataset={}/lying", {"lying"}},
        Wrong{"empty_data", "dataset={}/empty.jsonl", {"is empty"}},
        Wrong{"broken_data", "dataset={}/broken.jsonl", {"broken.jsonl"}},
        Wrong{"column_that_is_not_there",
              "dataset_dir={} dataset=near",
              {"no column 'anwser'", "did you mean 'answer'", "dataset_info.json: near"}},
        Wrong{"unknown_data_set",
              "dataset_dir={} dataset=nera",
              {"'nera' is not known", "did you mean 'near'"}},
        Wrong{"split_without_files",
              "dataset_dir={} dataset=test",
              {"split 'test' of data set 'test' is not there"}},
        Wrong{"split_without_rows", "dataset_dir={} dataset=validation", {"'validation' is empty"}},
        Wrong{"unknown_columns", "dataset={}/strange.jsonl", {"strange.jsonl"}},
        Wrong{"only_questions", "dataset={}/questions.jsonl", {"no tokens to train"}},
        Wrong{"all_rows_held_out", "val_size=240", {"val_size"}},
        Wrong{"unknown_template", "template=chatlm", {"chatlm", "chatml"}},
        Wrong{
            "batch_that_does_not_divide", "global_batch_size=25", {"global_batch_size 25", "multiple of 8"}},
        Wrong{"output_that_is_a_file", "output_dir={}/file", {"{}/file"}},
        Wrong{"output_below_a_file", "output_dir={}/file/deep", {"{}/file"}},
        Wrong{"output_that_cannot_be_written", "output_dir=/proc/nothing", {"/proc/nothing"}},
        Wrong{"checkpoint_that_is_none", "resume_from_checkpoint={}/lying", {"lying"}, 77}),
    [](const auto& param) { return param.param.name; });

class WrongCall : public testing::TestWithParam<Wrong> {};

TEST_P(WrongCall, EndsWithOneMessage) {
  const TemporaryFolder folder("call");
  for (const int np : {0, 2}) {
    const auto start = std::chrono::steady_clock::now();
    expect_refusal(trainer(in_folder(GetParam().overrides, folder.path()), np), GetParam(), folder.path(),
                   start);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, WrongCall,
    testing::Values(Wrong{"unknown_command", "inspcet x", {"inspcet", "did you mean", "inspect"}},
                    Wrong{"inspect_nothing", "inspect {}/none", {"{}/none"}, 77},
                    Wrong{"inspect_without_arguments", "inspect", {"CHECKPOINT", "inspect --help"}},
                    Wrong{"export_nothing", "export {}/none {}/out", {"{}/none"}, 77},
                    Wrong{"encode_nothing", "encode {}/none", {"{}/none"}},
                    Wrong{"generate_nothing", "generate {}/none hello", {"{}/none"}},
                    Wrong{"generate_bad_number", "generate {}/none --max-new many", {"--max-new"}},
                    Wrong{"probe_nothing", "probe {}/none --batch b --out o", {"none"}},
                    Wrong{"probe_without_batch", "probe {}/none", {"--batch"}},
                    Wrong{"quickstart_into_nowhere", "quickstart /proc/nothing", {"/proc/nothing"}}),
    [](const auto& param) { return param.param.name; });

TEST(Quickstart, LeavesAFolderInUseAsItIs) {
  const TemporaryFolder folder("call");
  spill(folder / "mine/config.yaml", "written by hand\n");
  const Outcome run = trainer("quickstart " + (folder / "mine"));
  EXPECT_EQ(run.code, 64);
  EXPECT_NE(run.err.find("the folder for the first run is not empty"), std::string::npos) << run.err;
  EXPECT_EQ(slurp(folder / "mine/config.yaml"), "written by hand\n");
  EXPECT_FALSE(fs::exists(folder / "mine/data"));
}

TEST(Help, EveryCommandExplainsItself) {
  for (const std::string command :
       {"", "train ", "encode ", "probe ", "inspect ", "export ", "generate ", "quickstart "}) {
    const Outcome help = trainer(command + "--help");
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_GT(help.out.size(), 100u) << command;
    EXPECT_EQ(help.err, "") << command;
  }
  const Outcome nothing = shell(OCTET_TRAINER);
  EXPECT_EQ(nothing.code, 64);
  EXPECT_NE(nothing.both().find("trainer CONFIG"), std::string::npos);
}

// Returns the least address space with which the program starts, in KiB. It depends on the libraries of a
// build.
int least_address_space() {
  for (int kib = 60000; kib < 2000000; kib += 10000)
    if (shell("ulimit -v " + std::to_string(kib) + "; " OCTET_TRAINER " --version").code == 0) return kib;
  ADD_FAILURE() << "the program does not start with any limit";
  return 0;
}

// The memory of the process is limited, from far too little to nearly enough. oneDNN would crash, because it
// writes code into memory that it failed to get. OpenMP would end the process with its own message if it gets
// no threads.
TEST(WrongEnvironment, MemoryThatCannotBeHadIsAMessage) {
  const TemporaryFolder folder("memory");
  const std::string least = std::to_string(least_address_space());
  for (const std::string threads : {"2", "16"}) {
    const std::string first = "export OMP_NUM_THREADS=" + threads + "; ulimit -v ";
    for (const std::string& kilobytes : {least, std::string("300000"), std::string("400000")}) {
      SCOPED_TRACE(threads + " threads, " + kilobytes);
      const Outcome run = shell(first + kilobytes + "; " OCTET_TRAINER " " +
                                Task::get().train(folder / ("run" + threads + "of" + kilobytes)));
      // Nearly enough suffices if threads happen to share allocator arenas.
      if (run.code == 0 && kilobytes != least) continue;
      EXPECT_EQ(run.code, 64) << run.both();
      EXPECT_EQ(errors_in(run), 1) << run.both();
      for (const char* piece : {"memory", "to do: "})
        EXPECT_NE(run.err.find(piece), std::string::npos) << piece << run.both();
      EXPECT_EQ(run.err.find("internal error"), std::string::npos) << run.both();
    }
    // Ranks without memory for communication may each print the error.
    for (const std::string kilobytes : {"300000", "350000", "400000"}) {
      SCOPED_TRACE(threads + " threads, two ranks, " + kilobytes);
      const Outcome run =
          shell(first + kilobytes + "; " OCTET_SOURCE_DIR "/launch/mpirun -np 2 " OCTET_TRAINER " " +
                Task::get().train(folder / ("ranks" + threads + "of" + kilobytes)));
      if (run.code == 0 && kilobytes != "300000") continue;
      EXPECT_EQ(run.code, 64) << run.both();
      // The launcher refuses limits that are too low for MPI. Ranks name the memory that they lack.
      EXPECT_TRUE(run.err.find("memory") != std::string::npos ||
                  run.err.find("address space") != std::string::npos)
          << run.both();
      for (const char* piece : {"internal error", "signal", "a second job"})
        EXPECT_EQ(run.err.find(piece), std::string::npos) << piece << run.both();
    }
  }
}

const std::string short_bench = "bench tiny steps=1 warmup=0 cutoff_len=8 device=cpu";

// The check comes first, because OpenMP would later end the program with its own message.
TEST(WrongEnvironment, ThreadsThatCannotBeStartedAreAMessageOfAllRanks) {
  const TemporaryFolder folder("threads");
  const auto refused = [&](const std::string& limit, int np, const std::string& command,
                           const std::vector<std::string>& says, int code = 1) {
    SCOPED_TRACE(limit + ", np " + std::to_string(np));
    const std::string launch =
        np == 1 ? "" : OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " ";
    const auto start = std::chrono::steady_clock::now();
    const Outcome run = shell(limit + launch + OCTET_TRAINER " " + command);
    Wrong wrong{.says = {"the system does not let this process start its threads",
                         "to do:    compute with fewer threads (OMP_NUM_THREADS="},
                .code = code};
    wrong.says.insert(wrong.says.end(), says.begin(), says.end());
    expect_refusal(run, wrong, folder.path(), start);
    EXPECT_EQ(run.err.find("libgomp"), std::string::npos) << run.err;
  };
  for (const int np : {1, 2}) {
    refused("export OMP_NUM_THREADS=1000; ulimit -v 1200000; ", np, Task::get().train(folder / "run"),
            {"1000 threads, as OMP_NUM_THREADS says, with ", "ulimit -v 1200000"}, 64);
    EXPECT_FALSE(fs::exists(folder / "run"));
  }
  // Ranks that could start their threads one after the other, but not at the same time.
  const std::string group = "/sys/fs/cgroup/pids/octet-threads-" + std::to_string(::getpid());
  if (::geteuid() != 0 || !fs::exists("/sys/fs/cgroup/pids/tasks")) return;
  std::error_code none;
  if (!fs::create_directory(group, none)) return;
  spill(group + "/pids.max", "100");
  const auto within = [&](const std::string& threads) {
    return "export OMP_NUM_THREADS=" + threads + "; echo $$ > " + group + "/cgroup.procs; ";
  };
  refused(within("50"), 2, short_bench, {"50 threads, as OMP_NUM_THREADS says", "pids.max 100 ("});
  spill(group + "/pids.max", "60");
  refused(within("50"), 1, short_bench, {"and as many that replace them", "pids.max 60 ("});
  const Outcome fits = shell(within("20") + OCTET_TRAINER " " + short_bench);
  EXPECT_EQ(fits.code, 0) << fits.both();
  for (int i = 0; i < 100 && !fs::remove(group, none); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(WrongEnvironment, IsRefusedByAllRanksWithOneMessage) {
  const TemporaryFolder folder("variables");
  const std::string bench = "bench tiny steps=1 warmup=0 cutoff_len=8 device=cpu";
  for (const std::string wrong : {"OCTETRUN_"
                                  "DELAY",
                                  "OCTET_"
                                  "DELAYS"}) {
    ::setenv(wrong.c_str(), "3", 1);
    const auto start = std::chrono::steady_clock::now();
    const Outcome refused = trainer(bench, 2);
    ::unsetenv(wrong.c_str());
    expect_refusal(refused, {.says = {wrong + "=3", "did you mean OCTETRUN_DELAYS?"}}, folder.path(), start);
  }
  const Outcome listed = shell(OCTET_TRAINER " --help environment");
  EXPECT_EQ(listed.code, 0);
  EXPECT_NE(listed.out.find("OCTETRUN_CACHE  (a folder, or off)"), std::string::npos) << listed.out;
}

TEST(WrongDevices, AreRefusedByAllRanksWithOneMessage) {
  const TemporaryFolder folder("devices");
  const std::string bench = "bench tiny steps=1 warmup=0 cutoff_len=8 ";
  ::setenv("OCTETRUN_SHARE_GPUS", "yes", 1);
  auto start = std::chrono::steady_clock::now();
  const Outcome unread = trainer(bench, 3);
  ::unsetenv("OCTETRUN_SHARE_GPUS");
  expect_refusal(unread, {.says = {"OCTETRUN_SHARE_GPUS=yes", "0 or 1"}}, folder.path(), start);
  if (!parse_json(trainer("gpu-info --json").out, "gpu-info")["gpus"].empty()) return;
  for (const int np : {0, 3}) {
    start = std::chrono::steady_clock::now();
    expect_refusal(trainer(bench + "device=cuda", np), {.says = {"leave it auto"}}, folder.path(), start);
  }
}

}  // namespace
}  // namespace octet::test::wrong_input_test
