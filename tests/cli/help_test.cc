// Information about the program: help, manual pages, completion, version.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "cli/task.h"
#include "octet/config/key_table.h"

namespace octet::test::help_test {
namespace {

const std::vector<std::string> kCommands = {"train",    "encode", "probe",    "inspect",    "export",
                                            "generate", "plan",   "lint",     "schema",     "verify",
                                            "compare",  "bench",  "gpu-info", "quickstart", "supervise"};

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
  expect_in(generate, "max new tokens per answer (from 1 to 1048576; default 256)");
  expect_in(generate, "(fp32, bf16, fp8, auto; default fp32)");
  expect_in(generate, "MODEL [QUESTION...]");
  expect_in(generate, "as HDF5\n                          where --out ends in .h5 or .hdf5");
  expect_in(
      said("train --help"),
      "learning_rate\n      Peak learning rate of AdamW.\n      (a number of at least 0; default 5.0e-05)");
}

TEST(Help, OfOneKeyIsWholeAndAnUnknownOneGetsTheNearestName) {
  const std::string key = said("--help finetuning_type");
  expect_in(key, "full means all, lora low-rank adapters");
  expect_in(key, "(full, lora, qlora, freeze; default full)");
  expect_in(said("--help lr_scheduler_kwargs"), "lr_scheduler_kwargs\n");
  EXPECT_EQ(said("train --help finetuning_type"), key);
  const Outcome wrong = trainer("--help learning_rat");
  EXPECT_EQ(wrong.code, 64);
  expect_in(wrong.err, "did you mean 'learning_rate'?");
  EXPECT_EQ(trainer("").code, 64);
  EXPECT_EQ(trainer("--help completion tcsh").code, 64);
}

TEST(Help, OfAKeyOfAnotherTrainerSaysWhoseItIsAndWhatItBecomes) {
  const std::string length = said("--help data.max_length");
  EXPECT_TRUE(
      length.starts_with("In configurations of verl:\n  data.max_length\n      Becomes cutoff_len.\n"))
      << length;
  expect_in(length, "\n  cutoff_len\n");
  EXPECT_EQ(said("train --help data.max_length"), length);
  const std::string several = said("--help datasets");
  expect_in(several, "In configurations of SFT-Play:\n  datasets\n");
  expect_in(several, "In configurations of axolotl:\n  datasets\n");
  expect_in(said("--help trainer.nnodes"), "the launcher says how many ranks there are");
  const std::string shared = said("--help bf16");
  expect_in(shared, "In configurations of axolotl:\n  bf16\n      Becomes bf16");
  expect_in(trainer("--help data.max_lenght").err, "did you mean 'data.max_length'?");
}

TEST(Help, VersionNamesCommitAndWhatWasBuiltIn) {
  const std::string text = said("--version");
  EXPECT_TRUE(text.starts_with("octet 0.")) << text;
  expect_in(text, "commit");
  expect_in(text, "HDF5 ");
  expect_in(text, "MPI ");
}

bool is_here(const std::string& program) {
  return shell("command -v " + program).code == 0;
}

void expect_formats(const std::filesystem::path& page) {
  const Outcome formatted = shell("groff -man -ww -z -K utf8 -rLL=100n -Tutf8 " + page.string());
  EXPECT_EQ(formatted.code, 0);
  EXPECT_EQ(formatted.both(), "") << page;
}

TEST(Help, ManualPagesNameEveryCommandOptionAndKey) {
  if (!is_here("help2man") || !is_here("cmake")) GTEST_SKIP() << "no help2man or no cmake";
  const TemporaryFolder folder("manual");
  const Outcome written =
      shell("cmake -DPROGRAM=" OCTET_TRAINER " -DHELP2MAN=help2man -DVERSION=1 -DFOLDER=" + (folder / ".") +
            " -DSECTIONS=" OCTET_SOURCE_DIR "/docs/man -P " OCTET_SOURCE_DIR "/cmake/WriteManuals.cmake");
  ASSERT_EQ(written.code, 0) << written.both();
  const std::string page = slurp(folder / "man1/trainer.1");
  for (const std::string& command : kCommands) {
    SCOPED_TRACE(command);
    expect_in(page, ".TP\n" + std::regex_replace(command, std::regex("-"), "\\-") + "\n");
    const std::string own = slurp(folder / ("man1/trainer-" + command + ".1"));
    expect_in(own, ".SH NAME\ntrainer-" + command + " \\- ");
    for (const std::string& line : split(said(command + " --help"), '\n')) {
      if (!line.starts_with("  -")) continue;
      const std::string option = line.substr(2, line.find_first_of(" ,", 2) - 2);
      expect_in(own, std::regex_replace(option, std::regex("-"), "\\-"));
    }
  }
  expect_in(page, ".SH \"EXIT STATUS\"\n.TP\n0\nthe work is done\n");
  expect_in(slurp(folder / "man7/trainer-environment.7"), "OCTETRUN_CACHE");
  const std::string keys = slurp(folder / "man5/trainer-config.5");
  expect_in(keys, "strongest first: command line, YAML");
  for (const config::Field& field : config::schema()) {
    if (field.status == config::Status::used) expect_in(keys, "\n" + field.name + "\n");
  }
  if (!is_here("groff")) GTEST_SKIP() << "no groff";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "."))
    if (entry.is_regular_file()) expect_formats(entry.path());
}

TEST(Help, ManualPagesFormatWithoutAWarning) {
  if (!is_here("groff")) GTEST_SKIP() << "no groff";
  int pages = 0;
  for (const auto& entry : std::filesystem::directory_iterator(OCTET_SOURCE_DIR "/docs/man")) {
    if (entry.path().extension() != ".1") continue;
    expect_formats(entry.path());
    ++pages;
  }
  EXPECT_GE(pages, 4);
}

TEST(Help, ThePageOfSuperviseHasEveryOptionOfIt) {
  const std::string page = slurp(OCTET_SOURCE_DIR "/docs/man/octet-supervise.1"),
                    help = said("supervise --help");
  const std::regex option("\n +(?:-h, )?(--[a-z]+(?:-[a-z]+)*)");
  int options = 0;
  for (auto at = std::sregex_iterator(help.begin(), help.end(), option); at != std::sregex_iterator(); ++at) {
    const std::string name = std::regex_replace((*at)[1].str(), std::regex("-"), "\\-");
    const bool told = page.find("\n.B " + name + "\n") != std::string::npos ||
                      page.find("\n.BI " + name + " ") != std::string::npos;
    EXPECT_TRUE(told) << name;
    ++options;
  }
  EXPECT_GE(options, 7);
}

/// Returns the completions of bash after these words.
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
  expect_in(completed(folder, "trainer generate --max"), " --max-new ");
  EXPECT_EQ(completed(folder, "trainer generate --dtype \"\""), " fp32 bf16 fp8 auto ");
  expect_in(completed(folder, "trainer config.yaml learning_r"), " learning_rate= ");
  expect_in(completed(folder, "trainer config.yaml finetuning_type ="), " lora ");
  EXPECT_EQ(completed(folder, "trainer config.yaml bf16 = t"), " true ");
  EXPECT_EQ(completed(folder, "trainer generate learning_r"), "  ") << "it takes no keys";
}

/// Returns a line of an interactive zsh after Tab. The folder holds the completion, _trainer.
class Zsh {
 public:
  explicit Zsh(const std::string& folder) : folder_(folder) {
    spill(folder_ + "/ask.zsh", R"sh(zmodload zsh/zpty
cd $1
rm -f ready answer
zpty inner TERM=vt100 zsh -f -i
await() {
  local printed
  repeat 600; do zpty -r -t inner printed; [[ -e $1 ]] && return; sleep 0.05; done
  print "zsh does not come to its $1"
  exit 1
}
zpty -w inner "fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; \
tell() { print -r -- \"\$BUFFER\" >answer }; zle -N tell; bindkey '^P' tell; : >ready"
await ready
zpty -w -n inner "$2"$'\t\x10'
await answer
cat answer
zpty -d inner
)sh");
  }
  std::string line_after_tab(const std::string& line) const {
    const Outcome run = shell("zsh -f " + folder_ + "/ask.zsh " + folder_ + " \"" + line + "\"");
    EXPECT_EQ(run.code, 0) << run.both();
    return run.out;
  }

 private:
  std::string folder_;
};

TEST(Help, ZshCompletesCommandsOptionsKeysAndValues) {
  const std::string script = said("--help completion zsh");
  EXPECT_TRUE(script.starts_with("#compdef trainer\n")) << "as compinit looks for it";
  expect_in(script, "learning_rate");
  if (!is_here("zsh")) GTEST_SKIP() << "no zsh";
  const TemporaryFolder folder("zsh");
  spill(folder / "_trainer", script);
  spill(folder / "config.yaml", "");
  spill(folder / "rows.jsonl", "");
  const Zsh zsh(folder / ".");
  for (const auto& [line, completed] : std::vector<std::pair<std::string, std::string>>{
           {"trainer gen", "trainer generate "},
           {"trainer conf", "trainer config.yaml "},
           {"trainer --ver", "trainer --version "},
           {"trainer generate --max-ne", "trainer generate --max-new "},
           {"trainer generate --dtype bf", "trainer generate --dtype bf16 "},
           {"trainer generate --file ro", "trainer generate --file rows.jsonl "},
           {"trainer config.yaml learning_ra", "trainer config.yaml learning_rate="},
           {"trainer config.yaml finetuning_type=lor", "trainer config.yaml finetuning_type=lora "},
           {"trainer config.yaml bf16=t", "trainer config.yaml bf16=true "},
           {"trainer config.yaml dataset=ro", "trainer config.yaml dataset=rows.jsonl "},
           {"trainer generate learning_ra", "trainer generate learning_ra"}}) {
    EXPECT_EQ(zsh.line_after_tab(line), completed + "\n");
  }
}

/// Returns the completions of fish for a line, without descriptions.
std::string offered_by_fish(const TemporaryFolder& folder, const std::string& line) {
  spill(folder / "ask.fish", "cd " + (folder / ".") + "\nsource trainer.fish\nfor offered in (complete -C '" +
                                 line + "')\n  echo -n (string split -m 1 -- \\t $offered)[1]' '\nend\n");
  const Outcome run = shell("HOME=" + (folder / ".") + " fish --no-config " + (folder / "ask.fish"));
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_EQ(run.err, "") << line;
  return run.out;
}

TEST(Help, FishCompletesCommandsOptionsKeysAndValues) {
  const std::string script = said("--help completion fish");
  expect_in(script, "learning_rate");
  expect_in(script, "max-new");
  if (!is_here("fish")) GTEST_SKIP() << "no fish";
  const TemporaryFolder folder("fish");
  spill(folder / "trainer.fish", script);
  spill(folder / "config.yaml", "");
  spill(folder / "rows.jsonl", "");
  EXPECT_EQ(offered_by_fish(folder, "trainer gen"), "generate ");
  EXPECT_EQ(offered_by_fish(folder, "trainer conf"), "config.yaml ");
  EXPECT_EQ(offered_by_fish(folder, "trainer generate --max-n"),
            "--max-new --max-num-batched-tokens --max-num-seqs ");
  EXPECT_EQ(offered_by_fish(folder, "trainer generate --dtype b"), "bf16 ");
  EXPECT_EQ(offered_by_fish(folder, "trainer generate --file ro"), "rows.jsonl ");
  EXPECT_EQ(offered_by_fish(folder, "trainer config.yaml learning_ra"), "learning_rate= ");
  EXPECT_EQ(offered_by_fish(folder, "trainer config.yaml finetuning_type=lor"), "finetuning_type=lora ");
  expect_in(offered_by_fish(folder, "trainer config.yaml bf16=t"), "bf16=true ");
  EXPECT_EQ(offered_by_fish(folder, "trainer bench tiny learning_ra"), "learning_rate= ") << "it takes keys";
  EXPECT_EQ(offered_by_fish(folder, "trainer generate rows.jsonl learning_ra"), "") << "it takes no keys";
}

}  // namespace
}  // namespace octet::test::help_test
