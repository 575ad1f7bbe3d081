// The part of an answer that is wanted: what stands in a regular expression's group.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace re2 {
class RE2;
}

namespace octet::cli {

class Extraction {
 public:
  /// `pattern` in RE2's syntax, with one group at least; `allow`: the only results that count, empty: all.
  /// Throws Error (usage) for what is no pattern, and one without a group.
  Extraction(const std::string& pattern, const std::vector<std::string>& allow);
  ~Extraction();
  Extraction(Extraction&&) noexcept;
  /// What the first group holds where the pattern fits last in `answer` (models reason first), behind its
  /// thoughts (<think>…</think>), without blanks around it. Nothing where it fits nowhere or the result is
  /// not allowed.
  std::optional<std::string> operator()(const std::string& answer) const;

 private:
  std::unique_ptr<re2::RE2> pattern_;
  std::vector<std::string> allow_;
};

}  // namespace octet::cli
