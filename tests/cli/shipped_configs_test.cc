// The configurations in configs/: each loads, fits its GPUs, and trains on this machine with a small model.
// Also tests launch/all.
#include <filesystem>
#include <map>

#include "cli/task.h"

namespace octet::test::shipped_configs_test {
namespace {

namespace fs = std::filesystem;

const std::string kConfigs = OCTET_SOURCE_DIR "/configs/";

TEST(ShippedConfigs, LoadAndTrain) {
  const TemporaryFolder folder("shipped");
  spill(folder / "texts.jsonl", "{\"text\": \"b, a\"}\n{\"text\": \"d, c\"}\n");
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++seen;
    const std::string yaml = slurp(entry.path().string());
    const auto says = [&yaml](const char* line) {
      return yaml.find(std::string("\n") + line) != std::string::npos;
    };
    const std::string data = says("stage: pt") ? folder / "texts.jsonl" : Task::get().held_out();
    const std::string command =
        "cd " OCTET_SOURCE_DIR " && " OCTET_TRAINER " " + entry.path().string() +
        " model_name_or_path=" + Task::get().model() +
        " train_from_scratch=true template=chatml device=cpu val_size=0 eval_strategy=no dataset=" + data +
        " output_dir=" + (folder / entry.path().stem().string()) +
        " cutoff_len=128 max_steps=2 per_device_train_batch_size=1 global_batch_size=2 "
        "auto_find_batch_size=false " +
        "save_strategy=no report_to=none plot_loss=false logging_steps=1 load_best_model_at_end=false " +
        (says("gradient_accumulation_steps") ? "gradient_accumulation_steps=2 " : "") +
        (says("finetuning_type: qlora") ? "lora_rank=4" : "");
    const Outcome run = shell(command);
    EXPECT_EQ(run.code, 0) << run.both();
    EXPECT_EQ(steps_of(folder / entry.path().stem().string()).size(), 2u);
  }
  EXPECT_GE(seen, 11);
}

// Each DeepSpeed file is used with the YAML for which it is written, or with any other.
TEST(ShippedConfigs, FilesOfDeepSpeedLoadAndTrain) {
  const TemporaryFolder folder("shipped");
  std::map<std::string, std::string> stages;
  for (const auto& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    const Outcome run =
        trainer(Task::get().train(folder / name, "max_steps=2 bf16=true deepspeed=" + entry.path().string()));
    EXPECT_EQ(run.code, 0) << run.both();
    EXPECT_EQ(steps_of(folder / name).size(), 2u);
    const std::string resolved = slurp(folder / name + "/config.resolved.yaml");
    const std::size_t at = resolved.find("zero_stage: ");
    ASSERT_NE(at, std::string::npos) << resolved;
    stages[name] = resolved.substr(at + 12, 1);
  }
  const std::map<std::string, std::string> wanted{
      {"bf16_baseline_config", "1"}, {"deepspeed_custom", "3"},        {"deepspeed_z2", "2"},
      {"deepspeed_z3", "3"},         {"ds_z0_single_gpu_config", "0"}, {"ds_z1_fp8_config", "1"}};
  EXPECT_EQ(stages, wanted);
}

TEST(ShippedConfigs, FitTheCardsThatTheyAreWrittenFor) {
  for (const auto& [file, rest] : std::initializer_list<std::pair<std::string, std::string>>{
           {"run_llama70b", "llama-3.1-70b world=2 memory=141GB"},
           {"run_llama70b", "llama-3.1-70b world=1 zero_stage=0 memory=141GB"},
           {"run_gemma27b_distributed", "gemma-3-27b world=2 memory=141GB"},
           {"run_bnb", "qwen3-8b memory=16GB"},
           {"run_unsloth", "qwen3-8b memory=16GB"},
           {"run_distributed", "qwen3-8b world=2 memory=24GB"},
           {"llama3_bf16_baseline_sft", "llama-3.1-8b memory=141GB"},
           {"llama3_fp8_deepspeed_sft", "llama-3.1-8b memory=80GB"}}) {
    const Outcome plan = shell("cd " OCTET_SOURCE_DIR " && " OCTET_TRAINER " plan configs/" + file +
                               ".yaml device=cuda model_name_or_path=" + rest);
    EXPECT_EQ(plan.code, 0) << file << " " << rest << "\n" << plan.both();
  }
}

// This machine has none of the models.
TEST(ShippedConfigs, ArePlannedAsTheyStand) {
  const TemporaryFolder folder("planned");
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".yaml") continue;
    ++seen;
    const Outcome plan = shell("cd " + folder.path() + " && HF_HUB_CACHE=" + folder.path() +
                               " " OCTET_TRAINER " plan " + entry.path().string() + " card=H100 world=8");
    EXPECT_EQ(plan.code, 0) << entry.path() << "\n" << plan.both();
    EXPECT_NE(plan.out.find("is not on this machine: its built-in shape "), std::string::npos) << plan.both();
    if (entry.path().stem() == "prompt_distillation") {
      EXPECT_NE(plan.out.find("recompute norms"), std::string::npos) << plan.out;
      EXPECT_NE(plan.out.find("param_dtype fp32, grad_dtype fp32, optim_dtype fp32"), std::string::npos)
          << plan.out;
    }
  }
  EXPECT_GE(seen, 11);
}

// SFT-Play's scripts and its Makefile name configurations in other ways.
TEST(ShippedConfigs, AreNamedInOtherWaysToo) {
  const std::string rest = " device=cuda model_name_or_path=qwen3-8b memory=16GB";
  const auto plan = [&](const std::string& words) {
    const Outcome outcome = shell("cd " OCTET_SOURCE_DIR " && " OCTET_TRAINER " plan " + words);
    EXPECT_EQ(outcome.code, 0) << words << "\n" << outcome.both();
    return outcome.out;
  };
  const std::string usual = plan("configs/run_bnb.yaml" + rest);
  for (const char* words : {"--config configs/run_bnb.yaml", "CONFIG=configs/run_bnb.yaml"})
    EXPECT_EQ(plan(words + rest), usual) << words;
}

// A stand-in for the program prints how it was started.
TEST(LaunchAll, StartsARankForEachGpu) {
  const TemporaryFolder folder("launch_all");
  const auto script = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder / name).parent_path());
    spill(folder / name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(folder / name, fs::perms::owner_all);
  };
  script("bin/trainer", "echo \"$OMPI_COMM_WORLD_SIZE ranks: $*\"");
  script("gpus/nvidia-smi", "printf 'GPU 0: H200\\nGPU 1: H200\\nGPU 2: H200\\n'");
  script("none/nvidia-smi", "exit 9");
  const auto start = [&](const std::string& machine, const std::string& words) {
    return shell("OCTETRUN_BUILD=" + folder.path() + " PATH=" + (folder / machine) + ":$PATH " + words);
  };
  const std::string all = OCTET_SOURCE_DIR "/launch/all ";
  const Outcome three = start("gpus", all + "config.yaml seed=3");
  EXPECT_EQ(three.code, 0) << three.both();
  EXPECT_NE(three.out.find("3 ranks: config.yaml seed=3"), std::string::npos) << three.both();
  EXPECT_NE(three.err.find("3 ranks on this host (3 GPUs)"), std::string::npos) << three.both();
  EXPECT_NE(start("gpus", all + "-n 2 c.yaml").out.find("2 ranks: c.yaml"), std::string::npos);
  EXPECT_NE(start("gpus", "CUDA_VISIBLE_DEVICES=0,2 " + all + "c.yaml").out.find("2 ranks: c.yaml"),
            std::string::npos);
  // Without a visible GPU, the ranks run on the cores.
  const Outcome hidden = start("gpus", "CUDA_VISIBLE_DEVICES= " + all + "-n 2 c.yaml");
  EXPECT_NE(hidden.out.find("2 ranks: c.yaml"), std::string::npos) << hidden.both();
  EXPECT_NE(hidden.err.find("NUMA nodes, and no GPU)"), std::string::npos) << hidden.both();
  const Outcome one = start("gpus", "CUDA_VISIBLE_DEVICES=2 " + all + "c.yaml");
  EXPECT_NE(one.err.find("1 ranks on this host (1 GPUs)"), std::string::npos) << one.both();
  const Outcome cores = start("none", all + "-n 2 c.yaml");
  EXPECT_NE(cores.out.find("2 ranks: c.yaml"), std::string::npos) << cores.both();
  EXPECT_NE(cores.err.find("no GPU"), std::string::npos) << cores.both();
  const Outcome many = start("gpus", all + "-n 4 c.yaml");
  EXPECT_EQ(many.code, 64);
  EXPECT_NE(many.err.find("-n of at most 3"), std::string::npos) << many.both();
  for (const std::string number : {"x", "0", "-1", "2x"}) {
    const Outcome none = start("gpus", all + "-n " + number + " c.yaml");
    EXPECT_EQ(none.code, 64) << none.both();
    EXPECT_NE(none.err.find("-n is not a number of ranks"), std::string::npos) << none.both();
    EXPECT_NE(none.err.find("found:    " + number + "\n"), std::string::npos) << none.both();
  }
  EXPECT_EQ(start("gpus", all).code, 64);
}

TEST(Quickstart, StartsNearTheLossOfAnEvenGuess) {
  const TemporaryFolder folder("quickstart_loss");
  ASSERT_EQ(trainer("quickstart " + (folder / "task") + " --rows 240 --held-out 3").code, 0);
  const Outcome run = trainer((folder / "task/config.yaml") +
                              " max_steps=2 save_strategy=no plot_loss=false report_to=none device=cpu");
  ASSERT_EQ(run.code, 0) << run.both();
  const Json config = read_json(folder / "task/model/config.json");
  EXPECT_NEAR(steps_of(folder / "task/output").at(1).at("loss").get<double>(),
              std::log(config.at("vocab_size").get<double>()), 0.3);
}

// launch/setup, launch/build, ctest and nvidia-smi are replaced by scripts.
TEST(LaunchScripts, TestsCompileTheGpuSideForAGpuOrForAllTests) {
  const TemporaryFolder folder("test_builds");
  const auto script = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder / name).parent_path());
    spill(folder / name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(folder / name, fs::perms::owner_all);
  };
  script("launch/setup", "exit 0");
  script("launch/build", "mkdir -p build && echo \"$@\"");
  script("bin/ctest", "exit 0");
  for (const char* room : {"tests/ops", "tests/gpu"}) fs::create_directories(folder / room);
  fs::copy_file(OCTET_SOURCE_DIR "/launch/test", folder / "launch/test");
  struct Row {
    std::string words;
    int nvidia_smi;      ///< its exit code
    std::string cached;  ///< OCTET_CUDA of an earlier build; empty: there is none
    std::string built;
  };
  for (const Row& row : std::vector<Row>{{"", 9, "", "OFF"},
                                         {"--fast", 9, "", "OFF"},
                                         {"ops", 9, "", "OFF"},
                                         {"--all", 9, "", "AUTO"},
                                         {"gpu", 9, "", "AUTO"},
                                         {"", 0, "", "AUTO"},
                                         {"", 9, "OFF", "OFF"},
                                         {"", 9, "AUTO", "AUTO"},
                                         {"", 9, "ON", "AUTO"}}) {
    script("bin/nvidia-smi", "exit " + std::to_string(row.nvidia_smi));
    fs::remove_all(folder / "build");
    if (!row.cached.empty()) {
      fs::create_directories(folder / "build");
      spill(folder / "build/CMakeCache.txt", "OCTET_CUDA:STRING=" + row.cached + "\n");
    }
    const Outcome run = shell("unset OCTETRUN_BUILD; PATH=" + (folder / "bin") + ":$PATH " +
                              (folder / "launch/test") + " " + row.words);
    EXPECT_EQ(run.code, 0) << run.both();
    EXPECT_NE(run.out.find("-DOCTET_CUDA=" + row.built), std::string::npos)
        << "launch/test " << row.words << ", cached '" << row.cached << "'\n"
        << run.both();
  }
}

// The called scripts, nproc and nvidia-smi are stand-ins.
TEST(LaunchScripts, QuickstartSaysFirstHowLongItTakes) {
  const TemporaryFolder folder("quickstart_says");
  const auto script = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder / name).parent_path());
    spill(folder / name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(folder / name, fs::perms::owner_all);
  };
  fs::create_directories(folder / "launch");
  fs::copy_file(OCTET_SOURCE_DIR "/launch/quickstart", folder / "launch/quickstart");
  for (const char* name : {"launch/setup", "launch/build", "launch/mpirun"}) script(name, "echo $0");
  script("cores2/nproc", "echo 2");
  script("cores2/nvidia-smi", "exit 9");
  script("cores16/nproc", "echo 16");
  script("cores16/nvidia-smi", "exit 0");
  const auto first_line = [&](const std::string& machine) {
    const Outcome run = shell("PATH=" + (folder / machine) + ":$PATH " + (folder / "launch/quickstart"));
    return run.out.substr(0, run.out.find('\n'));
  };
  EXPECT_EQ(first_line("cores2"),
            "quickstart: installs packages, builds and trains a small model: about 12 minutes on 2 cores, "
            "100 MB of disk");
  EXPECT_EQ(first_line("cores16"),
            "quickstart: installs packages, builds and trains a small model: about 6 minutes on 16 cores, "
            "300 MB of disk");
  script("build/bin/trainer", "exit 0");
  EXPECT_EQ(first_line("cores2"),
            "quickstart: brings the build up to date, and trains a small model: about a minute");
}

TEST(LaunchScripts, StartARankForEachVisibleGpu) {
  const TemporaryFolder folder("launch_scripts");
  const auto script = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder / name).parent_path());
    spill(folder / name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(folder / name, fs::perms::owner_all);
  };
  script("bin/trainer", "echo \"$OMPI_COMM_WORLD_SIZE ranks\"");
  script("gpus/nvidia-smi", "for i in 0 1 2; do echo \"GPU $i: H100\"; done");
  const auto start = [&](const std::string& variables, const std::string& words) {
    return shell("OCTETRUN_BUILD=" + folder.path() + " PATH=" + (folder / "gpus") +
                 ":$PATH TEACHER=a PROMPT=b " + "MODEL=a DATA=b " + variables +
                 " " OCTET_SOURCE_DIR "/launch/" + words);
  };
  struct Case {
    const char *variables, *words, *said;
    int code = 0;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"", "all -g", "3\n"},
           {"CUDA_VISIBLE_DEVICES=0,2", "all -g", "2\n"},
           {"CUDA_VISIBLE_DEVICES=GPU-1a,MIG-2b", "all -g", "2\n"},
           {"CUDA_VISIBLE_DEVICES=-1", "all -g", "0\n"},
           {"CUDA_VISIBLE_DEVICES=0,7,1", "all -g", "1\n"},
           {"", "train_sft_h100x8 out", "3 ranks"},
           {"CUDA_VISIBLE_DEVICES=1", "train_sft_h100x8 out", "1 ranks"},
           {"RANKS=2", "train_sft_h100x8 out", "2 ranks"},
           {"RANKS=4", "train_sft_h100x8 out", "-n of at most 3", 64},
           {"RANKS=4", "train_sft_h100x8 out device=cpu", "4 ranks"},
           {"", "create_data_h100x8 in out", "3 ranks"},
           {"", "create_data_h100x8 in out 2", "2 ranks"},
           {"CUDA_VISIBLE_DEVICES=0,1", "create_data_h100x8 in out", "2 ranks"},
           {"CUDA_VISIBLE_DEVICES=0", "create_data_h100x8 in out 2", "this host has 1", 64},
           {"RANKS=4", "create_data_h100x8 in out", "this host has 3", 64},
           {"RANKS=4", "create_data_h100x8 in out --device cpu", "4 ranks"}}) {
    const Outcome run = start(c.variables, c.words);
    EXPECT_EQ(run.code, c.code) << c.variables << " " << c.words << "\n" << run.both();
    EXPECT_NE(run.both().find(c.said), std::string::npos) << c.variables << " " << c.words << "\n"
                                                          << run.both();
  }
}

TEST(SlurmBatch, OutsideOfSlurmItSaysSoAndHowItIsGivenToSlurm) {
  const std::string script = OCTET_SOURCE_DIR "/launch/slurm.sbatch";
  const Outcome run = shell("env -u SLURM_JOB_ID bash " + script + " configs/run_bnb.yaml seed=3");
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_NE(run.err.find("not inside a Slurm job"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("sbatch " + script + " configs/run_bnb.yaml seed=3"), std::string::npos) << run.err;
  EXPECT_EQ(run.out, "");
  const Outcome bare = shell("env -u SLURM_JOB_ID bash " + script);
  EXPECT_NE(bare.err.find("sbatch " + script + " CONFIG [key=value...]"), std::string::npos) << bare.err;
  // Inside a job, the other arguments are still required.
  const Outcome inside = shell("SLURM_JOB_ID=7 bash " + script);
  EXPECT_EQ(inside.code, 64);
  EXPECT_NE(inside.err.find("usage: sbatch"), std::string::npos) << inside.err;
}

}  // namespace
}  // namespace octet::test::shipped_configs_test
