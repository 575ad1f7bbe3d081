// Exact output of commands. They run in this process on machine-independent inputs: a GPU that is only
// planned for, and files of this repository.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include "../src/cli/command.h"
#include "cli/task.h"
#include "cli/two_logs.h"
#include "cli/weights.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/thread_ranks.h"
#include "support/page.h"

namespace octet::test::said_test {
namespace {

/// Splits a command line into words. Words with blanks are in "double quotes".
cli::Arguments words_of(const std::string& line) {
  cli::Arguments words;
  bool open = false, begun = false;
  for (const char c : line) {
    if (c == '"') {
      open = !open;
    } else if ((c == ' ' || c == '\n') && !open) {
      begun = false;
    } else {
      if (!begun) words.emplace_back();
      begun = true;
      words.back() += c;
    }
  }
  return words;
}

/// Returns the output of a command with its exit code unless it is 0, or its error.
std::string answer_of(const std::function<int(const cli::Arguments&)>& command, const std::string& line) {
  testing::internal::CaptureStdout();
  std::string after;
  try {
    const int code = command(words_of(line));
    if (code != 0) after = "exit code " + std::to_string(code) + "\n";
  } catch (const Error& e) {
    after = std::string(e.what()) + "\nexit code " + std::to_string(static_cast<int>(e.code())) + "\n";
  }
  std::cout.flush();
  std::fflush(stdout);
  return testing::internal::GetCapturedStdout() + after;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at; (at = text.find(what)) != std::string::npos;) text.replace(at, what.size(), by);
  return text;
}

TEST(Said, OfPlans) {
  expect_page("cli/said/plan.txt",
              [](const std::string& line) { return answer_of(cli::plan_command, line); });
}

TEST(Said, OfPlansOfGenerations) {
  expect_page("cli/said/plan_generate.txt",
              [](const std::string& line) { return answer_of(cli::plan_command, line); });
}

TEST(Said, OfExports) {
  const TemporaryFolder folder("said_export");
  std::filesystem::copy(OCTET_SOURCE_DIR "/tests/golden/adapters/llama3-lora/adapter", folder / "adapter");
  const auto file = [&](const std::string& name, const std::string& text) {
    spill(folder / name, replaced(text, "FOLDER", folder.path()));
  };
  file("no_model.yaml", "export_dir: FOLDER/out\n");
  file("no_folder.yaml", "model_name_or_path: FOLDER/adapter\n");
  file("quantised.yaml", "model_name_or_path: m\nexport_dir: FOLDER/out\nquantization_bit: 4\n");
  file("format.yaml", "model_name_or_path: m\nexport_dir: FOLDER/out\ninfer_dtype: int3\n");
  file("base.yaml", "model_name_or_path: FOLDER/nowhere\nexport_dir: FOLDER/out\n");
  expect_page("cli/said/export.txt", [&](const std::string& line) {
    const std::string said = answer_of(cli::export_command, replaced(line, "FOLDER", folder.path()));
    EXPECT_FALSE(std::filesystem::exists(folder / "out")) << line;
    return replaced(said, folder.path(), "FOLDER");
  });
}

/// A base and three adapters of it. Each adapter except the last has its own token.
class ExportedTokenizer : public testing::Test {
 protected:
  ExportedTokenizer() : folder_("exported_tokenizer") {
    copy_golden_model("llama3", folder_ / "base");
    for (const char* name : {"a", "b", "c"})
      std::filesystem::copy(OCTET_SOURCE_DIR "/tests/golden/adapters/llama3-lora/adapter", folder_ / name);
    for (const char* name : {"base", "a", "b"}) {
      Json tokenizer = parse_json(slurp(Task::get().model() + "/tokenizer.json"), "tokenizer.json");
      Json token = tokenizer["added_tokens"].back();
      token["id"] = 512, token["content"] = "<of " + std::string(name) + ">";
      tokenizer["added_tokens"].push_back(token);
      spill(folder_ / (std::string(name) + "/tokenizer.json"), tokenizer.dump());
    }
  }
  /// Returns which folder's tokenizer is exported by `arguments`.
  std::string owner(const std::string& arguments) const {
    std::filesystem::remove_all(folder_ / "out");
    const std::string said =
        answer_of(cli::export_command, replaced("FOLDER/" + arguments, "FOLDER", folder_.path()));
    const std::string tokenizer = slurp(folder_ / "out/tokenizer.json");
    for (const std::string name : {"base", "a", "b"}) {
      if (tokenizer.find("<of " + name + ">") != std::string::npos) return name;
    }
    return said;
  }
  TemporaryFolder folder_;
};

// Tokens that training adds are stored with the adapter that needs them.
TEST_F(ExportedTokenizer, IsThatOfTheLastAdapterWhichBringsOne) {
  const std::string model = "base FOLDER/out --merge --adapter ";
  EXPECT_EQ(owner(model + "FOLDER/c"), "base");
  EXPECT_EQ(owner(model + "FOLDER/a,FOLDER/b"), "b");
  EXPECT_EQ(owner(model + "FOLDER/b,FOLDER/a"), "a");
  EXPECT_EQ(owner(model + "FOLDER/a,FOLDER/b,FOLDER/c"), "b");
  EXPECT_EQ(owner("a FOLDER/out --merge --model FOLDER/base --adapter FOLDER/b"), "b");
  EXPECT_EQ(owner("b FOLDER/out --merge --model FOLDER/base --adapter FOLDER/a"), "a");
}

TEST(Said, OfLints) {
  const TemporaryFolder folder("said_lint");
  const Task& task = Task::get();
  const std::string made = std::filesystem::path(task.model()).parent_path().string();
  expect_page("cli/said/lint.txt", [&](const std::string& line) {
    const std::string all =
        answer_of(cli::lint_command, task.config() + " device=cpu output_dir=" + folder.path() + "/run " +
                                         replaced(line, "MADE", made));
    std::string said;  // without texts that depend on this machine's variables
    for (const std::string& one : split(all, '\n')) {
      if (!one.empty() && !one.starts_with("note: environment ")) said += one + "\n";
    }
    said = replaced(said, task.config(), "CONFIG");
    return replaced(replaced(said, made, "MADE"), folder.path(), "FOLDER");
  });
}

TEST(Said, OfQuickstarts) {
  expect_page("cli/said/quickstart.txt", [](const std::string& line) {
    const TemporaryFolder folder("said_quickstart");
    spill(folder / "full/notes.txt", "mine");
    std::string said = answer_of(cli::quickstart_command, replaced(line, "FOLDER", folder.path()));
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      if (!entry.is_regular_file()) continue;
      const std::string text = slurp(entry.path().string());
      const std::string name = entry.path().lexically_relative(folder.path()).string();
      const bool shown = name.ends_with(".yaml") || name.ends_with("/config.json") || name.ends_with(".txt");
      files[name] = shown
                        ? text
                        : std::to_string(std::count(text.begin(), text.end(), '\n')) + " lines, the first " +
                              text.substr(0, std::min<std::size_t>(text.find('\n'), 200)) + "\n";
    }
    for (const auto& [name, text] : files) said += "== " + name + "\n" + text;
    return replaced(said, folder.path(), "FOLDER");
  });
}

// The first line of a question is the command's arguments, and the other lines are its input.
TEST(Said, OfEncodedLines) {
  const TemporaryFolder folder("said_encode");
  const std::string model = Task::get().model();
  expect_page("cli/said/encode.txt", [&](const std::string& question) {
    const std::size_t end = question.find('\n');
    spill(folder / "in.jsonl", question.substr(end + 1));
    return replaced(
        replaced(answer_of(cli::encode_command, replaced(question.substr(0, end), "MODEL", model) +
                                                    " --input " + (folder / "in.jsonl")),
                 model, "MODEL"),
        folder.path(), "FOLDER");
  });
}

/// Saves a checkpoint of a few numbers.
void save_numbers(const std::string& output, std::int64_t step, std::vector<float> head) {
  std::vector<float> norm{1, -2, 0.5f, 4}, moment(6, 0.25f);
  const auto slice = [](const std::string& name, std::vector<std::int64_t> shape,
                        std::vector<float>& values) {
    return TensorSlice{.name = name,
                       .dtype = DType::f32,
                       .shape = std::move(shape),
                       .begin = 0,
                       .count = static_cast<std::int64_t>(values.size()),
                       .data = values.data()};
  };
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, Device&) {
    checkpoint::save(job, output,
                     {.step = step,
                      .zero_stage = 1,
                      .slices = {slice("model.norm.weight", {4}, norm), slice("lm_head.weight", {2, 3}, head),
                                 slice("exp_avg/lm_head.weight", {2, 3}, moment)},
                      .state = Json{{"step", step}, {"epoch", 0.5}, {"seed", 7}},
                      .config_yaml = "max_steps: 9\n"});
  });
}

TEST(Said, OfInspectedCheckpoints) {
  const TemporaryFolder folder("said_inspect");
  save_numbers(folder / "one", 3, {1, 2, 3, 4, 5, 6});
  save_numbers(folder / "one", 6, {1, 2, 3.5f, 4, 5, -6});
  save_numbers(folder / "bad", 3, {1, 2, 3, 4, 5, 6});
  const std::string data = folder / "bad/checkpoint-3/checkpoint.h5";
  std::string bytes = slurp(data);
  const float first[] = {1, 2, 3, 4, 5, 6};
  const std::string stored(reinterpret_cast<const char*>(first), sizeof first);
  const std::size_t at = bytes.find(stored);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  spill(data, bytes);
  expect_page("cli/said/inspect.txt", [&](const std::string& line) {
    return replaced(answer_of(cli::inspect_command, replaced(line, "FOLDER", folder.path())), folder.path(),
                    "FOLDER");
  });
}

TEST(Said, OfComparedRuns) {
  const TemporaryFolder folder("said_compare");
  const auto [one, other] = two_logs();
  spill(folder / "one/trainer_log.jsonl", one + "{\"current_steps\":21,\"lo");
  spill(folder / "other.jsonl", other + "\n[1]\n");
  spill(folder / "elsewhere.jsonl", "{\"current_steps\":77,\"loss\":1}\n");
  spill(folder / "empty/trainer_log.jsonl", "{\"loss\": 1.0}\n");
  expect_page("cli/said/compare.txt", [&](const std::string& line) {
    return replaced(answer_of(cli::compare_command, replaced(line, "FOLDER", folder.path())), folder.path(),
                    "FOLDER");
  });
}

}  // namespace
}  // namespace octet::test::said_test
