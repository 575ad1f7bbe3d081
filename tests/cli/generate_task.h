// Shared parts of the tests of `trainer generate` with files.
#pragma once

#include <algorithm>
#include <filesystem>
#include <set>

#include "cli/task.h"
#include "cli/turns.h"
#include "octet/base/json.h"

namespace octet::test {
inline const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/";

inline std::vector<Json> rows_of(const std::string& path) {
  std::vector<Json> rows;
  for (const auto& line : split(slurp(path), '\n')) {
    if (!line.empty()) rows.push_back(parse_json(line, path));
  }
  return rows;
}

inline std::string answer_of(const Json& row) {
  return row["messages"].back()["content"];
}

/// Returns a model that was trained a little on the task.
inline const std::string& trained_model() {
  static const TemporaryFolder folder("generate_model");
  static const std::string path = [] {
    const Outcome run = trainer(Task::get().train(folder / "run", "save_strategy=no"));
    if (run.code != 0) throw std::runtime_error(run.both());
    return folder / "run";
  }();
  return path;
}

class GenerateFile : public testing::Test {
 protected:
  GenerateFile() : folder_("generate_file") {}
  std::string command(const std::string& out, const std::string& more = "") const {
    const std::string limit = more.find("--max-new") == std::string::npos ? " --max-new 8" : "";
    return "generate " + trained_model() + " --template chatml --device cpu" + limit + " --file " +
           Task::get().held_out() + " --out " + (folder_ / out) + " " + more;
  }
  std::vector<Json> answers(const std::string& out, const std::string& more = "", int np = 0) const {
    const Outcome run = trainer(command(out, more), np);
    EXPECT_EQ(run.code, 0) << run.both();
    return rows_of(folder_ / out);
  }
  void refused(const std::string& more, const std::string& message) const {
    for (const int np : ranks_in_turn(0)) {
      const Outcome run = trainer(command("refused.jsonl", more), np);
      EXPECT_EQ(run.code, 64) << more << run.both();
      EXPECT_NE(run.err.find(message), std::string::npos) << more << run.both();
      EXPECT_EQ(errors_in(run), 1) << run.both();
      EXPECT_FALSE(std::filesystem::exists(folder_ / "refused.jsonl")) << more;
    }
  }
  TemporaryFolder folder_;
};

/// Runs before a release only.
class WholeGenerateFile : public GenerateFile {};

}  // namespace octet::test
