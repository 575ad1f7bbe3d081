// Memory while a checkpoint is loaded: the planned memory, and little more.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::load_memory_test {
namespace {

namespace fs = std::filesystem;

/// Returns the peak memory of `trainer ARGUMENTS` in bytes.
std::int64_t peak_of(const std::string& arguments, const std::string& log) {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string command = "exec " OCTET_TRAINER " " + arguments + " >" + log + " 2>&1";
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  struct rusage usage {};
  EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0) << slurp(log);
  return std::int64_t{1024} * usage.ru_maxrss;
}

std::int64_t planned(const std::string& arguments) {
  const Outcome plan = trainer("plan --json " + arguments);
  EXPECT_EQ(plan.code, 0) << plan.both();
  return parse_json(plan.out, "plan")["total_bytes"].get<std::int64_t>();
}

TEST(LoadMemory, IsThatOfThePlanAndAtMost64MiBMore) {
  const TemporaryFolder folder("load_memory");
  const std::string large = folder / "large";
  fs::copy(Task::get().model(), large);
  Json config = parse_json(slurp(large + "/config.json"), "config.json");
  config["hidden_size"] = 512, config["intermediate_size"] = 1536, config["num_hidden_layers"] = 6;
  config["num_attention_heads"] = 8, config["num_key_value_heads"] = 8, config["head_dim"] = 64;
  spill(large + "/config.json", config.dump());
  const std::string keys =
      Task::get().config() +
      " device=cpu per_device_train_batch_size=1 global_batch_size=1 param_dtype=fp32 grad_dtype=fp32 "
      "optim_dtype=fp32 ";
  const std::string with_large = keys + "model_name_or_path=" + large + " ";
  // The memory of the program with hardly any state: code, libraries, threads.
  const std::int64_t alone =
      peak_of("train " + keys + "max_steps=1 save_strategy=no output_dir=" + (folder / "small"),
              folder / "log") -
      planned(keys);
  const std::int64_t plan = planned(with_large);
  ASSERT_GT(plan, std::int64_t{200} << 20) << "a state that would show";
  expect_success(trainer("train " + with_large + "max_steps=1 save_steps=1 output_dir=" + (folder / "run")));
  fs::remove(folder / "run/model.safetensors");
  const std::int64_t resumed = peak_of(
      "train " + with_large + "max_steps=2 save_strategy=no output_dir=" + (folder / "run"), folder / "log");
  EXPECT_NE(slurp(folder / "log").find("step 2/2"), std::string::npos) << "it went on";
  EXPECT_LT(resumed, plan + alone + (std::int64_t{64} << 20))
      << "planned " << plan << ", and " << alone << " of a small run's own";
}

}  // namespace
}  // namespace octet::test::load_memory_test
