// Commands that a run suggests when it ends.
#include "../src/train/run_commands.h"
#include "octet/config/config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace octet::train::run_commands_test {
namespace {

using Words = std::vector<std::string>;

std::string resuming(const Launch& launch, const char* start = nullptr) {
  config::Config config;
  if (start != nullptr) config.resume_from_checkpoint = start;
  return resuming_command(launch, config, "runs/a b/checkpoint-8");
}

TEST(RunCommands, ResumeWithTheLauncherOfTheRun) {
  struct Case {
    Launch launch;
    std::string command;
  };
  const Words line{"trainer", "config.yaml"};
  const std::vector<Case> cases = {
      {{.command_line = line}, "trainer config.yaml"},
      {{.command_line = line, .hands_on_stops = true}, "trainer config.yaml"},
      {{.command_line = line, .supervised = true}, "launch/supervise trainer config.yaml"},
      {{.command_line = line, .ranks = 4}, "mpirun -np 4 trainer config.yaml"},
      {{.command_line = line, .ranks = 4, .hands_on_stops = true}, "launch/mpirun -np 4 trainer config.yaml"},
      {{.command_line = line, .ranks = 4, .supervised = true}, "launch/supervise -np 4 trainer config.yaml"},
  };
  for (const Case& c : cases) EXPECT_EQ(resuming(c.launch), c.command);
}

// A run with a configured start would start there again.
TEST(RunCommands, ReplaceAConfiguredStart) {
  const Launch launch{.command_line = {"trainer", "c.yaml", "--resume_from_checkpoint=x", "seed=1"}};
  EXPECT_EQ(resuming(launch, "auto"), "trainer c.yaml --resume_from_checkpoint=x seed=1");
  const std::string replaced = "trainer c.yaml seed=1 'resume_from_checkpoint=runs/a b/checkpoint-8'";
  EXPECT_EQ(resuming(launch, "false"), replaced);
  EXPECT_EQ(resuming(launch, "runs/x/checkpoint-3"), replaced);
}

TEST(RunCommands, TryTheModelOrTheAdapter) {
  config::ModelKeys config;
  config.model_name_or_path = "base";
  EXPECT_EQ(next_commands("trainer", config, {.folder = "out"}),
            (Words{R"(trainer generate out "the begin of a text")"}));
  EXPECT_EQ(next_commands("trainer", config, {.folder = "out", .template_name = "chatml", .scores = true}),
            (Words{"trainer generate out --template chatml --reward --file rows.jsonl"}));
  config.finetuning_type = "lora";
  EXPECT_EQ(
      next_commands("trainer", config, {.folder = "out"}),
      (Words{"trainer export out out-merged --merge", R"(trainer generate out "the begin of a text")"}));
}

}  // namespace
}  // namespace octet::train::run_commands_test
