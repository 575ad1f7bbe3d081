// What the program tells of itself: help, manual pages, completion, version.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/config/schema.h"

namespace octet::test {
namespace {

const std::vector<std::string> kCommands = {"train",    "encode",   "probe",      "inspect",  "export",
                                            "generate", "plan",     "lint",       "verify",   "compare",
                                            "bench",    "gpu-info", "quickstart", "supervise"};

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in:\n" << text;
}

std::string said(const std::string& arguments) {
  const Outcome run = trainer(arguments);
  EXPECT_EQ(run.code, 0) << run.both();
  return run.out;
}

TEST(Help, EveryCommandHasWordsUsageOptionsAndAnExample) {
  const std::string all = said("--help");
  for (const std::string& command : kCommands) {
    SCOPED_TRACE(command);
    expect_in(all, "  " + command + " ");
    const std::string own = said(command + " --help");
    expect_in(own, "trainer " + command + " [OPTIONS]");
    expect_in(own, "-h, --help");
    expect_in(own, "Examples:\n  ");
    EXPECT_TRUE(own.starts_with(said("--help " + command))) << "by either way";
    for (const std::string& line : split(own, '\n')) {
      const bool example = line.find("trainer ") != std::string::npos;
      EXPECT_TRUE(line.size() <= 104 || example) << line;
    }
  }
  const std::string generate = said("generate --help");
  expect_in(generate, "most tokens of an answer (from 1 to 1048576; default 256)");
  expect_in(generate, "(fp32, bf16, fp8; default fp32)");
  expect_in(generate, "MODEL [QUESTION...]");
  expect_in(generate, "as HDF5 where\n                          --out ends in .h5 or .hdf5");
  expect_in(
      said("train --help"),
      "learning_rate\n      Peak learning rate of AdamW.\n      (a number of at least 0; default 5.0e-05)");
}

TEST(Help, OfOneKeyIsWholeAndAnUnknownOneGetsTheNearestName) {
  const std::string key = said("--help finetuning_type");
  expect_in(key, "full means all, lora low-rank adapters");
  expect_in(key, "(full, lora, qlora, freeze; default full)");
  expect_in(said("--help lr_scheduler_kwargs"), "lr_scheduler_kwargs\n");
  const Outcome wrong = trainer("--help learning_rat");
  EXPECT_EQ(wrong.code, 64);
  expect_in(wrong.err, "did you mean 'learning_rate'?");
  EXPECT_EQ(trainer("").code, 64);
  EXPECT_EQ(trainer("--help completion tcsh").code, 64);
}

TEST(Help, VersionNamesCommitAndWhatWasBuiltIn) {
  const std::string text = said("--version");
  EXPECT_TRUE(text.starts_with("octet 0.")) << text;
  expect_in(text, "commit");
  expect_in(text, "HDF5 ");
  expect_in(text, "MPI ");
}

TEST(Help, ManualPagesNameEveryCommandAndKeyAndFormatWithoutAWarning) {
  const TemporaryFolder folder("manual");
  spill(folder / "trainer.1", said("--help manual"));
  spill(folder / "trainer-config.5", said("--help manual-of-keys"));
  const std::string page = slurp(folder / "trainer.1"), keys = slurp(folder / "trainer-config.5");
  for (const std::string command : {"train", "generate", "quickstart"})
    expect_in(page, ".SS trainer " + command);
  expect_in(page, "\\-\\-max\\-new");
  expect_in(page, "OCTETRUN_CACHE");
  for (const config::Field& field : config::schema()) {
    if (field.status == config::Status::used) expect_in(keys, ".TP\n.B " + field.name + "\n");
  }
  if (shell("command -v groff").code != 0) GTEST_SKIP() << "no groff";
  for (const std::string& file : {folder / "trainer.1", folder / "trainer-config.5",
                                  std::string(OCTET_SOURCE_DIR "/docs/man/octet-mpirun.1"),
                                  std::string(OCTET_SOURCE_DIR "/docs/man/octet-check-hosts.1")}) {
    const Outcome formatted = shell("groff -man -ww -z -K utf8 -rLL=100n -Tutf8 " + file);
    EXPECT_EQ(formatted.code, 0);
    EXPECT_EQ(formatted.both(), "") << file;
  }
}

/// What bash offers at the end of these words.
std::string completed(const TemporaryFolder& folder, const std::string& words) {
  spill(folder / "ask",
        "cd " + (folder / ".") + "\nsource ./trainer.bash\nCOMP_WORDS=(" + words +
            ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_trainer\nprintf '%s ' \"${COMPREPLY[@]}\"\n");
  const Outcome run = shell("bash " + (folder / "ask"));
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_EQ(run.err, "");
  return " " + run.out;
}

TEST(Help, BashCompletesCommandsOptionsKeysAndValues) {
  const TemporaryFolder folder("completion");
  spill(folder / "trainer.bash", said("--help completion bash"));
  spill(folder / "config.yaml", "");
  EXPECT_EQ(completed(folder, "trainer gen"), " generate ");
  expect_in(completed(folder, "trainer conf"), " config.yaml ");
  expect_in(completed(folder, "trainer generate --max"), " --max-new --max-length ");
  EXPECT_EQ(completed(folder, "trainer generate --dtype \"\""), " fp32 bf16 fp8 ");
  expect_in(completed(folder, "trainer config.yaml learning_r"), " learning_rate= ");
  expect_in(completed(folder, "trainer config.yaml finetuning_type ="), " lora ");
  EXPECT_EQ(completed(folder, "trainer config.yaml bf16 = t"), " true ");
  EXPECT_EQ(completed(folder, "trainer generate learning_r"), "  ") << "it takes no keys";
  for (const std::string shell_name : {"zsh", "fish"}) {
    const std::string script = said("--help completion " + shell_name);
    expect_in(script, "learning_rate");
    expect_in(script, "max-new");
    if (shell("command -v " + shell_name).code != 0) continue;
    spill(folder / "script", script);
    const Outcome parsed = shell(shell_name + " -n " + (folder / "script"));
    EXPECT_EQ(parsed.code, 0) << parsed.both();
  }
}

}  // namespace
}  // namespace octet::test
