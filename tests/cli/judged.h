// Judged answers from the rows of the small task.
#pragma once

#include <string>

#include "cli/pairs.h"
#include "cli/task.h"

namespace octet::test {

/// A file in a folder of this process, made once.
class Judged {
 public:
  static const Judged& get() {
    static const Judged judged;
    return judged;
  }
  /// 40 rows as TRL writes them. Right answers are desirable, and answers that repeat the question are not.
  std::string file() const { return folder_ / "judged.jsonl"; }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  Judged() : folder_("judged") {
    std::string text;
    bool good = false;
    for (const auto& line : split(slurp(Pairs::get().file()), '\n')) {
      if (line.empty()) continue;
      good = !good;
      const Json pair = parse_json(line, "pairs.jsonl");
      text +=
          Json{
              {"prompt", pair["prompt"]}, {"completion", pair[good ? "chosen" : "rejected"]}, {"label", good}}
              .dump() +
          "\n";
    }
    spill(file(), text);
  }
  TemporaryFolder folder_;
};

}  // namespace octet::test
