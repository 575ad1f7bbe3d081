// Pairs of answers from the rows of the small task, and another model with its tokens.
#pragma once

#include <filesystem>
#include <string>

#include "cli/task.h"

namespace octet::test {

/// Files in a folder of this process, made once.
class Pairs {
 public:
  static const Pairs& get() {
    static const Pairs pairs;
    return pairs;
  }
  /// Rows of 40 questions. The chosen answer is right, and the rejected answer repeats the question.
  std::string file() const { return folder_ / "pairs.jsonl"; }
  /// A model with weights that were trained for some steps.
  std::string other_model() const { return folder_ / "out"; }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  Pairs() : folder_("pairs") {
    std::vector<Json> rows;
    for (const auto& line : split(slurp(Task::get().data()), '\n')) {
      if (!line.empty() && rows.size() < 40) rows.push_back(parse_json(line, "train.jsonl")["messages"]);
    }
    std::string text;
    for (const Json& row : rows) {
      text +=
          Json{{"prompt", row[0]["content"]}, {"chosen", row[1]["content"]}, {"rejected", row[0]["content"]}}
              .dump() +
          "\n";
    }
    spill(file(), text);
    const Outcome made =
        trainer(Task::get().train(other_model(), "max_steps=4 save_strategy=no learning_rate=1e-2"));
    if (made.code != 0) throw std::runtime_error("training failed: " + made.both());
  }
  TemporaryFolder folder_;
};

}  // namespace octet::test
